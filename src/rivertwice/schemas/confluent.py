"""The part of Confluent Schema Registry's protocol that a reader needs. An answer is treated as untrusted data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

import httpx

from rivertwice.errors import ConfigError, RequestError, ServiceError
from rivertwice.schemas.compatibility import RULES, Compatibility
from rivertwice.schemas.pins import MAX_ID
from rivertwice.schemas.registry import URL_ENV, SchemaFormat, SchemaVersion, check_new, refusal, require_subject
from rivertwice.web import AnswerError, ask, web_client

USER_ENV = "RIVERTWICE_SCHEMA_REGISTRY_USER"
PASSWORD_ENV = "RIVERTWICE_SCHEMA_REGISTRY_PASSWORD"  # noqa: S105 (a variable's name)
MAX_ANSWER = 1_048_576
MAX_LISTED = 1_000
_TIMEOUT_S = 10.0
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_KINDS: dict[str, SchemaFormat] = {"AVRO": "avro", "JSON": "json"}


class ConfluentRegistry:
    """A registry at an address. Redirects are not followed and answers are limited in size."""

    def __init__(
        self, url: str, *, auth: tuple[str, str] | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Use the registry at `url`.

        Raises:
            ConfigError: the address carries secrets or would send them unprotected.
        """
        try:
            parts = urlsplit(str(httpx.URL(url)))
            _ = parts.port  # raises if it is no port
        except (ValueError, httpx.InvalidURL):
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            message = f"{URL_ENV} is no http(s) address of a schema registry; write https://HOST:PORT"
            raise ConfigError(message)
        if parts.username or parts.password:
            message = (
                f"{URL_ENV} carries a user or password, which would end up in messages; use {USER_ENV}, {PASSWORD_ENV}"
            )
            raise ConfigError(message)
        if auth and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            message = f"{URL_ENV} is plain http to {parts.hostname}: the password would travel unprotected; use https"
            raise ConfigError(message)
        self._url = url.rstrip("/")
        self._client = web_client(timeout_s=_TIMEOUT_S, headers={"Accept": _ACCEPT}, auth=auth, transport=transport)

    @classmethod
    def from_env(cls, url: str, env: Mapping[str, str]) -> ConfluentRegistry:
        """Return the registry at `url` with the environment's credentials."""
        user, password = env.get(USER_ENV), env.get(PASSWORD_ENV)
        return cls(url, auth=(user, password or "") if user else None)

    @property
    def place(self) -> str:
        """The address."""
        return self._url

    def subjects(self) -> list[str]:
        """Return the subjects that have an allowed name, sorted."""
        answer = self._get("/subjects")
        names = (
            [name for name in answer if isinstance(name, str)]
            if isinstance(answer, list)
            else self._strange("/subjects")
        )
        return sorted(names)[:MAX_LISTED]

    def versions(self, subject: str) -> list[SchemaVersion]:
        """Return the versions, oldest first; none for an unknown subject."""
        path = f"/subjects/{quote(require_subject(subject), safe='')}/versions"
        numbers = self._get(path, absent=[])
        if not isinstance(numbers, list) or not all(type(number) is int and number > 0 for number in numbers):
            self._strange(path)
        return [self._version(subject, number) for number in sorted(numbers)[-MAX_LISTED:]]

    def rule(self, subject: str) -> Compatibility:
        """Return the registry's rule; a transitive rule counts as its plain form, because every version is compared here."""
        path = f"/config/{quote(require_subject(subject), safe='')}?defaultToGlobal=true"
        answer = self._get(path, absent={"compatibilityLevel": "BACKWARD"})
        level = str(answer.get("compatibilityLevel", "")) if isinstance(answer, dict) else ""
        name = level.lower().removesuffix("_transitive")
        return next((rule for rule in RULES if rule == name), None) or self._strange(path)

    def by_id(self, schema_id: int) -> SchemaVersion:
        """Return the version with this id; the registry does not report its subject."""
        path = f"/schemas/ids/{int(schema_id)}"
        answer = self._get(path)
        return SchemaVersion("", 0, int(schema_id), self._kind(answer, path), self._text(answer, path))

    def register(self, subject: str, kind: SchemaFormat, text: str, rule: Compatibility | None) -> SchemaVersion:
        """Ask the registry to add a version; it applies its own rule.

        Raises:
            RequestError: it refused, or a rule was given, which only the registry sets.
        """
        if rule is not None:
            message = f"--rule is for the project's own registry; the rule of {subject} is set in {self.place} itself"
            raise RequestError(message)
        path = f"/subjects/{quote(require_subject(subject), safe='')}/versions"
        findings = check_new(self, subject, kind, text) if kind == "avro" else []  # for JSON the registry judges
        if findings:
            raise RequestError(refusal(subject, self.rule(subject), findings))
        self._ask("POST", path, {"schema": text, "schemaType": kind.upper()})
        same = [each for each in self.versions(subject) if json.loads(each.text) == json.loads(text)]
        return same[-1] if same else self._strange(path)

    def _version(self, subject: str, number: int) -> SchemaVersion:
        path = f"/subjects/{quote(subject, safe='')}/versions/{number}"
        answer = self._get(path)
        identity = (answer.get("subject"), answer.get("version")) if isinstance(answer, dict) else None
        schema_id = answer.get("id") if isinstance(answer, dict) else None
        if identity != (subject, number) or type(schema_id) is not int or not 0 < schema_id <= MAX_ID:
            self._strange(path)
        return SchemaVersion(subject, number, schema_id, self._kind(answer, path), self._text(answer, path))

    def _kind(self, answer: Any, path: str) -> SchemaFormat:
        name = str(answer.get("schemaType") or "AVRO") if isinstance(answer, dict) else ""
        if name not in _KINDS:
            message = (
                f"{self.place}{path} is a schema of type {name[:40]!r}, which is not decoded here; use Avro or JSON"
            )
            raise RequestError(message)
        return _KINDS[name]

    def _text(self, answer: Any, path: str) -> str:
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            self._strange(path)
        if answer.get("references"):
            message = f"{self.place}{path} refers to other schemas, which are not followed; register it in one piece"
            raise RequestError(message)
        return str(answer["schema"])

    def _get(self, path: str, absent: Any = None) -> Any:
        return self._ask("GET", path, None, absent=absent)

    def _ask(self, method: str, path: str, body: Any, absent: Any = None) -> Any:
        where = f"{self.place}{path}"
        try:
            answer = ask(self._client, method, where, limit=MAX_ANSWER, json=body)
        except AnswerError as error:
            message = f"the schema registry's answer to {where} is not used: {error}; is it a registry? check {URL_ENV}"
            raise RequestError(message) from None
        except httpx.HTTPError as error:
            message = f"the schema registry did not answer ({where}: {error}); nothing was changed here; try again"
            raise ServiceError(message) from None
        if answer.status == httpx.codes.NOT_FOUND and absent is not None:
            return absent
        if answer.status >= httpx.codes.INTERNAL_SERVER_ERROR:
            message = f"the schema registry answered {where} with {answer.status}; try again, or see its log"
            raise ServiceError(message)
        if answer.status != httpx.codes.OK:
            detail = answer.body[:300].decode(errors="replace")
            message = (
                f"the schema registry refused {where} with {answer.status}: {detail}; check the name and {USER_ENV}"
            )
            raise RequestError(message)
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            self._strange(path)

    def _strange(self, path: str) -> NoReturn:
        message = (
            f"{self.place}{path} did not answer as a schema registry does, so nothing of it is used; check {URL_ENV}"
        )
        raise RequestError(message)
