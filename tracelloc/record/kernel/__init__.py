"""The probes: loaded, attached, and what they send, as arrays."""
