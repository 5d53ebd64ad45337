"""Malloc libraries: their functions, where a process maps them, and usable sizes."""
