"""Frozen pictures of the table, and what is worked out of them alone."""
