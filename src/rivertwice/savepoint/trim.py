"""Which batch of a copied checkpoint a savepoint can use, and which files must be removed from the copy. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rivertwice.core import SavepointError

_LOGS = ("offsets", "commits")


def batch_of(path: str) -> int | None:
    """Return the batch N of a path `offsets/N` or `commits/N` (or of the `.N.crc` beside it), else None."""
    folder, _, name = path.partition("/")
    if folder not in _LOGS:
        return None
    number = name.removeprefix(".").removesuffix(".crc")
    return int(number) if number.isdigit() else None


def batches_in(paths: Iterable[str], log: str) -> set[int]:
    """Return the batches whose `offsets/N` or `commits/N` a copy contains."""
    return {
        int(path.partition("/")[2]) for path in paths if path.startswith(f"{log}/") and path[len(log) + 1 :].isdigit()
    }


def select_batch(paths: Collection[str], committed: Collection[int]) -> int:
    """Return the newest batch that the copy finished and the changelog committed.

    Args:
        paths: files of the copy, relative, with slashes.
        committed: batches on the timeline's path that are in the ledger.

    Raises:
        SavepointError: there is none, or the copy lacks the offsets that such a batch needs.
    """
    finished = batches_in(paths, "commits")
    usable = finished & set(committed)
    if not usable:
        message = (
            f"no batch is both finished in the checkpoint ({len(finished)} found) and committed in the changelog "
            f"({len(committed)} found), so there is nothing a savepoint could stand at; start the stream and take it "
            "after its first batch"
        )
        raise SavepointError(message)
    batch = max(usable)
    planned = batches_in(paths, "offsets")
    wanted = {batch} | ({batch - 1} if batch > 0 else set())
    if not wanted <= planned:
        message = (
            f"the copy finished batch {batch} but holds no offsets of {sorted(wanted - planned)}: the checkpoint changed "
            "faster than it was copied; take the savepoint again"
        )
        raise SavepointError(message)
    return batch


def select_surplus(paths: Iterable[str], batch: int) -> list[str]:
    """Return the files of `offsets` and `commits` after `batch`; later state does no harm and is overwritten."""
    return sorted(path for path in paths if (batch_of(path) or 0) > batch)
