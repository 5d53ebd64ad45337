"""Rules that end tracing, a command that is told of leaks, leaks that are known."""
