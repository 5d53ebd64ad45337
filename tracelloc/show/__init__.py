"""Reports, exports and recordings of figures; runs on any machine."""
