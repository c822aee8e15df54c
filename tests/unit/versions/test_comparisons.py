"""A comparison is stored once under its name, shown wherever one looks, and lets a version serve only while it holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.versions import AT, GONE, World
from rivertwice.agent.alert_kinds import TASK_FAILED
from rivertwice.agent.alert_model import AlertCause, AlertSeverity, Report
from rivertwice.agent.alert_store import alerts_of
from rivertwice.cli.main import cli
from rivertwice.core.errors import RequestError
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.sequence import publish, read_sequence
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.versions.begin import begin_version
from rivertwice.versions.changes import changes_path
from rivertwice.versions.comparisons import (
    KEPT,
    StoredComparison,
    find_comparison,
    find_outdated,
    forget_comparisons,
    new_run,
    newest_comparison,
    require_valid,
    store_comparison,
)
from rivertwice.versions.model import Proof
from rivertwice.versions.serve import serve_version


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.seal("r1")
    return made


def store(world: World, run: str = "pc-1", minute: int = 0, **changes: object) -> StoredComparison:
    now = AT + timedelta(minutes=minute)
    return store_comparison(world.new, world.parity(**changes), run, by="test", now=now)


def serve(world: World, stored: StoredComparison) -> None:
    serve_version(
        world.settings, "p@v2", by="test", now=AT, check=lambda: require_valid(world.settings, stored),
        compared=stored.brief(),
    )  # fmt: skip


def test_what_is_stored_is_what_is_read(world: World) -> None:
    stored = store(world, left_out=(GONE,))
    found = find_comparison(world.new, "pc-1")
    assert found == replace(stored, reasons=[], warnings=[])
    assert found is not None
    assert found.passed
    assert found.expected[0]["rows"] == 7
    assert found.verdict == "0 equal, 7 declared, 0 late, 0 without a cause, 3 windows left out"
    assert [proof.run for proof in found.proofs] == ["r1-p", "r1-p-v2"]


def test_a_run_that_is_repeated_gives_the_same_record(world: World) -> None:
    first = store(world)
    again = store(world, minute=9, reasons=("1 row differs without a cause",))
    assert again.created_at == first.created_at
    assert again.passed
    assert find_comparison(world.new, "pc-2") is None


def test_the_newest_is_the_one_of_last_time_and_old_ones_go(world: World) -> None:
    for number in range(KEPT + 3):
        store(world, f"pc-{number}", number)
    newest = newest_comparison(world.new)
    assert newest is not None
    assert newest.run == f"pc-{KEPT + 2}"
    assert find_comparison(world.new, "pc-2") is None
    assert find_comparison(world.new, "pc-3") is not None
    assert new_run(AT) != new_run(AT)
    forget_comparisons(world.new)
    assert newest_comparison(world.new) is None


def test_a_later_reconcile_keeps_a_comparison_valid(world: World) -> None:
    stored = store(world)
    world.seal("r2")
    require_valid(world.settings, stored)
    serve(world, stored)
    assert serving_by_stamp(world.old) == "p@v2"


def publish_again(world: World) -> None:
    seq = read_sequence(world.new)[-1].seq
    payload = {"backfill": "b", "ranges": [[0, 3_600_000]], "bundle": world.bundle, "as_of": {}, "semantics": "s"}
    publish(world.new, payload, expected_seq=seq, now=AT)


def declare(world: World) -> None:
    path = changes_path(world.settings, "p@v2")
    path.parent.mkdir(exist_ok=True)
    path.write_text("reason: another one\n")


def rename_server(world: World) -> None:
    serve_version(world.settings, "p@v2", by="test", now=AT)


@pytest.mark.proves("guarantees.md#version-switch")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (publish_again, "p@v2 published backfills after r1-p-v2 proved"),
        (declare, "the change file of p@v2 was changed since"),
        (rename_server, "p@v2 serves now, and it was compared with p"),
    ],
)
def test_what_changed_since_a_comparison_refuses_the_switch(
    world: World, change: Callable[[World], None], said: str
) -> None:
    stored = store(world)
    require_valid(world.settings, stored)
    change(world)
    with pytest.raises(RequestError, match=said):
        require_valid(world.settings, stored)


def test_a_publication_during_the_switch_refuses_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes after the rows to show are built, so it sees whatever those contain."""
    from rivertwice.versions import serve as room

    stored, real = store(world), room.rebuild_served

    def with_publication(*arguments: object) -> object:
        made = real(*arguments)  # type: ignore[arg-type]
        publish_again(world)
        return made

    monkeypatch.setattr(room, "rebuild_served", with_publication)
    with pytest.raises(RequestError, match="published backfills"):
        serve(world, stored)
    assert serving_by_stamp(world.old) == "p"


def test_a_comparison_that_was_refused_lets_nothing_serve(world: World) -> None:
    stored = store(world, reasons=("2 rows differ without a cause",))
    with pytest.raises(RequestError, match="pc-1 does not let p@v2 serve: 2 rows differ without a cause"):
        require_valid(world.settings, stored)


def test_another_head_or_a_shorter_proof_is_a_change(world: World) -> None:
    stored = store(world)
    old, new = stored.proofs
    assert find_outdated(stored, (old, new), "", "p") == []
    moved = find_outdated(stored, (replace(old, timeline="t2"), new), "", "p")
    assert moved == ["p published a backfill or moved its head since r1-p proved it"]
    assert "is proved up to" in find_outdated(stored, (old, replace(new, until_ms=1)), "", "p")[0]
    assert find_outdated(stored, (Proof("p", None, 0, "no reconcile"), new), "", "p") == ["no reconcile"]


def test_the_list_of_versions_shows_the_newest_comparison(world: World) -> None:
    def listed(*options: str) -> str:
        done = CliRunner().invoke(cli, [*options, "version", "list", "p"], env=world.settings.to_env())
        assert done.exit_code == 0, done.output
        return done.output

    assert "none" in listed()
    store(world, reasons=("no window was compared",))
    assert "refused: no window was compared; 0 equal, 7 declared" in " ".join(listed().split())
    (value,) = json.loads(listed("--output", "json"))
    assert value["comparison"]["run"] == "pc-1"


def test_a_version_that_is_dropped_takes_its_alerts_along(world: World) -> None:
    alerts = alerts_of(world.settings)
    causes = [("p@v2", "defect", ""), ("p", TASK_FAILED, "operate__p.gate"), ("p", TASK_FAILED, "backfill__p.plan")]
    for cause in causes:
        alerts.report(Report(AlertCause(*cause), AlertSeverity.CRITICAL, "test", "airflow"), AT)
    write_intent(world.new, "stopped", "test", AT)
    for words, code in ((["--dry-run"], 0), ([], 1)):
        shown = CliRunner().invoke(cli, ["version", "drop", "p@v2", *words], env=world.settings.to_env())
        assert shown.exit_code == code, shown.output
        assert f"{world.new.root} would be removed" in shown.output
        assert world.new.root.exists()
    done = CliRunner().invoke(cli, ["version", "drop", "p@v2", "--yes"], env=world.settings.to_env())
    assert done.exit_code == 0, done.output
    firing = [alert.cause.subject for alert in alerts_of(world.settings).state().alerts if alert.resolved_at is None]
    assert firing == ["backfill__p.plan"]


def test_a_change_file_that_asks_for_a_switch_without_a_person_is_refused(world: World) -> None:
    store(world)
    declare(world)
    with changes_path(world.settings, "p@v2").open("a") as file:
        file.write("switch: automatic\n")
    write_intent(world.new, "stopped", "test", AT)
    done = CliRunner().invoke(cli, ["version", "serve", "p@v2", "--yes"], env=world.settings.to_env())
    assert done.exit_code == 1
    assert "v2.yaml: line 2, column 1: switch was removed: a person approves each switch" in done.stderr
    assert serving_by_stamp(world.old) == "p"


def test_a_comparison_of_an_earlier_release_is_read(world: World) -> None:
    stored = store(world)
    (file,) = (world.new.root / "comparisons").iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "policy": "automatic"}))
    assert newest_comparison(world.new) == replace(stored, reasons=[], warnings=[])


def test_a_version_is_compared_with_the_one_that_serves_now(world: World) -> None:
    world.serve("p@v2")
    sql = world.settings.definitions / "p" / "transform.sql"
    sql.write_text(sql.read_text().replace("100 + count(*)", "200 + count(*)"))
    third = begin_version(world.settings, "p", by="test", now=AT)
    assert third.beside == "p@v2"
    write_intent(world.settings.pipeline("p@v3"), "stopped", "test", AT)
    world.serve("p")
    done = CliRunner().invoke(cli, ["version", "compare", "p@v3"], env=world.settings.to_env())
    assert done.exit_code == 3, (done.output, done.exception)
    newest = newest_comparison(world.settings.pipeline("p@v3"))
    assert newest is not None
    assert newest.beside == "p"
