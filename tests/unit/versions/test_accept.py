"""A version whose windows or keys are others: known from its files, never compared, and served when a person accepts that."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from homes.backfill import HOUR, NOW, make_home
from homes.project import replace_text
from homes.versions import AT, MORE, OTHER_KEY, TWO_HOURS, Change, World, edit_files
from rivertwice.acts import version
from rivertwice.cli.main import cli
from rivertwice.core.instants import from_ms
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.storage.table import Table
from rivertwice.timeline.intent import Intent, write_intent
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.timeline.version_records import Extent, read_versions
from rivertwice.versions import serve
from rivertwice.versions.accept import decide_unready
from rivertwice.versions.comparisons import newest_comparison
from rivertwice.versions.model import LOAD, RECONCILE, WAIT, ExcludedWindows, Proof
from rivertwice.versions.serve import read_switches
from rivertwice.versions.switching import choice_of
from rivertwice.versions.view import view_versions

WINDOWS = "the windows changed from 1 hour to 2 hours, so a row of one has no counterpart in the other"
KEYS = "the keys changed from k to origin, so a row of one has no counterpart in the other"
REASON = "windows of two hours, as planned"
ACCEPT = ("version", "serve", "p@v2", "--accept-different", "--reason", REASON)
CHANGES = pytest.mark.parametrize(("change", "why"), [(TWO_HOURS, WINDOWS), (OTHER_KEY, KEYS)], ids=["window", "key"])


def run(settings: Settings, *arguments: str) -> Result:
    """Run a command where Spark may not be asked, and Kafka is a few numbers."""
    answers = {"topic_id": "id", "cluster_id": "c", "begin_offsets": {0: 0}, "end_offsets": {0: 40}}
    with (
        mock.patch("rivertwice.engine.session.spark_session", side_effect=AssertionError("Spark was started")),
        mock.patch.multiple(kafka, **{name: mock.Mock(return_value=answer) for name, answer in answers.items()}),
    ):
        return CliRunner().invoke(cli, list(arguments), env=settings.to_env())


def printed(text: str, beginning: str) -> list[str]:
    """Return the words of the first command in backquotes that begins so, with a reason of a person."""
    command = next(part for part in text.split("`")[1::2] if part.startswith(beginning))
    return shlex.split(command.replace("TEXT", shlex.quote(REASON)))[1:]


def two_versions(folder: Path, change: Change = TWO_HOURS) -> World:
    """Return a version that has read as far as the one that serves, both proved."""
    world = World(folder, change)
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)
    world.seal("r1")
    world.reconciled("p")
    return world


@pytest.mark.proves("howto-upgrade.md#other-windows-or-keys")
@CHANGES
def test_a_refused_upgrade_names_the_difference_and_the_way_that_works(
    tmp_path: Path, change: Change, why: str
) -> None:
    settings, home, _ = make_home(tmp_path)
    write_intent(home, "stopped", "test", NOW)
    change.edit(settings)
    refused = run(settings, "upgrade", "p")
    assert refused.exit_code == 1
    text = " ".join(refused.output.split())
    assert why in text
    assert printed(text, "rivertwice upgrade") == ["upgrade", "p", "--new-version"]
    assert printed(text, "rivertwice version serve") == list(ACCEPT)


@CHANGES
def test_a_version_says_as_it_begins_that_a_person_must_accept_the_switch(
    tmp_path: Path, change: Change, why: str
) -> None:
    settings, home, _ = make_home(tmp_path)
    write_intent(home, "stopped", "test", NOW)
    change.edit(settings)
    without_spark = run(settings, "upgrade", "p", "--new-version", "--dry-run")
    assert without_spark.exit_code == 1, "the plan itself reads the log"
    assert printed(without_spark.stderr, "rivertwice version serve") == list(ACCEPT)  # it was said before that
    with (
        mock.patch("rivertwice.versions.plan.look_at_log", return_value="nothing is to be loaded"),
        mock.patch("rivertwice.versions.plan.view_retention", return_value=mock.Mock(topics=[])),
        mock.patch("rivertwice.engine.session.spark_on_demand"),
    ):
        shown = run(settings, "upgrade", "p", "--new-version", "--dry-run")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    accept = next(line for line in shown.stdout.splitlines() if line.startswith("accept"))
    assert why in accept
    assert printed(accept, "rivertwice version serve") == list(ACCEPT)
    assert not any(line.startswith("declare") for line in shown.stdout.splitlines())
    with mock.patch("rivertwice.cli.versions.load_and_start", return_value=({}, "loaded")):
        begun = run(settings, "upgrade", "p", "--new-version", "--yes")
    assert begun.exit_code == 0, (begun.output, begun.exception)
    assert printed(begun.stdout, "rivertwice version serve") == list(ACCEPT)
    assert "version compare" not in begun.output


@CHANGES
def test_a_comparison_that_cannot_pass_is_not_computed(tmp_path: Path, change: Change, why: str) -> None:
    world = World(tmp_path, change)  # without any proof
    write_intent(world.new, "stopped", "test", AT)
    refused = run(world.settings, "version", "compare", "p@v2")
    assert refused.exit_code == 3, (refused.output, refused.exception)
    assert f"refused  {why}" in refused.stdout
    assert "no reconcile has proved" not in refused.stdout
    assert printed(refused.stdout, "rivertwice version serve") == list(ACCEPT)
    stored = newest_comparison(world.new)
    assert stored is not None
    assert (list(stored.different), stored.verdict) == ([why], "no row was compared")
    assert "no row was compared" in run(world.settings, "version", "list", "p").stdout


@pytest.mark.proves("howto-upgrade.md#other-windows-or-keys", "guarantees.md#version-switch")
@CHANGES
def test_a_person_accepts_other_rows_and_the_record_says_who_when_and_why(
    tmp_path: Path, change: Change, why: str
) -> None:
    world = two_versions(tmp_path, change)
    before = world.consumers_see()
    asked = run(world.settings, "version", "serve", "p@v2", "--yes")
    assert asked.exit_code == 3
    assert f"differs  {why}" in asked.stdout
    assert serving_by_stamp(world.old) == "p"
    words = printed(asked.stdout, "rivertwice version serve")
    shown = run(world.settings, "--output", "json", *words, "--dry-run")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    exchange = json.loads(shown.stdout)["exchange"]
    rows = len(before)
    assert exchange["before"] == {
        "version": "p", "rows": rows, "windows": rows, "start": "1970-01-01T00:00:00Z", "end": "1970-01-01T08:00:00Z",
    }  # fmt: skip
    assert exchange["after"]["rows"] == len(world.consumers_see_of("p@v2"))
    assert exchange["unready"] == []
    assert serving_by_stamp(world.old) == "p"
    done = run(world.settings, *words, "--yes")
    assert done.exit_code == 0, (done.output, done.exception)
    assert serving_by_stamp(world.old) == "p@v2"
    assert world.consumers_see() == world.consumers_see_of("p@v2")

    (version,) = read_versions(world.old)
    accepted = version.accepted
    assert accepted is not None
    assert (accepted.reason, accepted.different) == (REASON, (why,))
    assert accepted.by
    assert accepted.before == Extent("p", rows, rows, "1970-01-01T00:00:00Z", "1970-01-01T08:00:00Z")
    (switch,) = read_switches(world.old)
    assert (switch["reason"], switch["by"], switch["compared"]) == (REASON, accepted.by, {})
    assert switch["accepted"] == to_plain(accepted)
    listed = run(world.settings, "version", "list", "p").stdout
    assert f"p@v2: accepted by {accepted.by} at " in listed
    assert REASON in listed
    value = json.loads(run(world.settings, "--output", "json", "version", "list", "p").stdout)
    assert value[0]["accepted"]["before"]["rows"] == rows
    status = CliRunner().invoke(cli, ["status"], env=world.settings.to_env())
    assert status.exit_code == 0, (status.output, status.exception)
    assert f"{accepted.by} accepted them at" in status.stdout

    back = run(world.settings, "version", "serve", "p", "--yes")  # falls back without a word
    assert back.exit_code == 0, (back.output, back.exception)
    assert world.consumers_see() == before
    again = run(world.settings, "version", "serve", "p@v2", "--yes")
    assert again.exit_code == 0, (again.output, again.exception)
    assert serving_by_stamp(world.old) == "p@v2"


def test_an_acceptance_needs_a_reason(tmp_path: Path) -> None:
    world = two_versions(tmp_path)
    refused = run(world.settings, "version", "serve", "p@v2", "--accept-different", "--yes")
    assert refused.exit_code == 2
    assert "a decision is kept with its reason" in refused.output
    assert serving_by_stamp(world.old) == "p"


def reconciles(does: Callable[[str], object]) -> Any:
    """Do something in place of each reconcile that the command line asks for, by the name of its pipeline."""
    return mock.patch("rivertwice.cli.versions.run_act", side_effect=lambda _frame, _act, name, _asked: does(name))


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back")
def test_rows_that_differ_without_a_cause_serve_by_a_persons_word_which_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = two_versions(tmp_path, MORE)
    reasons = ("7 rows differ without a cause",)
    monkeypatch.setattr(version, "find_parity", lambda *_: world.parity(reasons=reasons))
    refused = run(world.settings, "version", "serve", "p@v2", "--yes")
    assert refused.exit_code == 3
    words = printed(refused.output, "rivertwice version serve")
    assert words == list(ACCEPT)
    asked = run(world.settings, *words, "--dry-run")
    assert asked.exit_code == 0
    assert "p@v2 would serve in place of p" in asked.output
    assert serving_by_stamp(world.old) == "p"
    assert run(world.settings, *words, "--yes").exit_code == 0
    assert serving_by_stamp(world.old) == "p@v2"
    accepted, stored = read_versions(world.old)[0].accepted, newest_comparison(world.new)
    assert accepted is not None
    assert (accepted.different, accepted.reason) == (reasons, REASON)
    assert stored is not None
    assert (stored.passed, tuple(stored.reasons)) == (False, reasons)
    (switch,) = read_switches(world.old)
    assert switch["compared"]["run"] == stored.run


def test_rows_that_all_have_a_cause_need_no_persons_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = two_versions(tmp_path, MORE)
    monkeypatch.setattr(version, "find_parity", lambda *_: world.parity())
    assert run(world.settings, *ACCEPT, "--yes").exit_code == 0
    assert serving_by_stamp(world.old) == "p@v2"
    assert read_versions(world.old)[0].accepted is None
    assert run(world.settings, "version", "serve", "p", "--accept-different", "--reason", "x", "--yes").exit_code == 0
    assert serving_by_stamp(world.old) == "p"


def test_what_no_reconcile_proves_is_reconciled_before_a_switch(tmp_path: Path) -> None:
    world = World(tmp_path, TWO_HOURS)
    world.keep_all()
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)
    asked: list[str] = []

    def reconcile(name: str) -> None:
        asked.append(name)
        if name == "p@v2":
            world.seal("r1")
            world.reconciled("p")

    with reconciles(reconcile):
        assert run(world.settings, *ACCEPT, "--dry-run").exit_code == 1
        assert asked == []
        assert run(world.settings, *ACCEPT, "--yes").exit_code == 0
        assert asked == ["p", "p@v2"]
        assert serving_by_stamp(world.old) == "p@v2"
        assert run(world.settings, "version", "serve", "p", "--yes").exit_code == 0
    assert asked == ["p", "p@v2"]


def test_a_version_whose_first_load_is_not_done_is_not_reconciled_for_a_switch(tmp_path: Path) -> None:
    world = World(tmp_path, TWO_HOURS)
    world.keep_all()
    choice = choice_of(world.settings, "p@v2")
    assert choice.unproved(world.settings) == ["p", "p@v2"]
    with mock.patch("rivertwice.versions.switching.find_unfinished_load", return_value="a load"):
        assert choice.unproved(world.settings) == []


@pytest.mark.proves("howto-upgrade.md#other-windows-or-keys", "guarantees.md#version-switch")
def test_a_version_without_its_own_proof_is_accepted_by_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, TWO_HOURS)
    world.keep_all()
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)
    with reconciles(lambda _: None):  # neither of them passes
        refused = run(world.settings, *ACCEPT, "--yes")
    assert refused.exit_code == 1
    for name in ("p", "p@v2"):
        assert f"`rivertwice reconcile {name}`" in refused.output
    assert serving_by_stamp(world.old) == "p"
    assert read_versions(world.old)[0].accepted is None
    world.seal("r1")  # what the two commands leave
    world.reconciled("p")
    assert run(world.settings, *ACCEPT, "--yes").exit_code == 0


def test_a_version_that_has_not_caught_up_is_accepted_by_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, TWO_HOURS)
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)
    world.seal("r1")
    world.reconciled("p", read=120)
    refused = run(world.settings, *ACCEPT, "--yes")
    assert refused.exit_code == 1
    assert "p@v2 has not read 20 records that p had read at its reconcile" in refused.output
    assert run(world.settings, *printed(refused.output, "rivertwice start")).exit_code == 0
    intent = Intent.load(world.new)
    assert intent is not None
    assert intent.desired == "running"
    world.emit(world.new, range(10, 12), world.bundle, 100)  # its stream reads on
    assert run(world.settings, *ACCEPT, "--yes").exit_code == 0


def test_a_reconcile_that_fails_between_the_question_and_the_commit_prevents_the_switch(tmp_path: Path) -> None:
    world = two_versions(tmp_path)
    real = serve.serve_version

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        world.emit(world.new, range(10, 11), world.bundle, 100)
        world.reconciled("p", read=400)
        return real(*arguments, **named)

    with mock.patch.object(serve, "serve_version", meanwhile):
        refused = run(world.settings, *ACCEPT, "--yes")
    assert refused.exit_code == 1
    assert "p@v2 has not read 290 records" in refused.output
    assert serving_by_stamp(world.old) == "p"
    assert read_versions(world.old)[0].accepted is None


def test_status_says_what_an_incomparable_version_waits_for(tmp_path: Path) -> None:
    world = World(tmp_path, TWO_HOURS)
    world.keep_all()

    def step() -> tuple[str, str]:
        (view,) = [each for each in view_versions(world.settings, "p") if each.name == "p@v2"]
        return view.next.act, view.next.text

    assert step() == (RECONCILE, "no reconcile has proved what p@v2 serves; run `rivertwice reconcile p@v2`")
    world.seal("r1")
    act, text = step()
    assert (act, "`rivertwice reconcile p`" in text) == (RECONCILE, True)
    world.reconciled("p")
    act, text = step()
    assert act == "accept"
    assert printed(text, "rivertwice version serve") == list(ACCEPT)


def test_where_no_row_is_reconciled_the_newest_gate_is_the_proof(tmp_path: Path) -> None:
    unjudged = Change(
        edit_files(("transform.sql", "count(*)", "100 + count(*)"), ("pipeline.yaml", "emit: final", "compare: false"))
    )
    world = World(tmp_path, unjudged)
    world.keep_all()
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)
    world.reconciled("p")
    with reconciles(lambda _: None):
        refused = run(world.settings, *ACCEPT, "--yes")
        assert refused.exit_code == 1
        assert "no reconcile of p@v2 has run; run `rivertwice reconcile p@v2`" in refused.output
    with reconciles(lambda name: world.reconciled(name, passed=False)):
        refused = run(world.settings, *ACCEPT, "--yes")
    assert refused.exit_code == 1
    assert "of p@v2 did not pass: 1 row is a DEFECT" in refused.output
    world.reconciled("p@v2", read=101)
    shown = run(world.settings, *ACCEPT, "--dry-run")
    assert "p@v2 says compare: false, so no reconcile proves what it serves" in shown.stdout
    assert run(world.settings, *ACCEPT, "--yes").exit_code == 0
    assert serving_by_stamp(world.old) == "p@v2"


def test_windows_whose_records_are_gone_are_refused_here_too(tmp_path: Path) -> None:
    world = two_versions(tmp_path)
    left = ExcludedWindows(AT, AT, 3, "records of these windows are in neither Kafka nor the archive any more")
    with mock.patch("rivertwice.versions.accept._left_out", return_value=(left,)):
        refused = run(world.settings, *ACCEPT, "--yes")
        assert refused.exit_code == 1
        assert "--without-left-out" in refused.output
        assert serving_by_stamp(world.old) == "p"
        assert run(world.settings, *ACCEPT, "--without-left-out", "--yes").exit_code == 0
    assert serving_by_stamp(world.old) == "p@v2"


def test_the_figures_of_a_table_are_counted_where_its_files_are_read(tmp_path: Path) -> None:
    table = World(tmp_path).old.public_served
    whole = Table(table).extent("window_start", "window_end")
    assert (whole.rows, whole.starts, whole.first, whole.last) == (8, 8, from_ms(0), from_ms(8 * HOUR))
    early = Table(table).extent("window_start", "window_start", before_ms=3 * HOUR)
    assert (early.rows, early.first, early.last) == (3, from_ms(0), from_ms(2 * HOUR))
    assert Table(table).extent("window_start", "window_end", before_ms=0).first is None
    assert Table(tmp_path / "none").extent("window_start", "window_end").rows == 0


@pytest.mark.parametrize(
    ("values", "acts"),
    [
        ({}, []),
        ({"unfinished": "its load is not done"}, [LOAD]),
        ({"proof": Proof("p@v2", None, 0, lacks="not proved")}, [RECONCILE]),
        ({"run": None}, [RECONCILE]),
        ({"reached": {"a": {"0": 9}, "b": {"0": 5}}}, [WAIT]),
        ({"reached": {"a": {"0": 9}}, "topics": ["b"]}, [WAIT]),
        ({"reached": {"a": {"0": 10}}, "topics": ["a"]}, []),
    ],
)
def test_all_that_a_comparison_would_need_but_equal_rows_is_still_needed(
    values: dict[str, Any], acts: Sequence[str]
) -> None:
    known: dict[str, Any] = {
        "proof": Proof("p@v2", "r1", 7),
        "unfinished": None,
        "serving": "p",
        "run": {"run": "r0", "as_of": {"a": {"0": 10}, "b": {"0": 5}}},
        "reached": {"a": {"0": 10}, "b": {"0": 6}},
        "topics": ["a", "b"],
    }
    assert [step.act for step in decide_unready(**{**known, **values})] == acts


@pytest.mark.proves("howto-upgrade.md#other-windows-or-keys", "guarantees.md#version-switch")
@pytest.mark.parametrize("command", [("upgrade", "p"), ("upgrade", "p", "--new-version", "--yes")])
def test_what_can_never_be_switched_is_refused_before_it_begins_with_another_way(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    settings, home, _ = make_home(tmp_path, emit="updates")
    write_intent(home, "stopped", "test", NOW)
    folder = settings.definitions / "p"
    replace_text(folder / "transform.sql", "count(*)", "1 + count(*)")
    refused = run(settings, *command)
    assert refused.exit_code == 1
    text = " ".join(refused.output.split())
    assert "p has emit: updates, whose open windows are a separate table" in text
    assert "--new-version" not in text
    assert read_versions(home) == []
    # what it says to do, word by word
    assert "copy pipelines/p to pipelines/p_2, write `name: p_2` in its pipeline.yaml, put pipelines/p back" in text
    shutil.copytree(folder, settings.definitions / "p_2")
    replace_text(settings.definitions / "p_2" / "pipeline.yaml", "name: p", "name: p_2")
    replace_text(folder / "transform.sql", "1 + count(*)", "count(*)")
    started = run(settings, *printed(text, "rivertwice start"))
    assert started.exit_code == 0, (started.output, started.exception)
    intent = Intent.load(settings.pipeline("p_2"))
    assert intent is not None
    assert intent.desired == "running"
    assert "there is nothing to upgrade" in run(settings, "upgrade", "p").output
