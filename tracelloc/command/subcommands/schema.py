"""Prints the JSON Schema of what tracelloc writes as JSON.

The draft is 2020-12. --follow writes "sums", -o FILE.json a "snapshot", and tracelloc objects a
"census".

To try it:
  tracelloc schema leaks
"""

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from tracelloc.text import print_lines


def _schema() -> dict[str, Any]:
    from tracelloc.show.manual import text_of

    return dict(json.loads(text_of("schema.json")))


def add_arguments(parser: ArgumentParser) -> None:
    kinds = [each["$ref"].rpartition("/")[2] for each in _schema()["anyOf"]]
    parser.add_argument("kind", nargs="?", choices=kinds, help="one output (default: all)")


def run(given: Namespace) -> None:
    schema = _schema()
    if given.kind is not None:
        schema["anyOf"] = [{"$ref": f"#/$defs/{given.kind}"}]
    print_lines(json.dumps(schema, indent=1, ensure_ascii=False).splitlines())
