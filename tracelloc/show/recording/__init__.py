"""Recordings: the snapshots of a trace over time in one file, see ``docs/recordings.md``."""
