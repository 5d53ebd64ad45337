"""Publishes results over HTTP: an endpoint for readers, and profiles pushed to servers."""
