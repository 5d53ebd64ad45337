"""Facets: what is found out about processes from time to time, behind one interface."""
