"""Which late policies and emit modes go with which windows."""

from __future__ import annotations

import pytest

from histories.kinds import definition_files, make_definition
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import Definition, parse_files

LATE = "late: {policy: side_output}\n"


def changed(kind: str, old: str, new: str) -> Definition:
    files = definition_files(kind)
    assert old in files["pipeline.yaml"]
    files["pipeline.yaml"] = files["pipeline.yaml"].replace(old, new)
    return parse_files({name: text.encode() for name, text in files.items()}, "p")


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "joined intervals"])
def test_windows_and_intervals_take_every_late_policy(kind: str) -> None:
    found = changed(kind, LATE, "late: {policy: correct, debounce: 1 minute, horizon: 1 day}\n")
    assert (found.late.policy, found.late.keeps_rows) == ("correct", True)
    assert not changed(kind, LATE, "late: {policy: drop}\n").late.keeps_rows


def test_sessions_keep_late_rows_but_queue_nothing() -> None:
    assert make_definition("session").late.keeps_rows
    with pytest.raises(DefinitionError, match="none is queued; say side_output"):
        changed("session", LATE, "late: {policy: correct}\n")


def test_nothing_of_a_fold_is_late() -> None:
    with pytest.raises(DefinitionError, match="no record of a fold waits or is late; remove it"):
        changed("fold", "emit: final\n", f"emit: final\n{LATE}")


@pytest.mark.parametrize(
    ("kind", "mode"), [("tumbling", "append"), ("tumbling updates", "update"), ("hopping updates", "update")]
)
def test_the_emit_mode_is_spark_s_output_mode(kind: str, mode: str) -> None:
    assert make_definition(kind).output_mode == mode


@pytest.mark.parametrize("kind", ["session", "joined intervals", "fold"])
def test_only_tumbling_and_hopping_windows_have_rows_before_they_close(kind: str) -> None:
    with pytest.raises(DefinitionError, match="only tumbling and hopping windows have rows before they close"):
        changed(kind, "emit: final\n", "emit: updates\n")


def test_updates_are_not_delivered() -> None:
    sink = "deliver: {search: {to: kafka, topic: rows, guarantee: at-least-once}}\n"
    with pytest.raises(DefinitionError, match="deliver"):
        changed("tumbling updates", LATE, LATE + sink)
