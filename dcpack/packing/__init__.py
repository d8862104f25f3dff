"""The packing room."""
