"""`rivertwice start NAME --from-batch`: refused or recorded before Spark is asked, and seen by `status` and the page until it is done."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner, Result

from histories.kinds import definition_files
from homes.backfill import SQL, YAML, make_home
from homes.first_load import ZONES, make_load
from homes.ledger import NOW
from homes.project import make_project
from rivertwice.backfill.load_state import ARCHIVE, LOOK, hold_load, note_step
from rivertwice.cli.catch_up import describe, finish
from rivertwice.cli.frame import Frame
from rivertwice.cli.main import cli
from rivertwice.core.errors import ServiceError
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.log import kafka
from rivertwice.read.read_facts import collect_facts
from rivertwice.timeline.first_load import record_load
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.stream_load import StreamLoad


def start(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["start", *arguments], env=settings.to_env())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dry-run",), "--dry-run shows what --from-batch or --accept-gap would do"),
        (("--from-batch", "--accept-gap", "gap-0f3a9c2e71b4"), "leave one of them out"),
        (("--from-batch",), "p began already: timeline t1"),
        (("--from-batch", "--dry-run"), "p began already: timeline t1"),
    ],
)
def test_a_load_that_cannot_be_meant_is_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path)
    result = start(settings, "p", *arguments)
    assert (result.exit_code, words in result.output) == (1, True), result.output
    assert Intent.load(home) is None


@pytest.mark.parametrize("kind", ["session", "fold", "as-of intervals", "hopping updates"])
def test_what_no_backfill_can_load_the_stream_loads(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_project(tmp_path, {"histories": definition_files(kind)})
    answers = {"topic_id": "id", "cluster_id": "c", "begin_offsets": {0: 3, 1: 0}, "end_offsets": {0: 40, 1: 5}}
    for name, answer in answers.items():
        monkeypatch.setattr(kafka, name, Mock(return_value=answer))
    topics = len(load_definition(settings.definitions / "histories").topics)
    for _ in range(2):  # the second one finds the record
        result = start(settings, "histories", "--from-batch")
        assert result.exit_code == 0, result.output
        assert f"the stream has read 0 of {42 * topics} records in large batches" in result.output
    load = StreamLoad.load(settings.pipeline("histories"))
    assert load is not None
    assert load.genesis["events"] == {"0": 3, "1": 0}
    intent = Intent.load(settings.pipeline("histories"))
    assert intent is not None
    assert intent.desired == "running"
    shown = CliRunner().invoke(cli, ["--output", "json", "status"], env=settings.to_env())
    (item,) = json.loads(shown.stdout)["pipelines"]
    assert item["stream_load"]["records_left"] == 42 * topics


def test_what_began_already_is_not_loaded_by_the_stream(tmp_path: Path) -> None:
    settings, home, _ = make_home(tmp_path, emit="updates")
    result = start(settings, "p", "--from-batch", "--dry-run")
    assert result.exit_code == 1
    assert "p began already" in result.output
    assert "`rivertwice upgrade p --new-version --recompute`" in result.output
    assert Intent.load(home) is None


def test_a_load_goes_on_where_no_agent_lives_only_to_say_so(tmp_path: Path) -> None:
    """The windows of hours 0 to 8 would have to be closed, and are closed until hour 8: no stream runs that could close them."""
    settings, home, bundle = make_home(tmp_path)
    record_load(home, make_load(bundle, before_ms=9 * 3_600_000), ZONES)
    result = start(settings, "p", "--from-batch")
    assert result.exit_code == 1
    assert "run `rivertwice up`, then `rivertwice start p --from-batch` again: it continues" in result.output
    intent = Intent.load(home)
    assert intent is not None
    assert intent.desired == "running"


def unfinished_by_status(settings: Settings) -> dict[str, Any]:
    shown = CliRunner().invoke(cli, ["--output", "json", "status"], env=settings.to_env())
    (item,) = json.loads(shown.stdout)["pipelines"]
    load: dict[str, Any] = item["first_load"]
    return load


def test_status_page_and_start_name_a_load_that_is_not_done(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    load = make_load(bundle)
    record_load(home, load, ZONES)
    text = f"first load {load.id} is not finished and no process of this host works on it, step 5 of 5"
    assert f"p: {text}" in CliRunner().invoke(cli, ["status"], env=settings.to_env()).output
    expected = {"load": load.id, "process": None, "step": 5, "steps": 5, "windows": 4, "windows_left": 4}
    shown = unfinished_by_status(settings)
    assert {key: shown[key] for key in expected} == expected
    assert shown["command"] == "rivertwice start p --from-batch"
    assert to_plain(collect_facts(settings, bundle.definition, NOW).first_load) == shown
    started = start(settings, "p")
    assert started.exit_code == 0
    assert f"{text}: backfills publish the windows (0 of 4 are published)" in started.output
    assert (
        "`rivertwice start p --from-batch` continues it; until then the windows to load serve nothing" in started.output
    )
    beside = CliRunner().invoke(cli, ["--output", "json", "start", "p"], env=settings.to_env())
    assert json.loads(beside.stdout)["first_load"] == shown


def test_a_record_that_was_changed_hides_nothing_else_of_status(tmp_path: Path) -> None:
    settings, home, bundle = make_home(tmp_path)
    record_load(home, make_load(bundle), ZONES)
    file = home.root / "first_load" / "load.json"
    file.write_text(file.read_text().replace('"before_ms": ', '"before_ms": 1'))
    assert "it was changed after it was written" in unfinished_by_status(settings)["message"]


@pytest.fixture
def fresh(tmp_path: Path) -> Settings:
    """A pipeline that never started."""
    return make_project(tmp_path, {"p": {"pipeline.yaml": YAML, "transform.sql": SQL}})


@pytest.mark.proves("howto-first-load.md#which-step-it-is-in")
def test_nobody_starts_the_whole_stream_while_a_load_reads_the_log(fresh: Settings) -> None:
    home = fresh.pipeline("p")
    note_step(home, LOOK)
    with hold_load(home):
        for arguments, words in (
            (("p",), f"(process {os.getpid()}), step 2 of 5: the log's event times are read"),
            (("p", "--from-batch"), f"process {os.getpid()} does a first load of p already"),
        ):
            refused = start(fresh, *arguments)
            assert (refused.exit_code, words in refused.output) == (1, True), refused.output
    assert Intent.load(home) is None


def test_a_start_after_a_load_that_recorded_nothing_says_what_it_does(fresh: Settings) -> None:
    home = fresh.pipeline("p")
    note_step(home, ARCHIVE)
    started = start(fresh, "p")
    assert started.exit_code == 0
    assert "step 1 of 5: the log is archived; `rivertwice start p --from-batch` continues it, unless" in started.output
    assert "this start begins first: it streams the whole log" in started.output
    assert Intent.load(home) is not None


@pytest.mark.parametrize(("master", "released"), [("local[2]", 0), ("spark://spark-master:7077", 1)])
def test_a_load_that_waits_for_its_stream_frees_the_cluster(master: str, released: int, tmp_path: Path) -> None:
    made, home, bundle = make_home(tmp_path)
    load = make_load(bundle, before_ms=9 * 3_600_000)
    record_load(home, load, ZONES)

    class Session:
        releases = 0

        def release(self) -> None:
            self.releases += 1

    def check_driver() -> None:
        raise ServiceError("no driver will run")

    session, frame = Session(), Frame(replace(made, spark_master=master), "text", debug=False)
    with pytest.raises(ServiceError, match="no driver will run"):
        finish(frame, load, 1, check_driver, session)  # type: ignore[arg-type]
    assert session.releases == released


def test_the_result_names_the_records_that_have_no_dead_letter(tmp_path: Path) -> None:
    _, _, bundle = make_home(tmp_path)
    load = make_load(bundle, rejected={"malformed": 4, "rule": 2})
    assert describe(load, []) == (
        f"{load.id}: all windows were published before; 6 records of the past are rejected, without a dead letter: malformed 4, rule 2"
    )
    assert "rejected" not in describe(make_load(bundle, rejected={}), [])
