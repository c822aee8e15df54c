"""A Confluent Schema Registry, read by Confluent's own client. An answer is treated as untrusted data."""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from avro.errors import AvroException, IgnoredLogicalType
from avro.name import Names
from avro.schema import make_avsc_object
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.error import OAuthTokenError
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

from rivertwice.core import (
    ANSWER_S,
    AnswerError,
    ConfigError,
    RequestError,
    ServiceError,
    is_web_address,
    read_answer,
    within,
)
from rivertwice.definition.avro import RULES, Compatibility
from rivertwice.definition.pinned_files import MAX_BYTES, MAX_ID
from rivertwice.definition.schema_registry import (
    URL_ENV,
    SchemaFormat,
    SchemaVersion,
    check_new,
    refusal,
    require_subject,
)

# A schema and those it refers to, as one schema that needs no registry. Pure.
#
# In a registry a schema may name parts that other subjects hold. What is pinned beside a definition must decode without a registry, so
# the parts are put into it: Avro's by name, where each is used first; JSON Schema's below `$defs`; Protobuf's files as `protoc
# --include_imports` writes them.

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
        RequestError: a part or the schema is not valid JSON.
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
            message = "it is not an object"
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
        message = f"{name[:120]} is imported but is not among its references"
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
        f"{where} and what it refers to ({named}) do not make a valid schema ({type(error).__name__}: {str(error)[:200]}); look "
        "at the references in the registry"
    )


# Confluent's client of a schema registry, with what it lacks: no answer is held that is larger than a registry's can be.

transport: Any = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")
"""What the client was built with: the newer library, if it is there."""
MAX_ANSWER = 1_048_576
TIMEOUT_S = 10.0
_CALLS = {"max.retries": 1, "retries.wait.ms": 200, "retries.max.wait.ms": 500}
TransportError = transport.TransportError
"""No answer came."""


class _Limited(transport.BaseTransport):  # type: ignore[misc]
    """Reads each answer up to a limit of bytes, after unpacking it, and of seconds."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def handle_request(self, request: Any) -> Any:
        request.headers["Accept-Encoding"] = "identity"

        def exchange() -> tuple[Any, bytes]:
            answer = self._inner.handle_request(request)
            try:
                return answer, read_answer(answer, MAX_ANSWER)
            finally:
                answer.close()

        answer, body = within(ANSWER_S, exchange, self._inner.close)
        headers = [pair for pair in answer.headers.items() if pair[0].lower() not in _OF_THE_BODY]
        return transport.Response(answer.status_code, headers=headers, content=body, request=request)

    def close(self) -> None:
        self._inner.close()


_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")


def registry_client(url: str, options: Mapping[str, Any]) -> SchemaRegistryClient:
    """Return a client of the registry at `url`; nothing is sent yet. Redirects are not followed.

    Raises:
        OSError: a certificate cannot be read.
        ValueError: it is none, or the options contradict each other.
    """
    client = SchemaRegistryClient({"url": url, **_CALLS, **options})
    calls = client._rest_client
    calls.session.close()
    limited = _Limited(transport.HTTPTransport(verify=calls.verify))
    calls.session = transport.Client(auth=calls.auth, timeout=TIMEOUT_S, follow_redirects=False, transport=limited)
    return client


# How the client of a schema registry logs in: with a name and a password, with tokens, or with a certificate.

USER_ENV = f"{URL_ENV}_USER"
PASSWORD_ENV = f"{URL_ENV}_PASSWORD"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_OWN_CLUSTER = "own"  # the client sends one with each token; only Confluent Cloud looks at it


@dataclass(frozen=True)
class RegistryLogin:
    """What a registry is shown.

    Attributes:
        user: a name, or with a token endpoint the client's id. password: its password, or the client's secret.
        ca: PEM file of the authorities that may sign the registry's certificate; None: those of the `certifi` package.
        certificate: PEM file with the client's own key and certificate chain.
        token_endpoint: gives a token for id and secret. scope: of the tokens.
        cluster, pool: of Confluent Cloud (`lsrc-...`, `pool-...`).
    """

    user: str | None = None
    password: str = field(default="", repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    token_endpoint: str | None = None
    scope: str = ""
    cluster: str | None = None
    pool: str | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> RegistryLogin:
        """Read RIVERTWICE_SCHEMA_REGISTRY_USER, _PASSWORD, _CA, _CERTIFICATE, _TOKEN_ENDPOINT, _SCOPE, _CLUSTER and _POOL."""

        def text(name: str) -> str | None:
            return env.get(f"{URL_ENV}_{name}") or None

        files = {name: Path(path) for name in ("CA", "CERTIFICATE") if (path := text(name))}
        return cls(
            user=text("USER"),
            password=text("PASSWORD") or "",
            ca=files.get("CA"),
            certificate=files.get("CERTIFICATE"),
            token_endpoint=text("TOKEN_ENDPOINT"),
            scope=text("SCOPE") or "",
            cluster=text("CLUSTER"),
            pool=text("POOL"),
        )

    def options(self, url: str) -> dict[str, str]:
        """Return the options of the client for a registry at `url`.

        Raises:
            ConfigError: the address carries secrets, a secret would travel unprotected, or the settings contradict each other.
        """
        parts = require_address(url, URL_ENV)
        self._check(parts.scheme == "http" and parts.hostname not in _LOOPBACK, str(parts.hostname))
        options: dict[str, str] = {}
        if self.ca is not None:
            options["ssl.ca.location"] = str(self.ca)
        if self.certificate is not None:
            options["ssl.certificate.location"] = str(self.certificate)
        if self.token_endpoint is None:
            return options if self.user is None else options | {"basic.auth.user.info": f"{self.user}:{self.password}"}
        tokens = {
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.issuer.endpoint.url": self.token_endpoint,
            "bearer.auth.client.id": str(self.user),
            "bearer.auth.client.secret": self.password,
            "bearer.auth.scope": self.scope,
            "bearer.auth.logical.cluster": self.cluster or _OWN_CLUSTER,
        }
        return options | tokens | ({} if self.pool is None else {"bearer.auth.identity.pool.id": self.pool})

    def _check(self, is_open: bool, host: str) -> None:
        if self.user is not None and is_open:
            message = f"{URL_ENV} is plain http to {host}: the password or token would travel unprotected; use https"
            raise ConfigError(message)
        if self.token_endpoint is None:
            unused = [name for name in ("scope", "cluster", "pool") if getattr(self, name)]
            if unused or (self.user is not None and ":" in self.user):
                message = (
                    f"{URL_ENV}_{unused[0].upper() if unused else 'USER'} cannot be used without {URL_ENV}_TOKEN_ENDPOINT (a name with ':' "
                    "neither), so the registry is not asked; set the endpoint, or take it away"
                )
                raise ConfigError(message)
            return
        endpoint = require_address(self.token_endpoint, f"{URL_ENV}_TOKEN_ENDPOINT")
        if endpoint.scheme == "http" and endpoint.hostname not in _LOOPBACK:
            message = f"{URL_ENV}_TOKEN_ENDPOINT is plain http to {endpoint.hostname}: the secret would travel unprotected; use https"
            raise ConfigError(message)
        if not self.user or not self.password:
            message = f"{URL_ENV}_TOKEN_ENDPOINT is set, but {USER_ENV} or {PASSWORD_ENV} is not, so no token can be asked for; set both"
            raise ConfigError(message)


def require_address(url: str, name: str) -> Any:
    """Return the parts of an http(s) address without a user, a query or a fragment; `name` is the variable that holds it.

    Raises:
        ConfigError: it is none.
    """
    parts = urlsplit(url if is_web_address(url) else "")
    if not parts.hostname or parts.query or parts.fragment:
        message = f"{name} is not an http(s) address of a server; write https://HOST:PORT"
        raise ConfigError(message)
    if parts.username or parts.password:
        message = f"{name} carries a user or password, which would end up in messages; use {USER_ENV}, {PASSWORD_ENV}"
        raise ConfigError(message)
    return parts


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
            RequestError: there is none, or it is not Protobuf.
        """
        number = version or next(iter(reversed(self._numbers(subject))), 1)
        path = f"/subjects/{require_subject(subject)}/versions/{number}"
        found = self._ask(path, lambda: self._client.get_version(subject, number, fmt="serialized")).schema
        if found.schema_type != "PROTOBUF":
            message = f"{self.place}{path} is a schema of type {str(found.schema_type)[:40]!r}, not PROTOBUF; `rivertwice admin schema refresh` pins Avro"
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
                "message with `rivertwice admin schema pin PIPELINE --subject SUBJECT`"
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
                    "schemas; register it with fewer references"
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
        message = f"{self.place}{path} did not answer as a schema registry does; check {URL_ENV}"
        raise RequestError(message)
