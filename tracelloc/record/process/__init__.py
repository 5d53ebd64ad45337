"""What is traced: the process, its memory, and where its allocators are."""
