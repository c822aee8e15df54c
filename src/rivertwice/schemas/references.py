"""A schema and those it refers to, as one schema that needs no registry. Pure.

In a registry a schema may name parts that other subjects hold. What is pinned beside a definition must decode without a registry, so
the parts are put into it: Avro's by name, where each is used first; JSON Schema's below `$defs`; Protobuf's files as `protoc
--include_imports` writes them.
"""

from __future__ import annotations

import base64
import binascii
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from avro.errors import AvroException, IgnoredLogicalType
from avro.name import Names
from avro.schema import make_avsc_object
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

from rivertwice.errors import RequestError

_KNOWN = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}
"""Protobuf's own files, which every compiler brings along."""


@dataclass(frozen=True)
class Part:
    """A schema that another one refers to.

    Attributes:
        name: by which it is referred to: a full name (Avro), an address (JSON Schema), an import (Protobuf).
        text: its schema; for Protobuf the compiled file in base64.
    """

    name: str
    text: str


def join_avro(text: str, parts: Sequence[Part], where: str) -> str:
    """Return an Avro schema with the types that it refers to; those of earlier parts may be used by later ones.

    Raises:
        RequestError: a part or the schema is none, or a type is lacking or there twice.
    """
    if not parts:
        return text
    names = Names()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IgnoredLogicalType)
            for part in parts:
                make_avsc_object(json.loads(part.text), names)
            return json.dumps(make_avsc_object(json.loads(text), names).to_json())
    except (ValueError, AvroException, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise _refused(where, parts, error) from None


def join_json(text: str, parts: Sequence[Part], where: str) -> str:
    """Return a JSON Schema with the documents that it refers to below its `$defs`.

    Raises:
        RequestError: a part or the schema is no JSON.
    """
    if not parts:
        return text
    places = {part.name: f"referred-{number}" for number, part in enumerate(parts, start=1)}
    try:
        document = json.loads(text)
        others = {
            places[part.name]: _moved(json.loads(part.text), f"#/$defs/{places[part.name]}", places) for part in parts
        }
        joined = _moved(document, "#", places)
        if not isinstance(joined, dict) or not isinstance(joined.get("$defs", {}), dict):
            message = "it is no object"
            raise ValueError(message)
    except (ValueError, RecursionError) as error:
        raise _refused(where, parts, error) from None
    return json.dumps({**joined, "$defs": {**joined.get("$defs", {}), **others}})


def _moved(node: Any, root: str, places: Mapping[str, str]) -> Any:
    """Return a document whose references fit where it lies now: `root` for its own, `$defs` for those to other documents."""
    if isinstance(node, list):
        return [_moved(each, root, places) for each in node]
    if not isinstance(node, dict):
        return node
    moved = {key: _moved(value, root, places) for key, value in node.items()}
    target = node.get("$ref")
    if isinstance(target, str):
        document, _, pointer = target.partition("#")
        if not document:
            moved["$ref"] = root + pointer
        elif document in places:
            moved["$ref"] = f"#/$defs/{places[document]}{pointer}"
    if root != "#":
        moved.pop("$id", None)  # it would change what references within are relative to
    return moved


def join_proto(text: str, parts: Sequence[Part], name: str, where: str) -> bytes:
    """Return a compiled Protobuf file with all that it imports, as `protoc --include_imports --descriptor_set_out` writes them.

    Args:
        text: the compiled file in base64.
        parts: what it imports, in an order in which each comes after its own imports.
        name: what the file is called in the result, where it is the last one.
        where: for messages.

    Raises:
        RequestError: a file is not compiled, or an import is lacking.
    """
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    try:
        for part in parts:
            _put(files, part.name, part.text)
        _put(files, name, text)
    except (binascii.Error, DecodeError, ValueError, KeyError) as error:
        raise _refused(where, parts, error) from None
    return bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString())


def _put(files: dict[str, descriptor_pb2.FileDescriptorProto], name: str, text: str) -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    file.name = name
    for needed in file.dependency:
        if needed not in files:
            _put_known(files, needed)
    files[name] = file


def _put_known(files: dict[str, descriptor_pb2.FileDescriptorProto], name: str) -> None:
    if name not in _KNOWN:
        message = f"{name[:120]} is imported, and is no reference of it"
        raise ValueError(message)
    for needed in _KNOWN[name].dependencies:
        if needed.name not in files:
            _put_known(files, needed.name)
    file = descriptor_pb2.FileDescriptorProto()
    _KNOWN[name].CopyToProto(file)
    files[name] = file


def _refused(where: str, parts: Sequence[Part], error: Exception) -> RequestError:
    named = ", ".join(part.name[:80] for part in parts[:6])
    return RequestError(
        f"{where} and what it refers to ({named}) make no schema ({type(error).__name__}: {str(error)[:200]}), so nothing of it is used; "
        "look at the references in the registry"
    )
