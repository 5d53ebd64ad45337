"""Results over HTTP: an endpoint, and profiles that are pushed."""
