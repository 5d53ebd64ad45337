"""CPython: its frames, its objects by type, and the holders of objects."""
