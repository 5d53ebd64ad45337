"""The showing wing: reports, exports and recordings of figures, on any machine."""
