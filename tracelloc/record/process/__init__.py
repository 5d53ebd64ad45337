"""The traced process: its identity, memory, mapped files and resource usage."""
