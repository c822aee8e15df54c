"""Where in a YAML file a finding is, and the name that was probably meant. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rivertwice.core import compose_yaml, nearest

_REMEDIES = {
    "extra_forbidden": "remove it or correct its name; `rivertwice docs definitions` lists the fields",
    "missing": "add it; `rivertwice docs definitions` shows an example",
    "union_tag_invalid": "use one of those it names; `rivertwice docs definitions` explains them",
    "union_tag_not_found": "say which kind it is; `rivertwice docs definitions` lists the kinds",
}
_PYDANTIC = (  # the library's words, and ours
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "it must be a whole number"),
    ("Input should be a valid ", "it must be a "),
    ("Input should be greater than or equal to ", "it must be at least "),
    ("Input should be less than or equal to ", "it must be at most "),
    ("Input should be greater than ", "it must be more than "),
    ("Input should be less than ", "it must be less than "),
    ("Input should be ", "it must be "),
)
_QUOTED = re.compile(r"'([^']{1,80})'")
_WORD = re.compile(r"[a-z_]+")


def place(mark: yaml.Mark) -> str:
    """Return a place as messages write it; lines and columns count from 1."""
    return f"line {mark.line + 1}, column {mark.column + 1}"


def describe_yaml_error(error: yaml.YAMLError) -> str:
    """Return YAML's complaint in one line that begins with its place."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    parts = [str(part) for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
    text = ", ".join(parts) or " ".join(str(error).split())
    return f"{place(mark)}: {text}" if mark is not None else text


def find_node(root: yaml.Node | None, path: Sequence[Any]) -> tuple[yaml.Node | None, yaml.Mark | None]:
    """Return the value at a path of keys and indexes, and where its key (of a list's item: the item) begins.

    Parts that the file does not have are skipped: pydantic puts the tag of a union between two keys. The last part that is found
    counts, so a key that is missing has the place of the field that should hold it.
    """
    node, mark = root, None
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is not None:
                node, mark = pair[1], pair[0].start_mark
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            mark = node.start_mark
    return node, mark


def replace_value(text: str, path: Sequence[Any], value: str) -> str:
    """Return a YAML text with another value at a path; comments, order and all other text stay.

    It is the same text if it has no plain value there, or if it could not be read any more.
    """
    node, _ = find_node(compose_yaml(text), path)
    if not isinstance(node, yaml.ScalarNode):
        return text
    quote = node.style if node.style in ("'", '"') else ""
    changed = f"{text[: node.start_mark.index]}{quote}{value}{quote}{text[node.end_mark.index :]}"
    try:
        compose_yaml(changed)
    except yaml.YAMLError:  # the value had the name of an alias, or lines of its own
        return text
    return changed


def place_of_finding(root: yaml.Node | None, path: Sequence[Any], text: str, *, of_key: bool = False) -> str:
    """Return where a finding is, as the beginning of a sentence; empty if the file has no place for it.

    Args:
        path: of the field, as pydantic gives it.
        text: what is wrong. Of a finding about several fields, what it quotes, or else the field that it names, is the place.
        of_key: the field's name is the place, not its value.
    """
    node, mark = find_node(root, path)
    if of_key:
        pass
    elif isinstance(node, yaml.MappingNode):
        named = _quoted_value(node, _QUOTED.findall(text)) or _named_key(node, text)
        mark = named or mark
    elif isinstance(node, yaml.ScalarNode) and node.value:
        mark = node.start_mark
    if mark is None and root is not None:
        mark = root.start_mark
    return "" if mark is None else f"{place(mark)}: "


def _quoted_value(node: yaml.Node, quoted: Sequence[str]) -> yaml.Mark | None:
    """Return where the first quoted text is a value, an item or else a key below a node."""
    for text in quoted[:1]:
        for is_key in (False, True):
            for each in _scalars(node, keys=is_key):
                if each.value == text:
                    return each.start_mark
    return None


def _scalars(node: yaml.Node, *, keys: bool) -> list[yaml.ScalarNode]:
    """Return the values below a node, or the keys."""
    if isinstance(node, yaml.ScalarNode):
        return [] if keys else [node]
    is_mapping = isinstance(node, yaml.MappingNode)
    own = [key for key, _ in node.value] if keys and is_mapping else []
    children = [value for _, value in node.value] if is_mapping else list(node.value)
    return [*own, *(each for child in children for each in _scalars(child, keys=keys))]


def _named_key(node: yaml.MappingNode, text: str) -> yaml.Mark | None:
    """Return where the first key that a text names begins."""
    marks = {str(key.value): key.start_mark for key, _ in node.value}
    return next((marks[word] for word in _WORD.findall(text) if word in marks), None)


@functools.cache
def _schema_of(model: type[BaseModel]) -> Mapping[str, Any]:
    return model.model_json_schema(by_alias=True)


def fields_at(model: type[BaseModel], path: Sequence[Any]) -> list[str]:
    """Return the names of the fields that a file may have at a path of pydantic; none if any name is allowed there."""
    root = _schema_of(model)
    part = _resolved(root, root)
    for step in path:
        kinds = part.get("discriminator", {}).get("mapping", {})
        if step in kinds:
            part = _resolved(root, {"$ref": kinds[step]})
            continue
        below = part.get("properties", {}).get(step) or part.get("additionalProperties") or part.get("items")
        if not isinstance(below, Mapping):
            return []
        part = _resolved(root, below)
    return sorted(part.get("properties", {}))


def _resolved(root: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in part:
        part = root["$defs"][str(part["$ref"]).rpartition("/")[2]]
    return part


def nearest_field(model: type[BaseModel], path: Sequence[Any]) -> str | None:
    """Return the field that an unknown one at a path was probably meant to be."""
    known = fields_at(model, path[:-1])
    return nearest(str(path[-1]), known) if known else None


def nearest_value(given: Any, finding: Mapping[str, Any]) -> str | None:
    """Return the allowed value that a wrong one was probably meant to be."""
    context = finding.get("ctx") or {}
    allowed = context.get("expected") or context.get("expected_tags")
    wrong = context.get("tag", given)
    if not isinstance(allowed, str) or not isinstance(wrong, str):
        return None
    return nearest(wrong, _QUOTED.findall(allowed))


def describe(error: ValidationError, path: str, text: str | bytes, model: type[BaseModel]) -> str:
    """Return pydantic's findings as lines that name file, line, column, field, value and remedy.

    Args:
        text: the file's content, which was parsed before.
    """
    root = compose_yaml(text)
    # A name that is written wrong is an unknown field and a missing one: the first has the remedy.
    findings = sorted(error.errors(), key=lambda finding: finding["type"] != "extra_forbidden")
    close = [nearest_field(model, each["loc"]) for each in findings if each["type"] == "extra_forbidden"]
    meant = {(*each["loc"][:-1], name) for each, name in zip(findings, close, strict=False)}
    shown = [each for each in findings if each["type"] != "missing" or each["loc"] not in meant]
    return "\n".join(f"{path}: {_describe(finding, root, model)}" for finding in shown)


def _in_words(text: str) -> str:
    for theirs, ours in _PYDANTIC:
        if text.startswith(theirs):
            return ours + text.removeprefix(theirs)
    return text


def _describe(finding: Mapping[str, Any], root: yaml.Node | None, model: type[BaseModel]) -> str:
    kind, field_path = finding["type"], finding["loc"]
    field = ".".join(str(part) for part in field_path)
    text = _in_words(finding["msg"])
    at = place_of_finding(root, field_path, text, of_key=kind in ("extra_forbidden", "missing"))
    remedy = _REMEDIES.get(kind)
    if kind == "missing":
        return f"{at}{field} is missing; {remedy}"
    if finding["input"] is None:
        return f"{at}{field} has no value; write one, or remove the field if it may be left out (`rivertwice docs definitions`)"
    close = nearest_field(model, field_path) if kind == "extra_forbidden" else nearest_value(finding["input"], finding)
    meant = "" if close is None else f"; did you mean {close}?"
    if kind == "extra_forbidden":
        return f"{at}{field} is not a field{meant or f'; {remedy}'}"
    end = meant or (f"; {remedy}" if remedy else "")
    if isinstance(finding["input"], dict | list):  # a section: the sentence names what is wrong in it
        return f"{at}{field + ': ' if field_path else ''}{text}{end}"
    value = repr(finding["input"])
    if len(value) > 80:
        value = value[:77] + "..."
    return f"{at}{field} = {value}: {text}{end}"
