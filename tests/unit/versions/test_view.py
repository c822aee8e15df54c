"""Status and page say of each version whether it serves, how far it is proved, and what to do next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from homes.versions import AT, World
from rivertwice.cli.main import cli
from rivertwice.core.plain import to_plain
from rivertwice.read.timelines import describe_versions
from rivertwice.timeline.intent import write_intent
from rivertwice.versions.begin import drop_version
from rivertwice.versions.changes import changes_path
from rivertwice.versions.comparisons import store_comparison
from rivertwice.versions.view import BACK, COMPARE, DECLARE, NONE, RECONCILE, SERVE, view_versions


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.keep_all()
    return made


def act(world: World, name: str = "p@v2") -> tuple[str, str]:
    (step,) = [each.next for each in view_versions(world.settings, "p") if each.name == name]
    return step.act, step.text


def test_what_to_do_next_follows_the_way_of_a_version(world: World) -> None:
    assert act(world, "p") == (NONE, "")
    assert act(world) == (RECONCILE, "no reconcile has proved what p serves; run `rivertwice reconcile p`")
    world.seal("r1")
    assert act(world) == (COMPARE, "both sides are proved; `rivertwice version compare p@v2`")
    reasons = ("3 rows differ without a cause",)
    store_comparison(world.new, world.parity(reasons=reasons), "pc-1", by="test", now=AT)
    assert act(world)[0] == DECLARE
    assert "declare in pipelines/p/changes/v2.yaml what is meant" in act(world)[1]
    path = changes_path(world.settings, "p@v2")
    path.parent.mkdir()
    path.write_text("reason: meant\n")
    assert act(world) == (
        COMPARE,
        "the change file of p@v2 was changed since; `rivertwice version compare p@v2`",
    )
    path.unlink()
    store_comparison(world.new, world.parity(), "pc-2", by="test", now=AT.replace(hour=1))
    assert act(world) == (SERVE, "every difference has a cause; `rivertwice version serve p@v2`")
    world.serve("p@v2")
    assert act(world) == (NONE, "")
    assert act(world, "p") == (BACK, "served before; `rivertwice version serve p` goes back to it")


def test_a_pipeline_with_one_version_has_no_such_section(world: World) -> None:
    assert len(to_plain(describe_versions(world.settings, "p", AT))) == 2
    assert to_plain(describe_versions(world.settings, "p@v2", AT)) == []
    drop_version(world.settings, "p@v2", by="test", now=AT)
    assert to_plain(describe_versions(world.settings, "p", AT)) == []


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back")
def test_the_page_has_figures_and_the_next_step(world: World) -> None:
    old, new = to_plain(describe_versions(world.settings, "p", AT))
    assert (old["serves"], old["since"], old["batches"], old["proved_until"]) == (True, None, 10, None)
    assert new["comparison"] is None
    assert new["next"]["act"] == "reconcile"
    world.seal("r1")
    store_comparison(world.new, world.parity(), "pc-1", by="test", now=AT)
    old, new = to_plain(describe_versions(world.settings, "p", AT))
    assert old["proved_until"] == "1970-01-01T08:00:00Z"
    assert new["comparison"]["counts"]["declared"] == 7
    assert (new["next"]["act"], new["next"]["version"]) == ("serve", "p@v2")
    world.serve("p@v2")
    old, new = to_plain(describe_versions(world.settings, "p", AT))
    assert (new["serves"], new["since"]) == (True, "2026-11-26T00:00:00Z")
    assert (old["next"]["act"], old["next"]["version"]) == ("back", "p")


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back")
def test_status_names_both_versions_and_what_they_wait_for(world: World) -> None:
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)

    def status(*options: str) -> str:
        done = CliRunner().invoke(cli, [*options, "status"], env=world.settings.to_env())
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    text = status()
    assert "p@v2: no reconcile has proved what p serves; run `rivertwice reconcile p`" in text
    assert "p@v2: another version serves" in text
    world.seal("r1")
    world.serve("p@v2")
    assert "p: served before; `rivertwice version serve p` goes back to it" in status()
    items = {item["name"]: item for item in json.loads(status("--output", "json"))["pipelines"]}
    assert [each["serves"] for each in items["p"]["versions"]] == [False, True]
    assert items["p@v2"]["versions"] == []
