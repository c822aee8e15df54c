"""A Confluent Schema Registry, read by Confluent's own client. An answer is treated as untrusted data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryError
from confluent_kafka.schema_registry.error import OAuthTokenError

from rivertwice.errors import ConfigError, RequestError, ServiceError
from rivertwice.schemas.compatibility import RULES, Compatibility
from rivertwice.schemas.pinned_files import MAX_BYTES, MAX_ID
from rivertwice.schemas.references import Part, join_avro, join_json, join_proto
from rivertwice.schemas.registry import URL_ENV, SchemaFormat, SchemaVersion, check_new, refusal, require_subject
from rivertwice.schemas.registry_client import TransportError, registry_client
from rivertwice.schemas.registry_login import PASSWORD_ENV, USER_ENV, RegistryLogin
from rivertwice.web import AnswerError

__all__ = ["PASSWORD_ENV", "USER_ENV", "ConfluentRegistry"]
MAX_LISTED = 1_000
MAX_PARTS = 100
MAX_DEPTH = 16
_NOT_FOUND, _SERVER_ERROR = 404, 500
_KINDS: dict[str, SchemaFormat] = {"AVRO": "avro", "JSON": "json"}
_STRANGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_T = TypeVar("_T")


class ConfluentRegistry:
    """A registry at an address. Redirects are not followed and answers are limited in size."""

    def __init__(self, url: str, login: RegistryLogin | None = None) -> None:
        """Use the registry at `url`; nothing is sent yet.

        Raises:
            ConfigError: the address carries secrets or would send them unprotected, or a certificate cannot be read.
        """
        self._url = url.rstrip("/")
        options = (login or RegistryLogin()).options(url)
        try:
            self._client = registry_client(self._url, options)
        except (OSError, ValueError) as error:
            message = (
                f"the schema registry's client cannot be set up ({error}); check {URL_ENV}_CA and {URL_ENV}_CERTIFICATE"
            )
            raise ConfigError(message) from None

    @classmethod
    def from_env(cls, url: str, env: Mapping[str, str]) -> ConfluentRegistry:
        """Return the registry at `url` with the environment's credentials."""
        return cls(url, RegistryLogin.from_env(env))

    @property
    def place(self) -> str:
        """The address."""
        return self._url

    def subjects(self) -> list[str]:
        """Return the subjects that have an allowed name, sorted."""
        answer: Any = self._ask("/subjects", self._client.get_subjects)
        if not isinstance(answer, list):
            self._strange("/subjects")
        return sorted(name for name in answer if isinstance(name, str))[:MAX_LISTED]

    def versions(self, subject: str) -> list[SchemaVersion]:
        """Return the versions, oldest first; none for an unknown subject."""
        return [self._version(subject, number) for number in self._numbers(subject)[-MAX_LISTED:]]

    def rule(self, subject: str) -> Compatibility:
        """Return the registry's rule; a transitive rule counts as its plain form, because every version is compared here."""
        path = f"/config/{require_subject(subject)}"
        level = self._ask(path, lambda: self._client.get_compatibility(subject), absent="")
        level = level or self._ask("/config", self._client.get_compatibility, absent="BACKWARD")
        name = str(level).lower().removesuffix("_transitive")
        return next((rule for rule in RULES if rule == name), None) or self._strange(path)

    def by_id(self, schema_id: int) -> SchemaVersion:
        """Return the version with this id; the registry does not report its subject."""
        path = f"/schemas/ids/{int(schema_id)}"
        answer = self._ask(path, lambda: self._client.get_schema(int(schema_id)))
        return SchemaVersion("", 0, int(schema_id), self._kind(answer, path), self._text(answer, path))

    def compiled(self, subject: str, version: int | None = None) -> bytes:
        """Return a Protobuf subject's file with its imports, compiled; without a version its newest.

        Raises:
            RequestError: there is none, or it is no Protobuf.
        """
        number = version or next(iter(reversed(self._numbers(subject))), 1)
        path = f"/subjects/{require_subject(subject)}/versions/{number}"
        found = self._ask(path, lambda: self._client.get_version(subject, number, fmt="serialized")).schema
        if found.schema_type != "PROTOBUF":
            message = f"{self.place}{path} is a schema of type {str(found.schema_type)[:40]!r}, not PROTOBUF; `rivertwice schema refresh` pins Avro"
            raise RequestError(message)
        parts = self._parts(found.references, path, "serialized")
        return join_proto(self._schema_text(found, path), parts, f"{subject}.proto", f"{self.place}{path}")

    def register(self, subject: str, kind: SchemaFormat, text: str, rule: Compatibility | None) -> SchemaVersion:
        """Ask the registry to add a version; it applies its own rule.

        Raises:
            RequestError: it refused, or a rule was given, which only the registry sets.
        """
        if rule is not None:
            message = f"--rule is for the project's own registry; the rule of {subject} is set in {self.place} itself"
            raise RequestError(message)
        path = f"/subjects/{require_subject(subject)}/versions"
        findings = check_new(self, subject, kind, text) if kind == "avro" else []  # for JSON the registry judges
        if findings:
            raise RequestError(refusal(subject, self.rule(subject), findings))
        self._ask(path, lambda: self._client.register_schema(subject, Schema(text, kind.upper())))
        same = [each for each in self.versions(subject) if json.loads(each.text) == json.loads(text)]
        return same[-1] if same else self._strange(path)

    def _numbers(self, subject: str) -> list[int]:
        path = f"/subjects/{require_subject(subject)}/versions"
        numbers: Any = self._ask(path, lambda: self._client.get_versions(subject), absent=[])
        if not isinstance(numbers, list) or not all(type(number) is int and number > 0 for number in numbers):
            self._strange(path)
        if len(set(numbers)) != len(numbers):
            self._strange(path)
        return sorted(numbers)

    def _version(self, subject: str, number: int) -> SchemaVersion:
        path = f"/subjects/{subject}/versions/{number}"
        answer = self._ask(path, lambda: self._client.get_version(subject, number))
        schema_id: Any = answer.schema_id
        if (answer.subject, answer.version) != (subject, number) or type(schema_id) is not int:
            self._strange(path)
        if not 0 < schema_id <= MAX_ID:
            self._strange(path)
        return SchemaVersion(
            subject, number, schema_id, self._kind(answer.schema, path), self._text(answer.schema, path)
        )

    def _kind(self, schema: Schema, path: str) -> SchemaFormat:
        name = str(schema.schema_type or "AVRO")
        if name not in _KINDS:
            message = (
                f"{self.place}{path} is a schema of type {name[:40]!r}, which is not decoded by versions; use Avro or JSON, or pin a Protobuf "
                "message with `rivertwice schema pin PIPELINE --subject SUBJECT`"
            )
            raise RequestError(message)
        return _KINDS[name]

    def _text(self, schema: Schema, path: str) -> str:
        """Return a schema with all that it refers to."""
        text, where = self._schema_text(schema, path), f"{self.place}{path}"
        parts = self._parts(schema.references, path)
        return join_json(text, parts, where) if schema.schema_type == "JSON" else join_avro(text, parts, where)

    def _schema_text(self, schema: Schema, path: str) -> str:
        if not isinstance(schema.schema_str, str) or len(schema.schema_str) > MAX_BYTES:
            self._strange(path)
        return schema.schema_str

    def _parts(self, references: Sequence[Any] | None, path: str, form: str | None = None) -> list[Part]:
        """Return what a schema refers to, also through others; each comes after what it refers to itself."""
        parts: dict[str, tuple[Part, tuple[Any, Any]]] = {}
        self._gather(references or (), path, form, parts, 0)
        return [part for part, _ in parts.values()]

    def _gather(
        self,
        references: Sequence[Any],
        path: str,
        form: str | None,
        parts: dict[str, tuple[Part, tuple[Any, Any]]],
        depth: int,
    ) -> None:
        for reference in references:
            name, origin = reference.name, (reference.subject, reference.version)
            if not isinstance(name, str) or not isinstance(origin[0], str) or type(origin[1]) is not int:
                self._strange(path)
            if name in parts and parts[name][1] == origin:
                continue
            if name in parts or depth == MAX_DEPTH or len(parts) == MAX_PARTS:
                message = (
                    f"{self.place}{path} refers to {name[:80]!r} in two versions, deeper than {MAX_DEPTH} levels, or to more than {MAX_PARTS} "
                    "schemas, so nothing of it is used; register it with fewer references"
                )
                raise RequestError(message)
            where = f"/subjects/{origin[0][:128]}/versions/{origin[1]}"
            found = self._ask(where, lambda origin=origin: self._client.get_version(*origin, fmt=form)).schema  # type: ignore[misc]
            self._gather(found.references or (), where, form, parts, depth + 1)
            parts[name] = Part(name, self._schema_text(found, where)), origin

    def _ask(self, path: str, call: Callable[[], _T], absent: Any = None) -> _T:
        where = f"{self.place}{path}"
        try:
            return call()
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND and absent is not None:
                return absent  # type: ignore[no-any-return]
            if error.http_status_code >= _SERVER_ERROR:
                message = (
                    f"the schema registry answered {where} with {error.http_status_code}; try again, or see its log"
                )
                raise ServiceError(message) from None
            message = (
                f"the schema registry refused {where} with {error.http_status_code}: {str(error.error_message)[:300]}; check the name and "
                f"{USER_ENV}"
            )
            raise RequestError(message) from None
        except AnswerError as error:
            message = f"the schema registry's answer to {where} is not used: {error}; is it a registry? check {URL_ENV}"
            raise RequestError(message) from None
        except OAuthTokenError as error:
            message = (
                f"no token came for the schema registry ({str(error)[:300]}), so it was not asked; check {URL_ENV}_TOKEN_ENDPOINT, {USER_ENV} and "
                f"{PASSWORD_ENV}"
            )
            raise ServiceError(message) from None
        except TransportError as error:
            message = f"the schema registry did not answer ({where}: {error}); nothing was changed here; try again"
            raise ServiceError(message) from None
        except _STRANGE:
            self._strange(path)

    def _strange(self, path: str) -> NoReturn:
        message = (
            f"{self.place}{path} did not answer as a schema registry does, so nothing of it is used; check {URL_ENV}"
        )
        raise RequestError(message)
