"""What a commit of ours to a Delta table carries, and the error of one that another writer's commit came before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deltalake import CommitProperties, Transaction

from rivertwice.config import Place
from rivertwice.errors import LostRaceError
from rivertwice.store.delta_place import name_of


def lost_race(path: Place, error: Exception) -> LostRaceError:
    """Return the error of a writer that found another one's commit where its own was to be."""
    message = (
        f"another writer changed {name_of(path)} while its rows were replaced ({error}); nothing was written; try again"
    )
    return LostRaceError(message)


def commit_properties(
    metadata: Mapping[str, Any] | None, transactions: Mapping[str, int] | None, *, only_at_once: bool = False
) -> CommitProperties:
    """Return the properties of a commit; `only_at_once`: it is not tried again after a commit that was made in between."""
    return CommitProperties(
        max_commit_retries=0 if only_at_once else None,
        custom_metadata={key: json.dumps(value, sort_keys=True) for key, value in (metadata or {}).items()},
        app_transactions=[Transaction(app, version) for app, version in (transactions or {}).items()],
    )
