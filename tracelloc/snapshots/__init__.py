"""Immutable snapshots of processes, and taking them."""
