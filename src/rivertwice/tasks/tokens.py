"""Who may ask an agent over HTTP: tokens, of which only hashes are kept, each for some pipelines.

`agent/tokens.json` of the home, format 1, readable by its owner.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from rivertwice.core import (
    RequestError,
    Settings,
    base_of,
    open_locked,
    parse_iso,
    require_name,
    require_pipeline,
    to_plain,
)
from rivertwice.storage import read_json, replace_json

FORMAT = 1
EVERY = "*"
_BYTES = 32


@dataclass(frozen=True)
class Token:
    """What the bearer of a token may do.

    Attributes:
        name: of the team or the service that has it.
        sha256: of the token, as hexadecimal digits.
        pipelines: names, without versions; `*`: all.
        only_reads: it may see how streams are, and have nothing done.
    """

    name: str
    sha256: str
    pipelines: tuple[str, ...]
    only_reads: bool
    created_at: datetime

    def sees(self, pipeline: str) -> bool:
        """Say whether it is for a pipeline, or for one of its versions."""
        return EVERY in self.pipelines or base_of(pipeline) in self.pipelines

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return one as it is stored."""
        return cls(**{**data, "pipelines": tuple(data["pipelines"]), "created_at": parse_iso(data["created_at"])})


class Tokens:
    """The tokens of a home."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.home / "agent" / "tokens.json"

    def read(self) -> list[Token]:
        """Return all tokens, sorted by name."""
        stored = read_json(self._path)
        return [] if stored is None else [Token.from_json(each) for each in stored["tokens"]]

    def find(self, secret: str) -> Token | None:
        """Return what a secret stands for; None: it is no token here. Every token is compared, each in constant time."""
        digest = _digest(secret)
        found = [token for token in self.read() if hmac.compare_digest(token.sha256, digest)]
        return found[0] if found else None

    def make(self, name: str, pipelines: Sequence[str], now: datetime, *, only_reads: bool = False) -> str:
        """Make a token, in place of one of the same name, and return its secret, which is kept nowhere.

        Args:
            pipelines: names; empty: all.

        Raises:
            ConfigError: a name that no pipeline can have.
        """
        secret = f"rvt_{secrets.token_urlsafe(_BYTES)}"
        allowed = tuple(sorted({base_of(require_pipeline(each)) for each in pipelines})) or (EVERY,)
        made = Token(require_name(name, "token"), _digest(secret), allowed, only_reads, now)
        self._change(lambda tokens: [*(each for each in tokens if each.name != name), made])
        return secret

    def revoke(self, name: str) -> None:
        """Remove a token; the next question with it is refused.

        Raises:
            RequestError: there is none of this name.
        """

        def without(tokens: list[Token]) -> list[Token]:
            left = [each for each in tokens if each.name != name]
            if len(left) == len(tokens):
                known = ", ".join(each.name for each in tokens) or "none"
                message = f"there is no token {name}; known: {known}"
                raise RequestError(message)
            return left

        self._change(without)

    def _change(self, change: Callable[[list[Token]], list[Token]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        lock = open_locked(self._path.with_name("tokens.lock"))
        if lock is None:
            message = "another command changes the tokens just now; try again"
            raise RequestError(message)
        with lock:
            tokens = sorted(change(self.read()), key=lambda token: token.name)
            replace_json(self._path, {"format": FORMAT, "tokens": to_plain(tokens)})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
