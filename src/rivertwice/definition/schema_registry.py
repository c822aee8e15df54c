"""Sources of schemas: the protocol of a registry, which one an address means, samples of a topic's records."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from avro.errors import AvroException
from avro.io import BinaryDecoder, DatumReader

from rivertwice.core import ConfigError, RequestError, Row, to_iso
from rivertwice.definition.avro import AvroSchema, Compatibility, parse_avro, read_findings, rule_findings
from rivertwice.definition.json_schema import document_findings, parse_json_schema
from rivertwice.definition.pinned_files import SUBJECT

URL_ENV = "RIVERTWICE_SCHEMA_REGISTRY"
SchemaFormat = Literal["avro", "json"]


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a subject.

    Attributes:
        id: the id in the records.
    """

    subject: str
    version: int
    id: int
    kind: SchemaFormat
    text: str


class Registry(Protocol):
    """Subjects, their versions in order, and the rule for new versions."""

    @property
    def place(self) -> str:
        """Its location, for messages; never a secret."""
        ...

    def subjects(self) -> list[str]:
        """Return the subjects, sorted."""
        ...

    def versions(self, subject: str) -> list[SchemaVersion]:
        """Return the versions, oldest first; none for an unknown subject."""
        ...

    def rule(self, subject: str) -> Compatibility:
        """Return the rule of compatibility."""
        ...

    def by_id(self, schema_id: int) -> SchemaVersion:
        """Return a version with this id."""
        ...

    def compiled(self, subject: str, version: int | None = None) -> bytes:
        """Return a Protobuf subject's compiled file with its imports; without a version its newest."""
        ...

    def register(self, subject: str, kind: SchemaFormat, text: str, rule: Compatibility | None) -> SchemaVersion:
        """Add a version unless the same schema is one already."""
        ...


def require_subject(subject: str) -> str:
    """Return `subject` if it can be a folder's name and part of an address.

    Raises:
        ConfigError: it cannot.
    """
    if not SUBJECT.match(subject):
        message = (
            f"{subject[:80]!r} cannot name a subject; subjects start with a letter or digit and hold at most 128 of A-Z, "
            "a-z, 0-9, '.', '_' and '-', for instance orders-value"
        )
        raise ConfigError(message)
    return subject


def check_new(
    registry: Registry, subject: str, kind: SchemaFormat, text: str, rule: Compatibility | None = None
) -> list[str]:
    """Return the objections to a new version: by `rule`, else by the subject's own rule.

    Raises:
        DefinitionError: it is not a schema, or no JSON Schema that can be compared.
        RequestError: the subject holds schemas of another kind.
    """
    versions = registry.versions(subject)
    if versions and versions[0].kind != kind:
        message = f"{subject} holds {versions[0].kind} schemas, not {kind}; register it under a separate subject"
        raise RequestError(message)
    rule = rule or registry.rule(subject)
    where, before = f"the new schema of {subject}", [(each, f"{subject} version {each.version}") for each in versions]
    if kind == "avro":
        new = parse_avro(text, where)
        return rule_findings(
            rule, new, {each.version: parse_avro(each.text, name) for each, name in before}, read_findings
        )
    if rule == "none":
        return []
    node = parse_json_schema(text, where)
    nodes = {each.version: parse_json_schema(each.text, name) for each, name in before}
    return rule_findings(rule, node, nodes, document_findings)


def refusal(subject: str, rule: Compatibility, findings: list[str]) -> str:
    """Return the message that refuses a new version."""
    return (
        f"the new schema of {subject} breaks its rule {rule!r}, which refuses it: {'; '.join(findings[:4])}; give "
        "new fields a default, keep types, or use a separate subject"
    )


# Which registry a project uses: the one at an address, or the folder `schemas/`.


def open_registry(project: Path, env: Mapping[str, str] | None = None) -> Registry:
    """Return the registry at RIVERTWICE_SCHEMA_REGISTRY; without it the folder `schemas/` of the project.

    Raises:
        ConfigError: the address is not allowed.
    """
    from rivertwice.definition.confluent import ConfluentRegistry
    from rivertwice.definition.schema_folder import FolderRegistry

    env = os.environ if env is None else env
    url = env.get(URL_ENV)
    return ConfluentRegistry.from_env(url, env) if url else FolderRegistry(project / "schemas")


# Decode a few Avro records in Python, to look at them. Pipelines decode with Spark.


def decode_avro(schema: AvroSchema, body: bytes) -> Row | None:
    """Return a record's fields, instants as ISO 8601; None if the bytes are not a record of the schema."""
    try:
        value = DatumReader(schema.record).read(BinaryDecoder(io.BytesIO(body)))
    except (AvroException, ValueError, OverflowError, EOFError, IndexError, TypeError):
        return None
    if not isinstance(value, dict):
        return None
    return {name: to_iso(each) if isinstance(each, datetime) else each for name, each in value.items()}
