"""Sessions: the thread that pumps events into tables, for one process or a family."""
