"""What a running CPython program has in memory, read from outside: objects by their type."""
