"""Recordings: the snapshots of a trace over time in one file, see ``docs/internals.md``."""
