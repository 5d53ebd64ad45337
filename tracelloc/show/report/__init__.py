"""Reports as text and JSON, and profiles: what each call stack weighs, by name."""
