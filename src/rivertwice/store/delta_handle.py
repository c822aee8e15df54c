"""Open handles of Delta tables: errors name place and remedy, and reads are retried on S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

import rivertwice.store.arrow  # noqa: F401 # before anything is made of rows
from rivertwice.config import Place, is_s3
from rivertwice.errors import ServiceError
from rivertwice.retry import retry
from rivertwice.store.delta_log import require_whole
from rivertwice.store.delta_place import storage_options

Table = DeltaTable
"""An open table handle."""

TRIES = 3
"""Number of tries on S3: for a commit whose transactions prevent a second one, and for reads."""
_T = TypeVar("_T")


@contextmanager
def explained(path: Place, doing: str) -> Iterator[None]:
    """Name what is torn of a table's log; place and remedy if a table on S3 cannot be reached."""
    try:
        yield
    except (TableNotFoundError, CommitFailedError):
        raise
    except (DeltaError, OSError) as error:
        if not is_s3(path) or "Kernel error" in str(error):
            require_whole(path, error)
        if not is_s3(path):
            raise
        message = (
            f"the table {path} could not be reached at {doing}: {str(error)[:600]}; the commit under way may or may not be "
            "there, and the next start finds out; check AWS_ENDPOINT_URL and the credentials"
        )
        raise ServiceError(message) from error


def open_table(path: Place) -> Table | None:
    """Return a new handle, or None if the table does not exist."""
    try:
        return opened(path)
    except TableNotFoundError:
        return None


def opened(path: Place) -> Table:
    """Return a new handle of an existing table."""
    return repeated(path, "opening it", lambda options: DeltaTable(str(path), storage_options=options))


def repeated(path: Place, doing: str, act: Callable[[dict[str, str] | None], _T]) -> _T:
    """Call a function that only reads; retry it on S3, because delta-rs does not retry a body that breaks off (ran)."""

    def once() -> _T:
        options = storage_options(path)
        with explained(path, doing):
            return act(options)

    return retry(ServiceError, tries=TRIES, first_wait_s=0.2)(once)


def applied_version(path: Place, app: str) -> int | None:
    """Return the newest version `app` committed to the table, or None."""
    table = open_table(path)
    return None if table is None else table.transaction_version(app)
