"""How the client of a schema registry logs in: with a name and a password, with tokens, or with a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rivertwice.errors import ConfigError
from rivertwice.schemas.registry import URL_ENV
from rivertwice.web import is_web_address

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

    def options(self, url: str) -> dict[str, Any]:
        """Return the options of the client for a registry at `url`.

        Raises:
            ConfigError: the address carries secrets, a secret would travel unprotected, or the settings contradict each other.
        """
        parts = require_address(url, URL_ENV)
        self._check(parts.scheme == "http" and parts.hostname not in _LOOPBACK, str(parts.hostname))
        options: dict[str, Any] = {}
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
        message = f"{name} is no http(s) address of a server; write https://HOST:PORT"
        raise ConfigError(message)
    if parts.username or parts.password:
        message = f"{name} carries a user or password, which would end up in messages; use {USER_ENV}, {PASSWORD_ENV}"
        raise ConfigError(message)
    return parts
