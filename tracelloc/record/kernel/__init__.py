"""Loads and attaches the probes and reads what they send, as numpy arrays."""
