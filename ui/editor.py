"""Opens a source line in the user's editor and suspends the screen meanwhile."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Any

from textual.app import App, SuspendNotSupported

from tracelloc.ui.tableview import crop


def open_editor(app: App[Any], file: str, line: int) -> None:
    """Runs ``$VISUAL``, ``$EDITOR`` or vi until it exits; errors appear on the screen."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    command = [*shlex.split(editor), f"+{line}", file]
    try:
        with app.suspend():
            status = subprocess.run(command, check=False).returncode
    except (OSError, SuspendNotSupported, ValueError) as error:
        app.notify(f"{crop(editor, 60)}: {error}", severity="error", markup=False)
        return
    if status:
        app.notify(f"{crop(editor, 60)} ended with status {status}", markup=False)
