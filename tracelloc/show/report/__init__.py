"""Reports as text and JSON, in sections."""
