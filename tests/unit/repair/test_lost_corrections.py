"""Corrections that lost rows: nothing is served without them, a look names the backfill, a repair gives its chunks back, proved."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from homes.backfill import asked, result, write_chunk
from homes.torn import make_home, tear
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import ChunkRecord, save_plan
from rivertwice.cli.main import cli
from rivertwice.core.errors import TableDamageError
from rivertwice.storage import delta
from rivertwice.storage.delta_log import CUT, EMPTY, GONE, added_files, entry_path, parse_entry
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import export_sha256, rebuild_served
from rivertwice.timeline.served_rows import publications_of
from rivertwice.upkeep.repair_corrections import lost_chunks

pytestmark = pytest.mark.long

ROWS = ([(0, "a", 10), (0, "b", 1), (1, "a", 11)], [(2, "a", 12)])


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A home with a published backfill of two chunks, three rows and one, which is served."""
    settings, home, bundle = make_home(tmp_path)
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 100)})
    plan = save_plan(home, plan_backfill(asked(0, 3), observe_backfill(settings, "p"), chunk_records=20))
    for chunk, rows in enumerate(ROWS):
        write_chunk(home, plan, chunk, *rows)
    audit_backfill(settings, plan)
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    return settings, home, bundle, plan


def ask(settings, *arguments):
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*options, "repair", "p", *arguments])
    return answer.exit_code, json.loads(answer.stdout) if answer.exit_code in (0, 3) else answer.output


def tear_chunk(home, chunk, how, *, with_files=False):
    """Tear the commit of a chunk."""
    table = home.tables.corrections
    found = {value["chunk"]: version for version, value in delta.commits(table, "backfill")}
    path = entry_path(table, found[chunk])
    if with_files:
        for file in added_files(table, parse_entry(path.read_bytes())):
            file.unlink()
    tear(path, how)


def corrected(home):
    return sorted(map(str, delta.read(home.tables.corrections).to_pylist()))


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("how", [EMPTY, CUT, GONE])
def test_a_publication_without_rows_gets_them_from_their_own_file(made, chunk, how):
    settings, home, bundle, plan = made
    served, rows = export_sha256(home), corrected(home)
    tear_chunk(home, chunk, how)
    with pytest.raises(TableDamageError, match=r"corrections.*rivertwice repair p"):
        rebuild_served(home, bundle.definition, force=True)
    assert export_sha256(home) == served
    code, shown = ask(settings)
    assert code == 3
    (named,) = [one for one in shown["damages"] if plan.id in one["what"]]
    assert named["what"] == f"backfill {plan.id} has {(1, 3)[chunk]} of 4 rows"
    assert "own data files, which are still there" in named["cure"]
    code, report = ask(settings, "--yes")
    assert (code, report["left"], report["failed"]) == (0, [], [])
    assert corrected(home) == rows
    assert export_sha256(home) == served
    assert audit_backfill(settings, plan).passed
    assert ask(settings) == (0, {"damages": [], "repaired": False})


@pytest.mark.parametrize("rows", [ROWS[0], ROWS[0][:2]], ids=["the rows that were audited", "one row fewer"])
def test_a_lost_chunk_is_computed_again_and_written_if_its_count_is_right(made, monkeypatch, rows):
    settings, home, bundle, plan = made
    served, before = export_sha256(home), corrected(home)
    tear_chunk(home, 0, EMPTY, with_files=True)
    asked_for = []

    def computed(spark, settings, plan, definition, chunks):
        asked_for.extend(chunk.index for chunk in chunks)
        yield chunks[0], result(*rows), ChunkRecord(0, len(rows), {})

    monkeypatch.setattr("rivertwice.upkeep.repair_corrections.chunks_computed", computed)
    monkeypatch.setattr("rivertwice.upkeep.repair_corrections.session_of", lambda *_: None)
    code, report = ask(settings, "--yes")
    assert asked_for == [0]
    if rows == ROWS[0]:
        assert (code, report["left"], corrected(home)) == (0, [], before)
        rebuild_served(home, bundle.definition, force=True)
    else:
        assert code == 3
        assert "gave 3 rows together with those that are there, its audit counted 4" in report["failed"][0]
        assert len(corrected(home)) == 1
        with pytest.raises(TableDamageError, match=rf"{plan.id} \(1 of 4 rows\)"):
            rebuild_served(home, bundle.definition, force=True)
    assert export_sha256(home) == served


def test_a_publication_says_how_many_rows_it_has(made):
    _, home, _, plan = made
    (one,) = publications_of(read_sequence(home))
    assert (one.backfill, one.rows) == (plan.id, 4)


@pytest.mark.parametrize(
    ("declared", "held", "expected", "found"),
    [
        ({0: 3, 1: 1}, {0: 3, 1: 1}, 4, ([], [])),
        ({1: 1}, {1: 1}, 4, ([0], [])),
        ({0: 3}, {0: 3}, 4, ([1], [])),
        ({0: 3, 1: 1}, {0: 2, 1: 1}, 4, ([], [0])),
        ({0: 0}, {}, 1, ([1], [])),
        ({}, {0: 2, 1: 1}, 4, ([], [0, 1])),
    ],
    ids=[
        "whole",
        "a commit gone",
        "the newest gone",
        "a file gone",
        "one that has no rows",
        "commits dropped long ago",
    ],
)
def test_which_chunks_are_gone_and_which_may_lack_rows(declared, held, expected, found):
    assert lost_chunks(2, declared, held, expected) == found
