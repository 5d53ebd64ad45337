"""Files that tracelloc writes, opened without following other users' links."""
