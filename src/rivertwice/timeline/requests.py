"""Requests that wait to be done: what was asked for, by whom and when, so that no argument of a process and no log has its values.

`operations/request-ID.json` of the pipeline's home, format 1, readable by its owner. It is removed once its result is reported, or it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rivertwice.core import PipelineHome, RequestError, parse_iso, require_name, to_plain
from rivertwice.storage import read_json, replace_json

FORMAT = 1
LONGEST_S = 86_400.0
WAITING = ("request-*.json", "amend-*.json")
"""Files of requests; 0.1 kept only amendments, under the second name."""


@dataclass(frozen=True)
class StoredRequest:
    """A request that waits.

    Attributes:
        resumes: the interrupted operation that it resumes; None: it begins a new one.
        result: what came of it; None: it is not done yet.
    """

    act: str
    values: Mapping[str, Any]
    by: str
    at: datetime
    resumes: str | None = None
    result: Mapping[str, Any] | None = None

    def save(self, home: PipelineHome, id_: str) -> None:
        """Store it; the same id replaces its own. Those that were not done for a day are removed."""
        for left in _waiting(home):
            if self.at.timestamp() - left.stat().st_mtime > LONGEST_S:
                left.unlink(missing_ok=True)
        self._write(home, id_)

    def finish(self, home: PipelineHome, id_: str, result: Mapping[str, Any]) -> None:
        """Store what came of it. Its values, which may contain a record, are removed; its reason stays."""
        kept = {name: value for name, value in self.values.items() if name == "reason"}
        replace(self, values=kept, result=result)._write(home, id_)

    @classmethod
    def load(cls, home: PipelineHome, id_: str) -> StoredRequest:
        """Return a request that waits.

        Raises:
            RequestError: there is none, because it was done already or never existed.
        """
        data = read_json(_path(home, id_))
        if data is None or data.get("format") != FORMAT:
            message = f"no request waits under {id_}; ask for it again"
            raise RequestError(message)
        return cls(data["act"], data["values"], data["by"], parse_iso(data["at"]), data["resumes"], data["result"])

    @staticmethod
    def forget(home: PipelineHome, id_: str) -> None:
        """Remove a request."""
        _path(home, id_).unlink(missing_ok=True)

    @staticmethod
    def forget_all(home: PipelineHome) -> int:
        """Remove every request that waits, whatever it contains, and return how many there were; each can be asked for again."""
        left = _waiting(home)
        for path in left:
            path.unlink(missing_ok=True)
        return len(left)

    def _write(self, home: PipelineHome, id_: str) -> None:
        replace_json(_path(home, id_), {"format": FORMAT, **to_plain(self)})


def _waiting(home: PipelineHome) -> list[Path]:
    return sorted(path for pattern in WAITING for path in home.operations.glob(pattern))


def _path(home: PipelineHome, id_: str) -> Path:
    return home.operations / f"request-{require_name(id_, 'request')}.json"
