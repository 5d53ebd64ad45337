"""Results for those who ask over HTTP, or who are sent them."""
