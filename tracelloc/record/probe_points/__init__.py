"""Probe points: which program is attached where."""
