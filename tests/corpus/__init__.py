"""Programs of known truth, as streams of events on a clock of their own."""
