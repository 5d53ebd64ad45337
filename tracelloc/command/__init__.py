"""The command line: options, and how a run begins, reports and ends."""
