"""A flame graph as one HTML file that needs nothing else: no network, no other file.

Names get into it in one place, as JSON in which nothing can end the element that it
stands in; the page's own script puts them into text only. Should that ever fail, the
page's policy runs no script but that one, by its hash, and fetches nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator
from typing import Any, Final

from tracelloc.export.flamedata import asset, page_data
from tracelloc.text import printable
from tracelloc.views.profile import Metric, Profile

_SCRIPTS: Final = ("model.js", "draw.js", "page.js")
_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def write(profile: Profile, metric: Metric, refresh_s: float | None = None) -> Iterator[bytes]:
    """The file; with ``refresh_s`` it asks its server for ``flamegraph.json`` that often."""
    data = page_data(profile, metric, refresh_s)
    script = "".join(map(asset, _SCRIPTS))
    title = html.escape(f"{printable(profile.target.command)} – heap")
    # Cut, then filled: what is filled in is never searched for further places.
    head, rest = asset("page.html").split("@POLICY@")
    middle, rest = rest.split("@TITLE@")
    style, rest = rest.split("@STYLE@")
    body, rest = rest.split("@DATA@")
    between, end = rest.split("@SCRIPT@")
    parts = [head, policy(script, live=refresh_s is not None), middle, title, style]
    parts += [asset("style.css"), body]
    yield "".join(parts).encode()
    yield embedded(data).encode()
    yield "".join([between, script, end]).encode()


def embedded(data: dict[str, Any]) -> str:
    """JSON that may stand between any two tags."""
    return json.dumps(data, separators=(",", ":")).translate(_ESCAPES)


def policy(script: str, *, live: bool) -> str:
    """The Content-Security-Policy: this script, any style, nothing from elsewhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )
