"""The terminal interface. The only package that may import textual."""
