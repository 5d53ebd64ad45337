"""Sessions: a pump thread applies events to the tables of one process or a process tree."""
