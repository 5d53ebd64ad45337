"""Operating system support for both wings: safe files, confinement, users, system calls."""
