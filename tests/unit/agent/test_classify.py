"""Why a driver ended: its own record first, then its log, then the signal."""

from __future__ import annotations

import pytest

from rivertwice.agent.backoff import FailureClass, classify_exit
from rivertwice.stream import failures

CASES = [
    ("the record wins over the log", "range_mismatch", "java.lang.OutOfMemoryError", 1, FailureClass.RANGE_MISMATCH),
    ("a clean drain", "drained", "", 0, FailureClass.DRAINED),
    ("an unknown record is looked up in the log", "unknown", "DefinitionError: no such field", 1, FailureClass.SCHEMA),
    ("an unknown record stays unknown without a sign", "unknown", "something broke", 1, FailureClass.UNKNOWN),
    ("a word that nobody knows", "gremlins", "", 1, FailureClass.UNKNOWN),
    ("kill -9 of a child", None, "No space left on device", -9, FailureClass.KILLED),
    ("kill -9 of an adopted driver", None, "batch 7: 12 read", None, FailureClass.KILLED),
    ("an adopted driver that died of memory", None, "x OutOfMemoryError y", None, FailureClass.OUT_OF_MEMORY),
    ("the last sign in the log wins", None, "LogGapError ... CANNOT_LOAD_STATE_STORE", 1, FailureClass.CHECKPOINT),
    ("an exit without record or sign", None, "", 1, FailureClass.UNKNOWN),
]


@pytest.mark.parametrize(("title", "record", "tail", "code", "expected"), CASES, ids=[case[0] for case in CASES])
def test_an_exit_is_classified(
    title: str, record: str | None, tail: str, code: int | None, expected: FailureClass
) -> None:
    assert classify_exit(record, tail, code) is expected, title


@pytest.mark.parametrize(
    ("record", "tail", "code", "expected"),
    [
        (None, "", 1, FailureClass.DISK),
        (None, "batch 7: 12 re", None, FailureClass.DISK),
        (None, "", -9, FailureClass.KILLED),
        (None, "LogGapError", 1, FailureClass.RETENTION),
        ("unknown", "something broke", 1, FailureClass.UNKNOWN),
    ],
)
def test_a_driver_that_wrote_nothing_on_a_full_disk_ended_for_that(
    record: str | None, tail: str, code: int | None, expected: FailureClass
) -> None:
    assert classify_exit(record, tail, code, full=True) is expected


def test_every_word_the_driver_writes_is_known_here() -> None:
    written = {name for _, name in failures._BY_TYPE} | {name for _, name in failures._BY_TEXT}
    for word in written | {failures.DRAINED}:
        assert str(classify_exit(word, "", 1)) == word
