"""Figures computed from snapshots alone."""
