"""Records shared by all packages, without behavior that depends on the machine."""
