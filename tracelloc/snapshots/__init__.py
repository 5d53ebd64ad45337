"""Frozen copies of the table, and what is computed from them alone."""
