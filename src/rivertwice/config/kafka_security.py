"""How clients connect to Kafka: encryption and login. No object of ours holds the password itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rivertwice.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "RIVERTWICE_KAFKA_PASSWORD"  # noqa: S105 (the name of a variable)
_PREFIX = "RIVERTWICE_KAFKA_"


@dataclass(frozen=True)
class KafkaSecurity:
    """The environment's settings for Kafka's security; both clients, Python's and Spark's, are configured from it.

    Attributes:
        protocol: one of `PROTOCOLS`.
        mechanism: one of `MECHANISMS`, with a SASL protocol.
        username: with a SASL protocol.
        password_file: holds the password; None: it is in the environment variable `RIVERTWICE_KAFKA_PASSWORD`.
        ca: PEM file of the authorities that may sign the brokers' certificates; None: those of the system.
        certificate: PEM file with the client's own key (PKCS #8, not encrypted) and certificate chain.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None

    @property
    def sasl(self) -> bool:
        """Say whether clients log in with a name and a password."""
        return self.protocol.startswith("SASL_")

    @property
    def tls(self) -> bool:
        """Say whether connections are encrypted."""
        return self.protocol.endswith("SSL")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> KafkaSecurity:
        """Read RIVERTWICE_KAFKA_PROTOCOL, _MECHANISM, _USERNAME, _PASSWORD_FILE, _CA and _CERTIFICATE.

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
    if security.sasl and (
        security.mechanism not in MECHANISMS or not security.username or not security.username.isprintable()
    ):
        message = (
            f"{_PREFIX}PROTOCOL is {security.protocol}, so clients log in, but {_PREFIX}MECHANISM ({(security.mechanism or '')[:40]!r}) "
            f"or {_PREFIX}USERNAME does not say how; write one of {', '.join(MECHANISMS)} and a name"
        )
        raise ConfigError(message)
    if security.sasl and not has_password and security.password_file is None:
        message = f"clients log in to Kafka as {security.username}, but there is no password; set {PASSWORD} or {_PREFIX}PASSWORD_FILE"
        raise ConfigError(message)
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
