"""Records that every other room knows: no behaviour that needs a machine."""
