"""The changes of pinning a compiled Protobuf message, and the objections to it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rivertwice.schemas.proto_compatibility import read_proto_findings
from rivertwice.schemas.proto_schema import compiled_proto, parse_proto, proto_findings


@dataclass(frozen=True)
class PinPlan:
    """The result of pinning.

    Attributes:
        message: full name. text: text of the file, formatted for reviews.
        changed: whether it differs from the pinned one.
        findings: why it cannot be pinned: missing fields, or records of the pinned message that it could not read.
    """

    message: str
    text: str
    changed: bool
    findings: tuple[str, ...]


def plan_pin(data: bytes, message: str | None, fields: Mapping[str, str], before: bytes | None, where: str) -> PinPlan:
    """Return the result of pinning a message.

    Args:
        data: output of `protoc --include_imports --descriptor_set_out`.
        message: full name; None: the only message of the compiled file.
        fields: the definition's fields and their SQL types.
        before: the pinned file now.
        where: the file, for messages.

    Raises:
        DefinitionError: it is no such file, or has no such message.
    """
    new = compiled_proto(data, message, where)
    findings = proto_findings(new, fields)
    old = None if before is None else parse_proto(before, "what is pinned")
    if old is not None:
        findings += [
            f"cannot read the records that were pinned for before: {finding}"
            for finding in read_proto_findings(new, old)
        ]
    text = json.dumps(json.loads(new.text), sort_keys=True, indent=2) + "\n"
    return PinPlan(new.message, text, old is None or old.text != new.text, tuple(findings))
