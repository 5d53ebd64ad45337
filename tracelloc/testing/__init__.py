"""The plug-in of pytest: memory and leaks of each test."""

from typing import Final

# Environment variable that tells the plug-in the number of its socket, and the names of variables
# that were added for the Python that runs the tests.
VARIABLE: Final = "TRACELLOC_TESTS"
