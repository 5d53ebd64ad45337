"""Writes what the schema has from declarations, and checks JSON against it, strictly.

``python -m tests.schema`` writes names, types and words of records that ``json_of`` turns into
JSON. Descriptions, and keys of other dictionaries, are written by hand: reports are compared.
"""

import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, cast, get_args, get_origin, get_type_hints

from tests.harness import ROOT
from tracelloc.dataclass import is_dataclass
from tracelloc.model import blocks, figures, heapusage, lostmemory, objects, process, verdicts
from tracelloc.model.losses import Completeness
from tracelloc.show import manual
from tracelloc.show.presentation.blockholders import _NAMES as PATHS
from tracelloc.show.presentation.facts import _THREADS as THREADS
from tracelloc.show.presentation.objects import _HOLDERS as HOLDER

FILE = ROOT / "tracelloc/docs/files/schema.json"
CLASS = {"class_name": "class"}
# Definitions, a record that each is written from, other names of fields, and those left out.
DECLARED: tuple[tuple[str, type, Mapping[str, str | None], str], ...] = (
    ("leaks", lostmemory.LostMemory, {"time_s": "time"}, ""),
    ("leaks_group", lostmemory.LostGroup, CLASS, ""),
    ("heap", heapusage.HeapUsage, {"time_s": "time", "account": "memory"}, "pinned stack_classes"),
    ("heap_arena", heapusage.ArenaUsage, {}, "resident"),
    ("heap_size", heapusage.SizeUsage, {}, ""), ("heap_class", heapusage.ClassUsage, {}, ""),
    ("heap_block", heapusage.LargeBlock, CLASS, ""),
    ("memory_account", heapusage.MemoryAccount, {}, "parts items inherited"),
    ("memory_account_runtime", heapusage.RuntimeFigures, {}, ""),
    ("holders", blocks.HeapCoverage, {"time_s": "time"}, ""),
    ("holders", blocks.TopHolders, {"other_count": "more"}, "heap keepers"),
    ("holders", blocks.BlockHolders, {"unreached": "without_holder"}, "heap keepers is_sample"),
    ("suspects_holders", blocks.BlockHolders, {"unreached": "without_holder"},
     "heap keepers retained"),
    ("suspects_holders_paths", blocks.HolderPath, PATHS, ""),
    ("holders_step", blocks.PathStep, PATHS, ""), ("suppressed", verdicts.Suppressed, {}, ""),
    ("objects_holders", objects.Holders, HOLDER, ""),
    ("objects_holders_holders", objects.Holder, HOLDER, "type_name"),
    ("type_suspects_grown_by", objects.FunctionLine, {}, ""),
    ("malloc_libraries", process.FoundLibrary, {"family": "name"}, "library space"),
    ("threads", figures.ThreadActivity, THREADS, "names"),
    ("threads_threads", figures.ThreadWork, THREADS, ""),
)  # fmt: skip
# Keys whose values are words: annotated by ``examples``, since a release may add some.
WORDS: dict[str, Iterable[Enum]] = {
    "top_allocators.verdict": verdicts.Verdict, "snapshot_stack.verdict": verdicts.Verdict,
    **dict.fromkeys(("suspects.verdict", "type_suspects.verdict"), list(verdicts.Verdict)[:2]),
    "completeness.state": Completeness, "figures.space": process.Space,
    "holders_root.kind": blocks.RootKind,
}  # fmt: skip
NAMES = {int: "integer", float: "number", str: "string", bytes: "string", bool: "boolean"}


def type_of(hint: Any, names: Mapping[str, str | None]) -> dict[str, Any]:
    """The schema of a field's values."""
    arguments = get_args(hint)
    if type(None) in arguments:
        schema = type_of(arguments[0], names)
        if "type" in schema:
            return schema | {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": type_of(arguments[0], names)}
    for definition, record, _, _ in DECLARED:
        if record is hint:
            return {"$ref": f"#/$defs/{definition}"}
    if is_dataclass(hint):
        return {"type": "object", "properties": properties(cast("type", hint), names)}
    if issubclass(hint, Enum):
        return {"type": "string", "examples": [word.value for word in hint]}
    return {"type": NAMES[hint]}


def properties(record: type, names: Mapping[str, str | None], left_out: str = "") -> dict[str, Any]:
    """The keys that ``json_of`` writes for a record, with the schema of each."""
    found: dict[str, Any] = {}
    for field, hint in get_type_hints(record).items():
        name = names.get(field, field)
        if name is None or field in left_out.split():
            continue
        if hint is blocks.BlockSum:
            prefix = "" if name == "blocks" else f"{name}_"
            found |= {f"{prefix}{unit}": {"type": "integer"} for unit in ("blocks", "bytes")}
        else:
            found[name] = type_of(hint, names)
    return found


def written() -> str:
    """The schema's file as it has to be: what is declared replaces what the file has."""
    schema = json.loads(FILE.read_text())
    definitions = schema.pop("$defs")
    for name, record, names, left_out in DECLARED:
        keys = definitions[name]["properties"]
        for key, found in properties(record, names, left_out).items():
            about = keys.get(key, {}).get("description")
            keys[key] = found if about is None else {**found, "description": about}
    for place, words in WORDS.items():
        name, _, key = place.partition(".")
        definitions[name]["properties"][key]["examples"] = [word.value for word in words]
    texts = []
    for name, one in definitions.items():
        begin, end = json.dumps({name: one | {"properties": {}}})[1:-3], "\n  }}"
        keys = rows(one["properties"], 3) if "properties" in one else ""
        texts.append(f"  {begin}\n{keys}{end}" if keys else rows({name: one}, 2))
    head, body = rows(schema, 1), ",\n".join(texts)
    return f'{{\n{head},\n "$defs": {{\n{body}\n }}\n}}\n'


def rows(keys: dict[str, Any], indent: int) -> str:
    """Keys with their values as JSON, one on each line."""
    dumped = (json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in keys.items())
    return ",\n".join(" " * indent + line for line in dumped)


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
        names, definitions = [kind], self.whole["$defs"]
        for name in names:
            referred = re.findall(r"#/\$defs/(\w+)", json.dumps(definitions[name]))
            names += [each for each in dict.fromkeys(referred) if each not in names]
        return {(name, key) for name in names for key in definitions[name].get("properties", {})}

    def check(self, value: object, kind: str) -> None:
        """Fails unless the value is of this kind, with known keys of the right types."""
        self._check(value, {"$ref": f"#/$defs/{kind}"}, kind, kind)
        required = self.whole["$defs"][kind].get("required", ())
        assert all(key in cast("dict[str, Any]", value) for key in required), kind

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
        types = set(re.findall(r"\w+", " ".join(str(part.get("type", "")) for _, part in parts)))
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


if __name__ == "__main__":
    FILE.write_text(written())
