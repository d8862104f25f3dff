"""The sharding room."""
