"""Supervised tasks, long tasks in the background, and the memory that all of them may use."""
