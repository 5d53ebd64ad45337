"""Sources of events: probes, the preloaded library, and what programs report themselves."""
