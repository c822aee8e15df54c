from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rivertwice.cli.main import cli
from rivertwice.savepoint.operations.record import read_rewinds
from rivertwice.storage.table_care import TableCare
from rivertwice.stream.seal import stream_app
from rivertwice.timeline.intent import Intent
from rivertwice.timeline.sequence import head


@pytest.fixture
def run(rewind_world):
    def invoke(*arguments, output="text"):
        places = ["--project", str(rewind_world.settings.project), "--home", str(rewind_world.settings.home)]
        return CliRunner().invoke(cli, ["--output", output, *places, "savepoint", "rewind", "p", *arguments])

    return invoke


def test_without_a_word_it_only_shows_what_would_change(run, rewind_world):
    shown = run(rewind_world.taken.id)
    assert shown.exit_code == 1
    assert "nothing was changed: it needs a yes" in shown.stderr
    assert "batch 3 of timeline t1, on the head's path" in shown.output
    assert "3 closed windows, 3 rows" in shown.output
    assert "30 records" in shown.output
    assert f"rivertwice savepoint rewind p {rewind_world.taken.id} --yes" in shown.output
    plan = json.loads(run("--dry-run", output="json").stdout)
    assert (plan["savepoint"], plan["records"], plan["refusals"]) == (rewind_world.taken.id, 30, [])
    assert plan["reread"] == [{"partition": 0, "start": 40, "end": 70, "log_begins": 0}]
    assert head(rewind_world.home) == "t1"


def test_what_would_be_refused_exits_1_shown_and_done(run, rewind_world):
    rewind_world.begin[0] = 41
    shown = run("--dry-run")
    assert shown.exit_code == 1
    assert "refused: " in shown.output
    assert "--yes" not in shown.output
    done = run("--yes")
    assert done.exit_code == 1
    assert "flights-0 offsets 40 to 41" in done.output


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_tables_that_have_lost_rows_refuse_it_before_anything_is_done(run, rewind_world, words):
    """Batch 2 is on the path that stays, and emptied: what was served after the rewind would lack it without a word."""
    home = rewind_world.home
    entry = next(
        path
        for path in sorted((home.tables.changelog / "_delta_log").glob("*.json"))
        if f'"{stream_app("p", "t1")}","version":2' in path.read_text().replace(" ", "")
    )
    entry.write_text("")
    done = run(*words)
    assert done.exit_code == 1
    assert "table changelog is damaged" in done.output
    assert "rivertwice admin repair p" in done.output
    assert (head(home), read_rewinds(home)) == ("t1", [])
    assert Intent.load(home).desired == "running"


@pytest.mark.parametrize("words", [(), ("--yes",)])
def test_rows_that_are_gone_without_a_torn_log_refuse_it_too(run, rewind_world, words):
    home = rewind_world.home
    TableCare(home.tables.changelog).delete_batch("t1", 2)
    done = run(*words)
    assert done.exit_code == 1
    assert "changelog has lost rows of batch 2 of t1 (0 of 1 rows)" in done.output
    assert (head(home), read_rewinds(home), Intent.load(home).desired) == ("t1", [], "running")


def test_confirmed_in_two_parts_it_compares_and_then_moves_the_head(run, rewind_world):
    first = run("--yes", "--stop-before-head")
    assert first.exit_code == 0
    assert "the old head serves and the stream is stopped" in first.output
    assert "differs" in first.output
    assert head(rewind_world.home) == "t1"
    second = json.loads(run("--yes", output="json").stdout)
    assert (second["moved"], second["resumed"], second["comparison"]["differs"]) == (True, True, 1)
    assert head(rewind_world.home) == "t2"


def test_given_up_it_says_what_stays_behind(run, rewind_world):
    run("--yes", "--stop-before-head")
    given = json.loads(run("--abandon", "--yes", output="json").stdout)
    assert (given["stopped_after"], given["head"], given["running"]) == ("caught up and compared", "t1", True)
    assert len(given["left"]) == 2
    assert "nothing to abandon" in run("--abandon").output


@pytest.mark.parametrize(
    "words", [("--yes", "--dry-run"), ("--abandon", "--stop-before-head"), ("sp-t1-3-00000000", "--abandon")]
)
def test_words_that_contradict_each_other_are_not_understood(run, words):
    assert run(*words).exit_code == 2
