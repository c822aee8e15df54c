from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rivertwice.cli import cli
from rivertwice.timeline.sequence import head


@pytest.fixture
def run(rewind_world):
    def invoke(*arguments, output="text"):
        places = ["--project", str(rewind_world.settings.project), "--home", str(rewind_world.settings.home)]
        return CliRunner().invoke(cli, ["--output", output, *places, "savepoint", "rewind", "p", *arguments])

    return invoke


def test_without_a_word_it_only_shows_what_would_change(run, rewind_world):
    shown = run(rewind_world.taken.id)
    assert shown.exit_code == 0
    assert "batch 3 of timeline t1, on the head's path" in shown.output
    assert "3 closed windows, 3 rows" in shown.output
    assert "30 records" in shown.output
    assert f"rivertwice savepoint rewind p {rewind_world.taken.id} --confirm" in shown.output
    plan = json.loads(run(output="json").stdout)
    assert (plan["savepoint"], plan["records"], plan["refusals"]) == (rewind_world.taken.id, 30, [])
    assert plan["reread"] == [{"partition": 0, "start": 40, "end": 70, "log_begins": 0}]
    assert head(rewind_world.home) == "t1"


def test_what_would_be_refused_is_shown_with_exit_0_and_confirmed_it_ends_with_1(run, rewind_world):
    rewind_world.begin[0] = 41
    shown = run()
    assert shown.exit_code == 0
    assert "refused: " in shown.output
    assert "--confirm" not in shown.output
    done = run("--confirm")
    assert done.exit_code == 1
    assert "flights-0 offsets 40 to 41" in done.output


def test_confirmed_in_two_parts_it_shows_the_comparison_and_then_moves_the_head(run, rewind_world):
    first = run("--confirm", "--stop-before-head")
    assert first.exit_code == 0
    assert "the old head serves and the stream stands" in first.output
    assert "differs" in first.output
    assert head(rewind_world.home) == "t1"
    second = json.loads(run("--confirm", output="json").stdout)
    assert (second["moved"], second["resumed"], second["comparison"]["differs"]) == (True, True, 1)
    assert head(rewind_world.home) == "t2"


def test_given_up_it_says_what_stays_behind(run, rewind_world):
    run("--confirm", "--stop-before-head")
    given = json.loads(run("--abandon", output="json").stdout)
    assert (given["stopped_after"], given["head"], given["running"]) == ("caught up and compared", "t1", True)
    assert len(given["left"]) == 2
    assert "nothing to give up" in run("--abandon").output


@pytest.mark.parametrize(
    "words", [("--stop-before-head",), ("--abandon", "--confirm"), ("sp-t1-3-00000000", "--abandon")]
)
def test_words_that_contradict_each_other_are_not_understood(run, words):
    assert run(*words).exit_code == 2
