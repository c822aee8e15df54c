"""Is every document of one JSON Schema a document of another? Answered if it can be proved, and refused otherwise.

The library for it reads draft 4 and ignores newer keywords (docs/howto-schemas.md). This module is sound, not complete. A "yes" comes
only from rules that hold for every document (`tests/unit/definition/test_json_schema.py` looks for one that breaks them). A demand
without a rule is a separate kind of finding, never a "yes". The rules are those of JSON Schema 2020-12, for keywords with the same
meaning since draft 6.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from rivertwice.core import DefinitionError
from rivertwice.definition.avro import MAX_DEPTH, MAX_NODES
from rivertwice.definition.pinned_files import MAX_BYTES

Node = bool | Mapping[str, Any]
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_NOTES = {
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
}
_NOTES |= {"readOnly", "writeOnly"}
_COMPARED = {
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "pattern",
    "format",
    "uniqueItems",
}
_COMPARED |= {
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
}
_COMPARED |= {"minProperties", "maxProperties"}
_ALONE = {"multipleOf", "not", "anyOf", "oneOf", "allOf", "propertyNames"}
"""Not analysed. Each is independent of the keywords beside it, so the same text on both sides is the same demand."""
_MAPS = {"properties", "patternProperties", "dependentSchemas"}
_PARTS = {
    "items",
    "additionalProperties",
    "not",
    "anyOf",
    "oneOf",
    "allOf",
    "prefixItems",
    "propertyNames",
    "contains",
    "if",
    "then",
    "else",
}
_PARTS |= {"unevaluatedItems", "unevaluatedProperties"}
_MOVED = {"$dynamicRef", "$recursiveRef"}
_OF_A_TYPE = {
    "string": (("minLength", "maxLength"), ("pattern", "format")),
    "array": (("minItems", "maxItems"), ()),
    "object": (("minProperties", "maxProperties"), ()),
}


def parse_json_schema(data: str, where: str) -> Node:
    """Return the schema with every reference replaced by its target.

    Raises:
        DefinitionError: it is not a schema, exceeds a limit, refers to itself, or refers to another document.
    """
    try:
        if len(data) > MAX_BYTES:
            message = f"it has {len(data)} characters, more than {MAX_BYTES}"
            raise ValueError(message)
        value = json.loads(data)
        Draft202012Validator.check_schema(value)
        node: Node = _Expander(value).expand(value, 0, ())
    except (ValueError, RecursionError, SchemaError) as error:
        message = f"{where} is not a JSON Schema that can be compared: {str(error).splitlines()[0][:300]}; correct it"
        raise DefinitionError(message) from None
    return node


class _Expander:
    """Replaces references within a document by their targets."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._left = MAX_NODES

    def expand(self, node: Any, depth: int, inside: tuple[str, ...]) -> Any:
        self._left -= 1
        if depth > 2 * MAX_DEPTH or self._left < 0:
            message = f"it has more than {2 * MAX_DEPTH} levels or {MAX_NODES} parts with its references spelt out"
            raise ValueError(message)
        if isinstance(node, list):
            return [self.expand(each, depth + 1, inside) for each in node]
        if not isinstance(node, dict):
            return node
        if (depth and "$id" in node) or _MOVED & set(node):
            message = f"{', '.join(sorted({'$id', *_MOVED} & set(node)))} in a part changes what references mean"
            raise ValueError(message)
        if "$ref" in node:
            return self._follow(node, depth, inside)
        return {name: self._keyword(name, each, depth, inside) for name, each in node.items() if name not in _NOTES}

    def _keyword(self, name: str, value: Any, depth: int, inside: tuple[str, ...]) -> Any:
        if name in _MAPS:
            return {keyword: self.expand(each, depth + 1, inside) for keyword, each in value.items()}
        return self.expand(value, depth + 1, inside) if name in _PARTS else value

    def _follow(self, node: dict[str, Any], depth: int, inside: tuple[str, ...]) -> Any:
        place = node["$ref"]
        if not place.startswith("#") or set(node) - _NOTES - {"$ref"}:
            message = f"the reference {place[:80]!r} leads out of the schema or has demands beside it"
            raise ValueError(message)
        if place in inside:
            message = f"{place[:80]!r} contains itself"
            raise ValueError(message)
        target = self._document
        for part in [each.replace("~1", "/").replace("~0", "~") for each in place[1:].split("/")[1:]]:
            if not isinstance(target, dict) or part not in target:
                message = f"the reference {place[:80]!r} leads to nothing"
                raise ValueError(message)
            target = target[part]
        return self.expand(target, depth + 1, (*inside, place))


def document_findings(reader: Node, writer: Node) -> list[str]:
    """Return why a document of `writer` may not be one of `reader`; empty if each of them certainly is."""
    return list(_compare(reader, writer, ""))


def _compare(reader: Node, writer: Node, path: str) -> Iterator[str]:
    if reader is True or writer is False or _same(reader, writer):
        return
    at = path or "/"
    if isinstance(reader, bool):
        yield f"no value is allowed at {at} any more"
        return
    writer = {} if isinstance(writer, bool) else writer
    unknown = sorted(_not_compared(reader, writer))
    if unknown:
        yield f"{', '.join(unknown)} at {at} cannot be compared"
    elif "enum" in writer or "const" in writer:
        yield from _compare_values(reader, writer, at)
    elif "enum" in reader or "const" in reader:
        yield f"only certain values may stand at {at}, where any could"
    else:
        yield from _compare_types(reader, writer, path)


def _same(first: Any, second: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _not_compared(reader: Mapping[str, Any], writer: Mapping[str, Any]) -> set[str]:
    """Return the reader's demands that cannot be proved. A demand of the writer alone only restricts its documents."""
    beside = {"items"} if "prefixItems" in writer else set()
    beside |= {"properties", "additionalProperties"} if "patternProperties" in writer else set()
    same = {name for name in _ALONE if name in writer and _same(reader.get(name), writer[name])}
    return (set(reader) - _COMPARED - same) | (set(reader) & beside)


def _compare_values(reader: Mapping[str, Any], writer: Mapping[str, Any], at: str) -> Iterator[str]:
    listed = [writer["const"]] if "const" in writer else list(writer["enum"])
    reader_validator, writer_validator = Draft202012Validator(reader), Draft202012Validator(writer)
    for value in listed:
        if writer_validator.is_valid(value) and not reader_validator.is_valid(value):
            yield f"{json.dumps(value)[:60]} could stand at {at} and may not any more"


def _types(node: Mapping[str, Any]) -> set[str]:
    declared = node.get("type", list(_TYPES))
    named = {declared} if isinstance(declared, str) else set(declared)
    return named | {"integer"} if "number" in named else named


def _compare_types(reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> Iterator[str]:
    at = path or "/"
    before, now = _types(writer), _types(reader)
    removed = sorted(before - now)
    if removed:
        shown = [name for name in removed if name != "integer" or "number" not in removed]
        yield f"{' or '.join(shown)} could stand at {at}, now only {', '.join(sorted(now))}"
    shared = before & now
    if "integer" in shared:
        yield from _compare_numbers(reader, writer, at)
    for name, (bounds, same) in _OF_A_TYPE.items():
        if name in shared:
            yield from _compare_bounds(reader, writer, bounds, at)
            yield from _compare_same(reader, writer, same, at)
    if "array" in shared:
        if reader.get("uniqueItems", False) and not writer.get("uniqueItems", False):
            yield f"items at {at} must differ from each other now"
        yield from _compare(reader.get("items", True), writer.get("items", True), f"{path}[]")
    if "object" in shared:
        yield from _compare_objects(reader, writer, path)


def _compare_numbers(reader: Mapping[str, Any], writer: Mapping[str, Any], at: str) -> Iterator[str]:
    least, most = (_bound(reader, "minimum", max), _bound(reader, "maximum", min))
    lowest, highest = (_bound(writer, "minimum", max), _bound(writer, "maximum", min))
    if lowest < least or highest > most:
        yield f"numbers at {at} have narrower bounds"


def _bound(node: Mapping[str, Any], name: str, tighter: Callable[..., tuple[float, int]]) -> tuple[float, int]:
    """Return a bound and 0, or if it is excluded 1 (minimum) or -1 (maximum), so that excluded bounds compare as tighter."""
    side = 1 if name == "minimum" else -1
    bounds: list[tuple[float, int]] = [(-side * math.inf, 0)]
    if name in node:
        bounds.append((node[name], 0))
    excluded = f"exclusive{name.capitalize()}"
    if excluded in node:
        bounds.append((node[excluded], side))
    return tighter(bounds)


def _compare_bounds(
    reader: Mapping[str, Any], writer: Mapping[str, Any], names: tuple[str, str], at: str
) -> Iterator[str]:
    low, high = names
    if reader.get(low, 0) > writer.get(low, 0):
        yield f"{low} at {at} is larger"
    if reader.get(high, math.inf) < writer.get(high, math.inf):
        yield f"{high} at {at} is smaller"


def _compare_same(
    reader: Mapping[str, Any], writer: Mapping[str, Any], names: tuple[str, ...], at: str
) -> Iterator[str]:
    for name in names:
        if name in reader and reader[name] != writer.get(name):
            yield f"{name} at {at} is {str(reader[name])[:60]!r}, was {str(writer.get(name, 'any'))[:60]!r}"


def _compare_objects(reader: Mapping[str, Any], writer: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in sorted(set(reader.get("required", ())) - set(writer.get("required", ()))):
        yield f"{path}/{name} is required, and was not"
    reader_properties, writer_properties = reader.get("properties", {}), writer.get("properties", {})
    reader_rest, writer_rest = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
    for name in sorted({*reader_properties, *writer_properties}):
        findings = list(
            _compare(
                reader_properties.get(name, reader_rest), writer_properties.get(name, writer_rest), f"{path}/{name}"
            )
        )
        if findings and name not in writer_properties:
            yield f"{path}/{name} is new, but the old schema allowed any value there (additionalProperties)"
        else:
            yield from findings
    yield from _compare(reader_rest, writer_rest, f"{path}/*")
