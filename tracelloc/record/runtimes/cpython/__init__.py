"""What a running CPython program has in memory, read from outside: by type, and who keeps it."""
