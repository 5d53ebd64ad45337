"""Puts the preloaded library into a process that runs already, and takes it out of use again."""
