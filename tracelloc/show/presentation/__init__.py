"""What reports, exports and the screen share: stacks by name, trees, suspects in words."""
