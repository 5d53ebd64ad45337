"""Malloc libraries: their functions, where a process has them, and usable sizes."""
