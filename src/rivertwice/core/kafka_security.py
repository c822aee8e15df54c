"""How clients connect to Kafka: encryption and login. No object of ours holds the password itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rivertwice.core.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTH, MSK_IAM = "OAUTHBEARER", "AWS_MSK_IAM"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTH, MSK_IAM)
PASSWORD = "RIVERTWICE_KAFKA_PASSWORD"  # noqa: S105 (the name of a variable)
_PREFIX = "RIVERTWICE_KAFKA_"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EXTENSION = re.compile(r"[A-Za-z]+=[\x21-\x7e]+\Z")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]\Z")


@dataclass(frozen=True)
class KafkaSecurity:
    """The environment's settings for Kafka's security; both clients, Python's and Spark's, are configured from it.

    Attributes:
        protocol: one of `PROTOCOLS`.
        mechanism: one of `MECHANISMS`, with a SASL protocol.
        username: with a SASL protocol; with OAUTHBEARER the client's id, with AWS_MSK_IAM None.
        password_file: holds the password, or the client's secret; None: it is in the environment variable
            `RIVERTWICE_KAFKA_PASSWORD`.
        ca: PEM file of the authorities that may sign the brokers' certificates; None: those of the system.
        certificate: PEM file with the client's own key (PKCS #8, not encrypted) and certificate chain.
        token_endpoint: with OAUTHBEARER, the address that gives a token for the client's id and secret.
        scope: of the tokens that are asked for; None: the endpoint's own default.
        extensions: SASL extensions of OAUTHBEARER, `name=value` each.
        region: with AWS_MSK_IAM, the region of the brokers. The identity is the one that AWS's own clients find.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    token_endpoint: str | None = None
    scope: str | None = None
    extensions: tuple[str, ...] = ()
    region: str | None = None

    @property
    def sasl(self) -> bool:
        """Say whether clients log in."""
        return self.protocol.startswith("SASL_")

    @property
    def has_secret(self) -> bool:
        """Say whether clients log in with a secret of ours: a password, or that of an OAuth client."""
        return self.sasl and self.mechanism != MSK_IAM

    @property
    def tls(self) -> bool:
        """Say whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> KafkaSecurity:
        """Read RIVERTWICE_KAFKA_PROTOCOL, _MECHANISM, _USERNAME, _PASSWORD_FILE, _CA, _CERTIFICATE, and those of tokens.

        Raises:
            ConfigError: they contradict each other; an incomplete set-up would send records, or a password, unencrypted.
        """

        def text(name: str) -> str | None:
            return env.get(_PREFIX + name) or None

        def file(name: str) -> Path | None:
            return Path(env[_PREFIX + name]).resolve() if env.get(_PREFIX + name) else None

        security = cls(
            protocol=(text("PROTOCOL") or "PLAINTEXT").upper(),
            mechanism=text("MECHANISM"),
            username=text("USERNAME"),
            password_file=file("PASSWORD_FILE"),
            ca=file("CA"),
            certificate=file("CERTIFICATE"),
            token_endpoint=text("TOKEN_ENDPOINT"),
            scope=text("SCOPE"),
            extensions=tuple(each.strip() for each in (text("EXTENSIONS") or "").split(",") if each.strip()),
            region=text("REGION"),
        )
        _check(security, has_password=bool(env.get(PASSWORD)))
        return security

    def to_env(self) -> dict[str, str]:
        """Return the variables that give a child process the same; the password is not among them."""
        if self == KafkaSecurity():
            return {}
        values = {
            "PROTOCOL": self.protocol,
            "MECHANISM": self.mechanism,
            "USERNAME": self.username,
            "PASSWORD_FILE": self.password_file,
            "CA": self.ca,
            "CERTIFICATE": self.certificate,
            "TOKEN_ENDPOINT": self.token_endpoint,
            "SCOPE": self.scope,
            "EXTENSIONS": ",".join(self.extensions) or None,
            "REGION": self.region,
        }
        return {_PREFIX + name: str(value) for name, value in values.items() if value is not None}

    def read_password(self, env: Mapping[str, str] | None = None) -> str:
        """Return the password. It is read again on every call, so that the file can be replaced while processes run.

        Raises:
            ConfigError: there is no password, or it is invalid.
        """
        if self.password_file is None:
            where, password = PASSWORD, (os.environ if env is None else env).get(PASSWORD, "")
        else:
            where = str(self.password_file)
            try:
                password = self.password_file.read_text().rstrip("\r\n")
            except (OSError, ValueError) as error:
                message = f"the file of Kafka's password {where} cannot be read ({type(error).__name__}); correct {_PREFIX}PASSWORD_FILE"
                raise ConfigError(message) from None
        if not password or not password.isprintable():
            message = (
                f"{where} holds no password for Kafka (it is empty, or has characters that cannot be typed), so no client can log in "
                f"as {self.username}; set {PASSWORD} or {_PREFIX}PASSWORD_FILE"
            )
            raise ConfigError(message)
        return password


def _check(security: KafkaSecurity, *, has_password: bool) -> None:
    """Refuse settings that contradict each other. Pure; missing files are noticed when they are read."""
    if security.protocol not in PROTOCOLS:
        message = f"{_PREFIX}PROTOCOL is {security.protocol[:40]!r}, which Kafka does not speak; write one of {', '.join(PROTOCOLS)}"
        raise ConfigError(message)
    has_name = security.mechanism == MSK_IAM or bool(security.username and security.username.isprintable())
    if security.sasl and (security.mechanism not in MECHANISMS or not has_name):
        message = (
            f"{_PREFIX}PROTOCOL is {security.protocol}, so clients log in, but {_PREFIX}MECHANISM ({(security.mechanism or '')[:40]!r}) "
            f"or {_PREFIX}USERNAME does not say how; write one of {', '.join(MECHANISMS)} and a name"
        )
        raise ConfigError(message)
    if security.has_secret and not has_password and security.password_file is None:
        message = f"clients log in to Kafka as {security.username}, but there is no password; set {PASSWORD} or {_PREFIX}PASSWORD_FILE"
        raise ConfigError(message)
    _check_tokens(security)
    unused = []
    if not security.sasl and (security.mechanism or security.username or security.password_file or has_password):
        unused.append("a login")
    if not security.tls and (security.ca or security.certificate):
        unused.append("certificates")
    if unused:
        message = (
            f"{' and '.join(unused)} are set for Kafka, but {_PREFIX}PROTOCOL is {security.protocol}, which uses none; records "
            f"would travel as if they were not set: write SSL, SASL_PLAINTEXT or SASL_SSL, or take the other settings away"
        )
        raise ConfigError(message)


def _check_tokens(security: KafkaSecurity) -> None:
    """Refuse what no token can be asked for with, and what would send a secret unprotected. Pure."""
    oauth, iam = (security.sasl and security.mechanism == mechanism for mechanism in (OAUTH, MSK_IAM))
    endpoint = urlsplit(security.token_endpoint or "")
    if oauth and (endpoint.scheme not in ("http", "https") or not endpoint.hostname or endpoint.username):
        message = (
            f"{_PREFIX}MECHANISM is {OAUTH}, but {_PREFIX}TOKEN_ENDPOINT is not an http(s) address without a user in it, so no client can get a "
            "token; write https://HOST/PATH"
        )
        raise ConfigError(message)
    if oauth and endpoint.scheme == "http" and endpoint.hostname not in _LOOPBACK:
        message = f"{_PREFIX}TOKEN_ENDPOINT is plain http to {endpoint.hostname}: the secret would travel unprotected; use https"
        raise ConfigError(message)
    printable = (security.scope or "").isprintable() and all(_EXTENSION.match(each) for each in security.extensions)
    if not printable:
        message = f"{_PREFIX}SCOPE or {_PREFIX}EXTENSIONS cannot be sent; write a scope in one line, and extensions as name=value,name=value"
        raise ConfigError(message)
    if iam and (not security.tls or not _REGION.match(security.region or "")):
        message = (
            f"{_PREFIX}MECHANISM is {MSK_IAM}, which needs {_PREFIX}PROTOCOL=SASL_SSL and the brokers' region ({(security.region or '')[:40]!r}); "
            f"set {_PREFIX}REGION, for example eu-central-1"
        )
        raise ConfigError(message)
    unused = [
        name
        for name, value, used in (
            ("TOKEN_ENDPOINT", security.token_endpoint, oauth),
            ("SCOPE", security.scope, oauth),
            ("EXTENSIONS", security.extensions, oauth),
            ("REGION", security.region, iam),
            ("USERNAME", security.username, not iam),
        )
        if value and not used
    ]
    if unused:
        message = (
            f"{', '.join(_PREFIX + name for name in unused)} would not be used with {_PREFIX}MECHANISM={security.mechanism}, so clients would "
            f"log in otherwise than these settings say; take them away, or write another mechanism: {', '.join(MECHANISMS)}"
        )
        raise ConfigError(message)
