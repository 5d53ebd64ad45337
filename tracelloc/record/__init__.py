"""The recording wing: traces processes. Needs Linux and rights, and imports nothing of ``show``."""
