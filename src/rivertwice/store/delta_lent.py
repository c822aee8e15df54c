"""Handles for readers: each is lent to one reader at a time, and brought up to date instead of being opened again.

Opening a table reads all entries since its log's last checkpoint, up to a hundred. A handle that was used before needs only those
that came since, and none if the log is what it was. If anything else was done to the log, the table is opened.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from rivertwice.config import Place
from rivertwice.store.delta_handle import Table, open_table
from rivertwice.store.delta_kept import is_brought_up_to_date
from rivertwice.store.remembered import Mark, mark_of

_MOST = 32

_LOCK = threading.Lock()
_HELD: OrderedDict[str, tuple[Mark, Table]] = OrderedDict()


@contextmanager
def lent_handle(path: Place) -> Iterator[Table | None]:
    """Give a handle of a table's newest version for the block, None without a table; nobody else has it meanwhile.

    After a block that fails the handle is not used again. On S3 none is kept: a handle has the credentials with which it was opened.
    """
    mark = mark_of(path)  # before the handle: a commit in between makes the next reader bring it up to date
    with _LOCK:
        before, table = _HELD.pop(str(path), (None, None))
    if table is not None and before is not None and mark != before:
        is_usable = mark is not None and mark.follows(before) and is_brought_up_to_date(path, table)
        table = table if is_usable else None
    if table is None:
        table = open_table(path)
    yield table
    if table is not None and mark is not None:
        with _LOCK:
            _HELD[str(path)] = (mark, table)
            while len(_HELD) > _MOST:
                _HELD.popitem(last=False)
