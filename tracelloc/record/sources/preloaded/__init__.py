"""The preloaded library: events that a program writes into memory it shares with tracelloc."""
