"""The plug-in of pytest: memory and leaks of each test."""

from typing import Final

# Environment variable that tells the plug-in the number of its socket, and the names of variables
# that were added for the Python that runs the tests.
VARIABLE: Final = "TRACELLOC_TESTS"
# Requests of the plug-in: a test begins, without call stacks or with them, and what earlier ones
# have left is forgotten, or kept for a search; a search. Any other one ends a test: the limit of
# its peak in bytes, or null.
BEGINNINGS: Final = b"begin, no stacks", b"begin", b"begin, keep"
SEARCH: Final = b"search"
