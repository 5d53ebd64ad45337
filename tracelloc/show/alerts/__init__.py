"""Rules that watch a trace."""
