"""The scheduling room."""
