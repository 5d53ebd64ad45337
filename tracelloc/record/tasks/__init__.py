"""Supervised tasks, and the memory that all of tracelloc may use."""
