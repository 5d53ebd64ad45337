"""The plug-in of pytest: memory and leaks of each test."""

from typing import Final

# Environment variable that tells the plug-in the number of its socket, and the names of variables
# that were added for the Python that runs the tests.
VARIABLE: Final = "TRACELLOC_TESTS"
# Requests of the plug-in: the figures of the tests that have ended since the last one; a search.
FIGURES: Final = b"figures"
SEARCH: Final = b"search"
