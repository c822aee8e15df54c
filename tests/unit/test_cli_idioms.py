"""Every verb has the idioms that fit it, and docs/cli-idioms.md lists them as the commands are."""

from __future__ import annotations

import inspect

import click
import pytest
from click.testing import CliRunner

from homes.idioms import Verb, page, verbs
from homes.project import REPOSITORY
from rivertwice.cli.main import cli

VERBS = list(verbs())
OWN_NAME = {"init"}  # its NAME is a pipeline that is not there yet
FOR_ALL = {"alerts test", "admin privacy resume", "admin privacy list"}
WRITES = (
    "write_", "replace_json", "replace_bytes", "record_event", "move_head", "accept_gap", "prune_savepoints", "drop_version",
    "publish_backfill", "hand_over(", "begin_erasure", "restore_savepoint", "rewind_stream", "upgrade_stream", "save_plan",
)  # fmt: skip
"""Functions of rooms that change something; a command that calls one is marked."""


def test_the_page_is_what_the_commands_are() -> None:
    shown = (REPOSITORY / "docs" / "cli-idioms.md").read_text()
    assert shown == page(), "PYTHONPATH=tests python -m homes.idioms > docs/cli-idioms.md"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.title)
def test_a_verb_has_help_an_example_and_the_options_of_every_command(verb: Verb) -> None:
    result = CliRunner().invoke(cli, [*verb.path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert f"rivertwice {verb.title}" in result.output.partition("Example:")[2]
    assert "--output" in verb.options
    first = verb.command.get_short_help_str(200)
    assert first[0].isupper()
    assert first.endswith(".") or not first.endswith(","), first
    for param in verb.parameters:
        if isinstance(param, click.Option) and not param.hidden:
            assert param.help, f"{verb.title} {param.opts[0]} has no help"
            assert param.help.endswith("."), f"{verb.title} {param.opts[0]}: {param.help}"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.title)
def test_a_verb_that_asks_has_the_whole_idiom_and_none_asks_otherwise(verb: Verb) -> None:
    asking = {"--yes", "--dry-run", "--reason"}
    if verb.asks:
        assert asking <= verb.options
        assert verb.changes
    else:
        assert "--yes" not in verb.options
        source = inspect.getsource(inspect.unwrap(verb.command.callback)) if verb.command.callback else ""
        assert "click.confirm" not in source
    if verb.changes and not verb.asks:
        assert getattr(verb.command.callback, "because", ""), "what changes things and does not ask says why"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.title)
def test_a_verb_that_writes_is_marked(verb: Verb) -> None:
    assert verb.command.callback is not None
    source = inspect.getsource(inspect.unwrap(verb.command.callback))
    calls = [name for name in WRITES if name in source]
    assert not calls or verb.changes, f"{verb.title} calls {calls}; mark it with asks_first or changes_unasked"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.title)
def test_one_thing_has_one_name(verb: Verb) -> None:
    options = verb.options
    assert not options & {"--confirm", "--start", "--end-time", "--wait-seconds", "--force"}
    assert "--why" not in options or verb.title == "status", "a reason is --reason; status --why asks for one"
    assert ("--from" in options) == ("--to" in options) or "--from-topic" in options
    assert "--wait" not in options or "--timeout" in options
    if "name" in verb.arguments and verb.title not in OWN_NAME:
        assert verb.arguments[0] == "name"
    for param in verb.parameters:
        if "--limit" in param.opts:
            assert isinstance(param.type, click.IntRange), f"{verb.title}: --limit is a number of rows"
        if "--last" in param.opts and not getattr(param, "hidden", False):
            assert param.type.name == "duration", f"{verb.title}: --last is a span, --limit a number of rows"
        if (
            param.opts[:1] in (["--from"], ["--to"], ["--at"], ["--since"], ["--until"])
            and verb.title not in ("replay flights", "start")  # what `start` waits for is not an instant
        ):
            assert param.type.name == "instant", f"{verb.title} {param.opts[0]}"


def test_what_moves_a_head_deletes_or_changes_what_is_served_asks() -> None:
    asking = {verb.title for verb in VERBS if verb.asks}
    assert asking == {
        "start", "fix", "backfill catch-up", "backfill run", "admin repair", "admin privacy erase", "savepoint restore", "savepoint rewind",
        "savepoint fall-back", "savepoint prune", "upgrade", "version serve", "version drop",
    }  # fmt: skip
