"""The balancing room."""
