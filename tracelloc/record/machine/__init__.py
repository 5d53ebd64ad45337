"""The memory of all processes and control groups of the machine, without tracing any."""
