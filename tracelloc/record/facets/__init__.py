"""Facets: facts about a process that are found by an inspection from time to time."""
