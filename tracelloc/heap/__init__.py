"""The live table: what is outstanding, by stack, block, size, age and time."""
