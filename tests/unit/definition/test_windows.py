"""Tumbling, hopping and session windows: what a definition may say of them, and that old definitions mean what they meant."""

from __future__ import annotations

import json

import pytest

from homes.one_source import define_windows
from homes.project import FLIGHTS, REPOSITORY
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of


@pytest.mark.parametrize(
    ("window", "call", "passes", "text"),
    [
        ("{size: 60 s}", "window(at, '1 minute')", 1, "1 minute"),
        ("{size: 60 s, slide: 30 s}", "window(at, '60 seconds', '30 seconds')", 2, "1 minute every 30 seconds"),
        (
            "{size: 1 h, slide: 1 minute}",
            "window(events.at, '1 hour', 'interval 1 minute')",
            60,
            "1 hour every 1 minute",
        ),
        ("{session: 30 minutes}", "session_window(`at`, '30 minutes')", 1, "session, gap 30 minutes"),
    ],
)
def test_each_kind_of_windows_is_accepted(window: str, call: str, passes: int, text: str) -> None:
    found = define_windows(window, call).window
    assert (found.passes, found.text) == (passes, text)


@pytest.mark.parametrize(
    ("window", "call"),
    [
        ("{size: 1 h, slide: 30 m}", "window(at, '1 hour')"),
        ("{size: 1 h}", "window(at, '1 hour', '30 minutes')"),
        ("{size: 1 h, slide: 30 m}", "window(at, '1 hour', '20 minutes')"),
        ("{size: 1 h, slide: 30 m}", "window(at, '1 hour', '30 minutes', '5 minutes')"),
        ("{session: 1 h}", "window(at, '1 hour')"),
        ("{size: 1 h}", "session_window(at, '1 hour')"),
        ("{session: 1 h}", "session_window(at, '2 hours')"),
        ("{session: 1 h}", "session_window(at, CASE WHEN k = 'a' THEN '1 hour' ELSE '2 hours' END)"),
    ],
)
def test_a_call_that_makes_other_windows_is_refused_with_both(window: str, call: str) -> None:
    with pytest.raises(DefinitionError, match="give both the same"):
        define_windows(window, call)


@pytest.mark.parametrize("keys", ["[]", "[other]", "[d]"])
def test_sessions_without_keys_of_their_source_are_refused(keys: str) -> None:
    with pytest.raises(DefinitionError, match="sessions are built per key"):
        define_windows("{session: 1 h}", "session_window(at, '1 hour')", keys)


def test_a_tumbling_definition_hashes_what_it_always_did() -> None:
    found = fingerprint_of(load_definition(FLIGHTS))
    assert found.components["window"] == ["1 hour", "window_start", "window_end"]


def test_a_stored_savepoint_of_a_tumbling_pipeline_keeps_its_hashes() -> None:
    golden = REPOSITORY / "tests" / "golden" / "savepoint-v1"
    (manifest,) = golden.glob("home/pipelines/*/savepoints/*/manifest.json")
    (folder,) = (path.parent for path in golden.glob("project/pipelines/*/pipeline.yaml"))
    assert json.loads(manifest.read_text())["fingerprint"] == fingerprint_of(load_definition(folder)).hashes()


def test_another_kind_of_windows_is_another_state_and_other_semantics() -> None:
    kinds = [
        fingerprint_of(define_windows(*one))
        for one in (
            ("{size: 1 h}", "window(at, '1 hour')"),
            ("{size: 1 h, slide: 30 m}", "window(at, '1 hour', '30 minutes')"),
            ("{session: 1 h}", "session_window(at, '1 hour')"),
        )
    ]
    assert len({one.state for one in kinds}) == len({one.semantics for one in kinds}) == 3
    changes = {change.component: change.touches for change in kinds[0].changes_to(kinds[1])}
    assert changes["window"] == ("state", "semantics")
