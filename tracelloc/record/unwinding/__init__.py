"""Call stacks, made whole: rows for the probes, and what these could not finish."""
