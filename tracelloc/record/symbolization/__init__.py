"""Symbolization: addresses to names, lines and inlined functions."""
