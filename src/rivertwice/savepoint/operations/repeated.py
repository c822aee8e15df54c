"""Whether an operation that is asked for was done already by the same request. Pure.

A worker, or the job that it started, may be killed after an operation was done and before that is known. The request then comes again,
and must not move the head a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rivertwice.errors import RequestError
from rivertwice.savepoint.operations.record import ABANDONED, DONE, Operation, R


def find_repeated(
    operations: Sequence[Operation], kind: type[R], since: datetime, *, base: str | None, resumes: str | None
) -> R | None:
    """Return the operation that a request has done already; None: there is none, so it is begun or resumed.

    Args:
        operations: all of the pipeline, oldest first.
        kind: `Restore` or `Rewind`.
        since: when it was asked for.
        base: what it was asked to be based on; None: whatever is chosen.
        resumes: the operation that had been cut off when it was asked for; None: a new one was asked for.

    Raises:
        RequestError: it was given up since.
    """
    own = [
        operation
        for operation in operations
        if isinstance(operation, kind)
        and (
            operation.id == resumes
            if resumes is not None
            else operation.started_at >= since and (base is None or operation.is_based_on(base))
        )
    ]
    if not own:
        return None
    if own[-1].step == ABANDONED:
        message = f"{own[-1].id} was given up since it was asked for; nothing was done; ask for another one"
        raise RequestError(message)
    return own[-1] if own[-1].step == DONE else None
