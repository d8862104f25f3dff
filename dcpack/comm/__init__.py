"""The comm room."""
