"""Text and figures shared by reports, exports and the screen: names, trees, suspects."""
