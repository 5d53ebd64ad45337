"""Unwinding: supplies unwind rows to the probes, and finishes stacks that probes could not."""
