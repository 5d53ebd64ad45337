"""Which blocks nothing in the process points to any more: memory that is lost."""
