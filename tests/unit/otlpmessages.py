"""OTLP profiles, decoded by the official definitions and looked at with suspicion."""

from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2
from opentelemetry.proto.profiles.v1development import profiles_pb2

TABLES = ("mapping", "location", "function", "link", "string", "attribute", "stack")


def decoded_file(content: bytes) -> Any:
    message = profiles_pb2.ProfilesData()
    message.ParseFromString(content)
    check(message)
    return message


def decoded_request(content: bytes) -> Any:
    message = profiles_service_pb2.ExportProfilesServiceRequest()
    message.ParseFromString(content)
    check(message)
    return message


def check(message: Any) -> None:
    """Every rule of the definitions' comments that can be checked."""
    tables = {name: list(getattr(message.dictionary, f"{name}_table")) for name in TABLES}
    used: dict[str, set[int]] = {name: {0} for name in TABLES}
    for table, index in references(message):
        assert 0 <= index < len(tables[table]), (table, index)
        used[table].add(index)
    for name, entries in tables.items():
        empty = "" if name == "string" else type(entries[0])()
        assert entries[0] == empty, f"{name}_table begins with its zero value"
        keys = [entry if name == "string" else entry.SerializeToString() for entry in entries]
        assert len(set(keys)) == len(keys), f"{name}_table has something twice"
        assert used[name] == set(range(len(entries))), f"{name}_table has what nobody refers to"
    for _, profile in profiles(message):
        stacks = [sample.stack_index for sample in profile.samples]
        assert len(set(stacks)) == len(stacks) or not stacks
        assert all(len(sample.values) == 1 and sample.stack_index for sample in profile.samples)
    for location in message.dictionary.location_table:
        mapping = message.dictionary.mapping_table[location.mapping_index]
        if location.mapping_index:
            assert mapping.memory_start <= location.address < mapping.memory_limit


def references(message: Any) -> Iterator[tuple[str, int]]:
    for _, profile in profiles(message):
        for kind in (profile.sample_type, profile.period_type):
            yield "string", kind.type_strindex
            yield "string", kind.unit_strindex
        yield from (("attribute", index) for index in profile.attribute_indices)
        for sample in profile.samples:
            yield "stack", sample.stack_index
            yield "link", sample.link_index
            yield from (("attribute", index) for index in sample.attribute_indices)
    dictionary = message.dictionary
    for mapping in dictionary.mapping_table:
        yield "string", mapping.filename_strindex
        yield from (("attribute", index) for index in mapping.attribute_indices)
    for location in dictionary.location_table:
        yield "mapping", location.mapping_index
        yield from (("attribute", index) for index in location.attribute_indices)
        yield from (("function", line.function_index) for line in location.lines)
    for function in dictionary.function_table:
        yield "string", function.name_strindex
        yield "string", function.system_name_strindex
        yield "string", function.filename_strindex
    for attribute in dictionary.attribute_table:
        yield "string", attribute.key_strindex
        yield "string", attribute.unit_strindex
    for stack in dictionary.stack_table:
        yield from (("location", index) for index in stack.location_indices)


def profiles(message: Any) -> Iterator[tuple[Any, Any]]:
    """(resource, profile)"""
    for each in message.resource_profiles:
        for scope in each.scope_profiles:
            for profile in scope.profiles:
                yield each.resource, profile


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    return getattr(value, kind)


def resource_of(resource: Any) -> dict[str, Any]:
    return {entry.key: value_of(entry.value) for entry in resource.attributes}


def attributes_of(message: Any, owner: Any) -> dict[str, Any]:
    strings, table = message.dictionary.string_table, message.dictionary.attribute_table
    entries = [table[index] for index in owner.attribute_indices]
    return {strings[entry.key_strindex]: value_of(entry.value) for entry in entries}


def type_of(message: Any, kind: Any) -> tuple[str, str]:
    strings = message.dictionary.string_table
    return strings[kind.type_strindex], strings[kind.unit_strindex]


def sums(message: Any) -> dict[str, int]:
    """What the samples of each type come to, over all processes."""
    found: dict[str, int] = {}
    for _, profile in profiles(message):
        name, _ = type_of(message, profile.sample_type)
        found[name] = found.get(name, 0) + sum(sum(s.values) for s in profile.samples)
    return found


def stacks_of(message: Any, profile: Any) -> list[tuple[int, list[list[tuple[str, int]]]]]:
    """(value, functions and lines of each location, innermost first) of each sample."""
    dictionary = message.dictionary
    strings, functions = dictionary.string_table, dictionary.function_table
    return [
        (
            sample.values[0],
            [
                [
                    (strings[functions[line.function_index].name_strindex], line.line)
                    for line in dictionary.location_table[index].lines
                ]
                for index in dictionary.stack_table[sample.stack_index].location_indices
            ],
        )
        for sample in profile.samples
    ]
