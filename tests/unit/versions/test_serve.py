"""A switch is one commit of the table that consumers read; each version keeps its own rows, and goes on to write only its own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from homes.versions import AT, GONE, World
from rivertwice.acts import version
from rivertwice.cli.main import cli
from rivertwice.core.errors import LostRaceError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.definition.bundle import load_bundle
from rivertwice.definition.definition import load_definition
from rivertwice.reconcile.seals import look
from rivertwice.savepoint.operations.upgrade import show_upgrade
from rivertwice.storage.table import Table
from rivertwice.timeline import served
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.served import export_sha256, read_served, rebuild_served
from rivertwice.timeline.served_stamp import BESIDE, read_served_stamp, serving_by_stamp, stamp_of
from rivertwice.timeline.version_records import hold_versions
from rivertwice.upkeep.rewrite import own_tables
from rivertwice.versions import serve
from rivertwice.versions.begin import begin_version, drop_version, find_wanted
from rivertwice.versions.serve import read_switches, serve_version

Rows = list[tuple[int, str, int]]


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_version_beside_writes_nothing_that_consumers_read(world: World) -> None:
    before = world.consumers_see()
    world.keep_all()
    assert world.consumers_see() == before
    own = read_served(world.new)
    assert own is not None
    assert min(own["n"].to_pylist()) > 90
    assert (world.old.serves, world.new.serves) == (True, False)


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back", "guarantees.md#version-switch")
def test_a_switch_and_its_way_back_are_one_commit_each(world: World) -> None:
    world.keep_all()
    first = world.consumers_see()
    sha256 = export_sha256(world.old)
    versions = [Table(world.old.public_served).version()]
    done = world.serve("p@v2")
    versions.append(Table(world.old.public_served).version())
    assert (done.version, done.before, done.changed) == ("p@v2", "p", True)
    assert all(n >= 99 for n in world.consumers_see())
    assert (world.old.serves, world.new.serves) == (False, True)
    assert serving_by_stamp(world.old) == "p@v2"
    assert not world.serve("p@v2").changed

    world.keep_all()  # each goes on: the old one beside
    assert export_sha256(world.old) == sha256
    assert world.old.tables.served != world.old.public_served == world.new.tables.served
    assert not Path(world.new.own_served).exists()  # an erasure or upkeep would not find it
    world.emit(world.new, range(10, 12), world.bundle, 100)
    world.keep_all()
    assert len(world.consumers_see()) == done.rows + 2

    back = world.serve("p")
    assert (back.version, back.before, back.changed) == ("p", "p@v2", True)
    assert world.consumers_see() == first
    assert export_sha256(world.old) == sha256
    world.keep_all()
    assert world.consumers_see() == first
    assert world.serve("p@v2").rows == done.rows + 2
    assert [(each["from"], each["to"]) for each in read_switches(world.old)] == [
        ("p", "p@v2"),
        ("p@v2", "p"),
        ("p", "p@v2"),
    ]
    assert versions[1] == versions[0] + 1


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back", "guarantees.md#version-switch")
@pytest.mark.parametrize("step", ["rebuild_served", "follow_stamp", "Table.overwrite"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_switch_that_was_cut_off_is_done_or_was_never_begun(world: World, step: str, after: bool, back: bool) -> None:
    world.keep_all()
    rows = {"p": world.consumers_see(), "p@v2": sorted(read_served(world.new)["n"].to_pylist())}  # type: ignore[index]
    if back:
        world.serve("p@v2")
    source, target = ("p@v2", "p") if back else ("p", "p@v2")
    place: Any = serve.Table if step == "Table.overwrite" else serve
    name = step.rpartition(".")[2]
    real, calls = getattr(place, name), []

    def killed(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        is_early = name == "follow_stamp" and len(calls) < 3  # the one after the commit is the third
        if is_early or (name == "overwrite" and arguments[0].place != world.old.public_served):
            return real(*arguments, **named)
        if after:
            real(*arguments, **named)
        raise KilledError

    with mock.patch.object(place, name, killed), pytest.raises(KilledError):
        world.serve(target)
    switched = name == "follow_stamp" or (name == "overwrite" and after)
    assert world.consumers_see() == rows[target if switched else source]
    world.keep_all()  # whoever looks next knows who serves
    assert world.consumers_see() == rows[target if switched else source]
    assert world.old.serving_version == (target if switched else source)
    left = own_tables(world.settings.pipeline(target), world.second)["served_left"] if switched else None
    assert world.serve(target).changed is not switched
    assert left is None or not Path(left).exists()
    world.keep_all()
    assert world.consumers_see() == rows[target]


@pytest.mark.proves("guarantees.md#version-switch")
def test_a_build_of_the_old_version_that_was_under_way_is_lost(world: World) -> None:
    world.keep_all()
    real = Table.open

    def switch_in_between(opened: Table) -> Any:
        table = real(opened)
        if opened.place == world.old.public_served and not switched:
            switched.append(True)
            with mock.patch.object(serve, "serving_lock", mock.MagicMock()):
                serve_version(world.settings, "p@v2", by="another host", now=AT)
        return table

    switched: list[bool] = []
    world.emit(world.old, range(10, 12), load_bundle(world.old.bundles, bundle_of(world)).id, 0)
    with mock.patch.object(Table, "open", switch_in_between):
        rebuild_served(world.old, world.first)
    assert switched
    assert all(n >= 99 for n in world.consumers_see())
    own = read_served(world.old)
    assert own is not None
    assert max(own["n"].to_pylist()) < 50


def bundle_of(world: World) -> str:
    from rivertwice.timeline.lineage import Timeline

    return Timeline.load(world.old, "t1").bundle


def test_a_commit_of_another_writer_during_the_switch_refuses_it(world: World) -> None:
    world.keep_all()
    real = Table.overwrite

    def late(table: Table, *arguments: Any, **named: Any) -> Any:
        rows = Table(world.old.public_served).read()
        assert rows is not None
        real(Table(world.old.public_served), rows, metadata={"served": stamp_of(world.old.public_served).plain()})  # type: ignore[union-attr]
        return real(table, *arguments, **named)

    with mock.patch.object(Table, "overwrite", late), pytest.raises(LostRaceError):
        world.serve("p@v2")
    assert serving_by_stamp(world.old) == "p"
    assert world.serve("p@v2").changed


def test_what_serves_is_not_dropped_and_what_never_ran_does_not_serve(world: World) -> None:
    world.keep_all()
    world.serve("p@v2")
    with pytest.raises(RequestError, match=r"p@v2 serves; .*`rivertwice version serve p`"):
        drop_version(world.settings, "p@v2", by="test", now=AT)
    world.serve("p")
    drop_version(world.settings, "p@v2", by="test", now=AT)
    with pytest.raises(RequestError, match="p@v2 is not a version of p that runs"):
        world.serve("p@v2")
    with pytest.raises(RequestError, match="p@v3 is not a version of p that runs"):
        world.serve("p@v3")


def run(world: World, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["version", "serve", *arguments], env=world.settings.to_env())


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_a_version_that_serves_already_says_only_that(world: World, how: str) -> None:
    world.keep_all()
    done = run(world, "p", how)
    assert (done.exit_code, done.output.strip().splitlines()) == (0, ["p serves already"])


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back", "guarantees.md#version-switch")
def test_windows_that_would_be_served_no_more_refuse_a_switch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.keep_all()
    write_intent(world.new, "stopped", "test", AT)
    write_intent(world.old, "stopped", "test", AT)
    world.seal("r1")
    monkeypatch.setattr(version, "find_parity", lambda *_: world.parity(left_out=(GONE,)))
    refused = run(world, "p@v2", "--yes")
    assert refused.exit_code == 1
    assert "windows of p@v2 could not be compared: 3 before" in refused.output
    assert serving_by_stamp(world.old) == "p"
    for words, code in (("--dry-run", 0), ("--without-left-out", 1)):
        shown = run(world, "p@v2", "--without-left-out", words)
        assert shown.exit_code == code, shown.output
        assert "p@v2 would serve in place of p" in shown.output
        assert serving_by_stamp(world.old) == "p"
    assert run(world, "p@v2", "--yes", "--without-left-out").exit_code == 0
    assert serving_by_stamp(world.old) == "p@v2"
    assert "serves already" in run(world, "p@v2", "--yes").output


@pytest.mark.proves("cli.md#savepoints-and-versions")
def test_a_version_without_a_cause_for_each_difference_does_not_serve(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.keep_all()
    for home in (world.old, world.new):
        write_intent(home, "stopped", "test", AT)
    world.seal("r1")
    parity = world.parity(reasons=("1 rows differ without a cause",))
    monkeypatch.setattr(version, "find_parity", lambda *_: parity)
    refused = run(world, "p@v2", "--yes")
    assert refused.exit_code == 3
    assert "refused  1 rows differ without a cause" in refused.output
    assert serving_by_stamp(world.old) == "p"


@pytest.mark.proves("howto-upgrade.md#let-it-serve-and-go-back")
def test_what_cannot_be_switched_is_refused_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.keep_all()
    folder = world.settings.definitions / "p"
    yaml = folder / "pipeline.yaml"
    yaml.write_text(yaml.read_text().replace("emit: final\n", "") + "emit: updates\n")
    definition = load_definition(folder)
    monkeypatch.setattr(serve, "head_definition", lambda _: definition)
    with pytest.raises(RequestError, match=r"has emit: updates, .*`rivertwice start p_2`"):
        world.serve("p@v2")
    assert serving_by_stamp(world.old) == "p"


def test_the_next_version_runs_beside_the_one_that_serves(world: World) -> None:
    world.keep_all()
    world.serve("p@v2")
    with pytest.raises(RequestError, match="gives the same results"):
        find_wanted(world.settings, "p")
    sql = world.settings.definitions / "p" / "transform.sql"
    sql.write_text(sql.read_text().replace("100 + count(*)", "200 + count(*)"))
    third = begin_version(world.settings, "p", by="test", now=AT)
    assert (third.name, third.beside) == ("p@v3", "p@v2")
    drop_version(world.settings, "p@v3", by="test", now=AT)
    assert world.settings.definition_folder("p@v2") == world.settings.frozen_definitions / "p@v2"
    assert serving_by_stamp(world.old) == "p@v2"


def test_a_frozen_definition_is_not_upgraded_in_place(world: World) -> None:
    for name in ("p", "p@v2"):
        with pytest.raises(RequestError, match=f"the definition of {name} is frozen"):
            show_upgrade(world.settings, name)


def test_a_look_on_a_host_that_missed_a_switch_is_at_the_own_table(world: World) -> None:
    world.keep_all()
    world.serve("p@v2")
    world.old.serving_note.unlink()  # the process that switched was killed before it noted that
    assert read_served_stamp(world.old) is None, "the first version has no table of its own yet"
    assert world.old.serving_version == world.new.root.name
    rebuild_served(world.old, world.first)
    world.old.serving_note.unlink()
    stamp = look.look_at_changes(world.old).stamp
    assert stamp is not None
    assert stamp.version == BESIDE
    assert stamp == read_served_stamp(world.old)


def test_no_version_is_switched_while_one_is_dropped(world: World) -> None:
    world.keep_all()
    before = world.consumers_see()
    with hold_versions(world.old), pytest.raises(LostRaceError, match="begins, drops or switches a version of p"):
        world.serve("p@v2")
    assert world.consumers_see() == before
    drop_version(world.settings, "p@v2", by="test", now=AT)
    with pytest.raises(RequestError, match="is not a version of p that runs"):
        world.serve("p@v2")
    assert world.consumers_see() == before


def test_a_look_between_two_tables_is_done_again(world: World) -> None:
    world.keep_all()
    real, left = look.read_changes, [1]

    def switched(home: PipelineHome, versions: Any) -> Any:
        seen = real(home, versions)
        if left[0]:
            left[0] -= 1
            world.serve("p@v2")
            rebuild_served(world.old, world.first)
        return seen

    with mock.patch.object(look, "read_changes", switched):
        seen = look.look_at_changes(world.old)
    assert seen.stamp is not None
    assert seen.stamp.version == BESIDE
    assert seen.versions["served"] == Table(world.old.own_served).version()


def test_a_build_that_sleeps_through_a_switch_changes_nothing_that_is_read(world: World) -> None:
    """On another host, so no lock keeps it away: it found no table of its own, which was made and, by the switch, removed."""
    slept: list[Any] = []

    def sleep(table: Any) -> None:
        if not slept:
            slept.append(table)
            world.keep_all()
            world.emit(world.new, range(10, 12), world.bundle, 100)
            world.serve("p@v2")

    with (
        mock.patch.object(served, "serving_lock", return_value=nullcontext()),
        mock.patch.object(Table, "require_whole", sleep),
    ):
        rebuild_served(world.new, world.second)
    assert slept
    shown = world.consumers_see()
    assert max(shown) == 110
    stray = Table(world.new.own_served).read()
    assert stray is not None
    assert max(stray["n"].to_pylist()) == 108
    world.keep_all()
    assert world.consumers_see() == shown

    world.serve("p")
    first = world.consumers_see()
    assert max(first) < 100
    world.keep_all()
    assert world.consumers_see() == first
    own = Table(world.new.own_served).read()
    assert own is not None
    assert sorted(own["n"].to_pylist()) == shown
