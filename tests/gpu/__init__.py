"""Checks that need a GPU: ``tests/gpu/__main__.py``."""
