"""What pinning a compiled Protobuf message would change, and what stands against it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from rivertwice.schemas.proto_compatibility import read_proto_findings
from rivertwice.schemas.proto_schema import compiled_proto, parse_proto, proto_findings


@dataclass(frozen=True)
class PinPlan:
    """What to pin.

    Attributes:
        message: full name. text: of the file, laid out for reviews.
        changed: it is not what is pinned already.
        findings: why it cannot be pinned: fields that it cannot give, records pinned before that it could not read.
    """

    message: str
    text: str
    changed: bool
    findings: tuple[str, ...]


def plan_pin(data: bytes, message: str | None, fields: Mapping[str, str], before: bytes | None, where: str) -> PinPlan:
    """Return what pinning a message means.

    Args:
        data: what `protoc --include_imports --descriptor_set_out` wrote.
        message: full name; None: the only one of the file that was compiled.
        fields: the definition's fields and their SQL types.
        before: what is pinned now.
        where: the file, for messages.

    Raises:
        DefinitionError: it is no such file, or has no such message.
    """
    new = compiled_proto(data, message, where)
    found = proto_findings(new, fields)
    old = None if before is None else parse_proto(before, "what is pinned")
    if old is not None:
        found += [
            f"cannot read the records that were pinned for before: {one}" for one in read_proto_findings(new, old)
        ]
    text = json.dumps(json.loads(new.text), sort_keys=True, indent=2) + "\n"
    return PinPlan(new.message, text, old is None or old.text != new.text, tuple(found))
