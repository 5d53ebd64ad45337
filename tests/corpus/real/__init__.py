"""Real programs from Debian packages, under load: recorded once, judged as often as needed."""
