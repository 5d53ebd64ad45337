"""What both wings need of the operating system: safe files, confinement, users, system calls."""
