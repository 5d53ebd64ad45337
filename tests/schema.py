"""Checks JSON against the schema that ``tracelloc schema`` prints, strictly: no key is unknown."""

import json
from typing import Any, cast

from tracelloc.show import manual

TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "string": (str,), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip


class Schema:
    """The schema, and which of its keys have been seen: (definition, key)."""

    def __init__(self) -> None:
        self.whole: dict[str, Any] = json.loads(manual.text_of("schema.json"))
        self.seen: set[tuple[str, str]] = set()

    def keys(self, kind: str) -> set[tuple[str, str]]:
        """All keys of a definition and of those that it refers to."""
        found, left = set(), [kind]
        done: set[str] = set()
        while left:
            name = left.pop()
            if name in done:
                continue
            done.add(name)
            schema = self.whole["$defs"][name]
            found |= {(name, key) for key in schema.get("properties", {})}
            text = json.dumps(schema).split('"#/$defs/')[1:]
            left += [each.partition('"')[0] for each in text]
        return found

    def check(self, value: object, kind: str) -> None:
        """Fails unless the value is of this kind, with known keys of the right types."""
        self._check(value, {"$ref": f"#/$defs/{kind}"}, kind, kind)
        required = self.whole["$defs"][kind].get("required", ())
        missing = [key for key in required if key not in cast("dict[str, Any]", value)]
        assert not missing, f"{kind} lacks {missing}"

    def _resolved(self, schema: dict[str, Any], name: str) -> list[tuple[str, dict[str, Any]]]:
        """The definitions that a schema stands for, those of allOf and anyOf included."""
        found = [(name, schema)]
        if reference := schema.get("$ref"):
            name = reference.rpartition("/")[2]
            found += self._resolved(self.whole["$defs"][name], name)
        for each in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
            found += self._resolved(each, name)
        return found

    def _check(self, value: Any, schema: dict[str, Any], name: str, where: str) -> None:
        parts = self._resolved(schema, name)
        types = {
            each
            for _, part in parts
            for each in (part.get("type", ()),)
            for each in ([each] if isinstance(each, str) else each)
        }
        assert isinstance(value, tuple(one for each in types for one in TYPES[each])), (
            f"{where} is {value!r}, not {sorted(types)}"
        )
        assert "boolean" in types or not isinstance(value, bool), where
        if isinstance(value, list):
            items = next((part["items"] for _, part in parts if "items" in part), None)
            for each in value if items is not None else ():
                self._check(each, items, name, f"{where}[]")
        elif isinstance(value, dict):
            known = {
                key: (owner, found)
                for owner, part in parts
                for key, found in part.get("properties", {}).items()
            }
            for key, each in value.items() if known else ():
                assert key in known, f"{where}.{key} is not in the schema"
                owner, found = known[key]
                self.seen.add((owner, key))
                self._check(each, found, owner, f"{where}.{key}")
