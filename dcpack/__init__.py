"""dcpack: exact and fast packing, balancing and dynamic context parallelism for variable-length sequences."""
