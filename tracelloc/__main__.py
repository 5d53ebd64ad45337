"""``python -m tracelloc``."""

import sys

from tracelloc.cli import main

sys.exit(main())
