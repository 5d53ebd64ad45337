"""Readers of binary files: they know bytes, not processes."""
