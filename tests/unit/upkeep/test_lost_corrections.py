"""Corrections that lost rows: nothing is served without them; a repair names the command that brings them back."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import nullcontext

import pyarrow as pa
import pytest
from click.testing import CliRunner

from homes.backfill import HOUR, asked, result, write_chunk
from homes.torn import make_home, tear
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.compute import compute_backfill
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import ChunkRecord, backfill_folder, save_plan
from rivertwice.cli.main import cli
from rivertwice.core.errors import TableDamageError
from rivertwice.storage.table import Table
from rivertwice.storage.table_log import CUT, EMPTY, GONE, added_files, entry_path, parse_entry
from rivertwice.timeline.sequence import read_sequence
from rivertwice.timeline.served import export_sha256, rebuild_served
from rivertwice.timeline.served_rows import publications_of

pytestmark = pytest.mark.long

ROWS = ([(0, "a", 10), (0, "b", 1), (1, "a", 11)], [(2, "a", 12)])


class NoSpark:
    """Stands for Spark: `compute` is given what it would compute."""

    def __call__(self):
        return self

    def expect(self, **_):
        return


@pytest.fixture
def computed(tmp_path, monkeypatch):
    """A home with a backfill of two chunks, three rows and one; commands compute the same rows without Spark."""
    settings, home, bundle = make_home(tmp_path)
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 100)})
    plan = save_plan(home, plan_backfill(asked(0, 3), observe_backfill(settings, "p"), chunk_records=20))
    for chunk, rows in enumerate(ROWS):
        write_chunk(home, plan, chunk, *rows)

    def compute(spark, settings, plan, definition, chunks):
        for chunk in chunks:
            rows = [row for part in ROWS for row in part if any(a <= row[0] * HOUR < b for a, b in chunk.ranges)]
            records = {hour * HOUR: sum(n for at, _, n in rows if at == hour) for hour, *_ in rows}
            yield chunk, result(*rows), ChunkRecord(chunk.index, len(rows), records)

    monkeypatch.setattr("rivertwice.backfill.compute.chunks_computed", compute)
    monkeypatch.setattr("rivertwice.backfill.compute.with_confs", lambda *_: nullcontext())
    monkeypatch.setattr("rivertwice.engine.session.spark_on_demand", lambda *_, **__: nullcontext(NoSpark()))
    return settings, home, bundle, plan


@pytest.fixture
def made(computed):
    """The same home, its backfill published and served."""
    settings, home, bundle, plan = computed
    audit_backfill(settings, plan)
    publish_backfill(settings, plan)
    rebuild_served(home, bundle.definition)
    return computed


def run(settings, *arguments):
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    return CliRunner().invoke(cli, [*options, *arguments])


def ask(settings, *arguments):
    answer = run(settings, "admin", "repair", "p", *arguments)
    return answer.exit_code, json.loads(answer.stdout) if answer.exit_code in (0, 3) else answer.output


def paste(settings, cure):
    """Run the last command that a text names."""
    program, *words = shlex.split(re.findall(r"`(rivertwice [^`]+)`", cure)[-1])
    assert program == "rivertwice"
    answer = run(settings, *words)
    assert answer.exit_code == 0, answer.output


def tear_chunk(home, chunk, how):
    """Tear the commit of a chunk, its data files removed; with `files` the commit stays."""
    table = home.tables.corrections
    found = {value["chunk"]: version for version, value in Table(table).commits("backfill")}
    path = entry_path(table, found[chunk])
    for file in added_files(table, parse_entry(path.read_bytes())):
        file.unlink()
    if how != "files":
        tear(path, how)


def values(table):
    columns = [name for name in table.schema.names if not name.startswith("_")]
    return sorted(map(str, table.select(columns).to_pylist()))


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("how", [EMPTY, CUT, GONE, "files"])
def test_a_publication_that_lost_rows_is_computed_again_by_its_backfill(made, chunk, how):
    settings, home, bundle, plan = made
    served, rows = export_sha256(home), values(Table(home.tables.corrections).read())
    tear_chunk(home, chunk, how)
    # A table whose files are gone cannot be read at all.
    refusal = (
        (pa.ArrowInvalid, "not found")
        if how == "files"
        else (TableDamageError, r"corrections.*rivertwice admin repair p")
    )
    with pytest.raises(refusal[0], match=refusal[1]):
        rebuild_served(home, bundle.definition, force=True)
    code, shown = ask(settings)
    assert code == 3
    (named,) = [one for one in shown["damages"] if plan.id in one["what"]]
    assert named["what"] == f"backfill {plan.id} has {(1, 3)[chunk]} of 4 rows"
    code, report = ask(settings, "--yes")
    assert (code, report["left"], report["failed"]) == (3, [named], [])
    assert export_sha256(home) == served
    paste(settings, named["cure"])
    assert ask(settings) == (0, {"damages": [], "repaired": False})
    assert values(Table(home.tables.corrections).read()) == rows
    rebuild_served(home, bundle.definition, force=True)
    assert export_sha256(home) == served
    assert audit_backfill(settings, plan).passed


@pytest.mark.proves("howto-correct.md#what-it-cannot-do-and-the-way-out")
def test_without_its_plan_a_new_backfill_takes_its_place(made):
    settings, home, bundle, plan = made
    rows = values(Table(home.tables.served).read())
    (backfill_folder(home, plan.id) / "plan.json").unlink()
    tear_chunk(home, 0, EMPTY)
    _, report = ask(settings, "--yes")
    (left,) = report["left"]
    paste(settings, left["cure"])
    assert ask(settings) == (0, {"damages": [], "repaired": False})
    rebuild_served(home, bundle.definition, force=True)
    assert values(Table(home.tables.served).read()) == rows
    old, new = publications_of(read_sequence(home))
    assert (old.backfill, new.ranges) == (plan.id, old.ranges)


def test_a_run_that_is_killed_after_it_took_the_rest_out_begins_again(made, monkeypatch):
    settings, home, _, plan = made
    rows = values(Table(home.tables.corrections).read())
    tear_chunk(home, 0, "files")
    ask(settings, "--yes")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("rivertwice.backfill.compute.write_chunk", killed)
        with pytest.raises(KeyboardInterrupt):
            compute_backfill(None, settings, plan)
    _, shown = ask(settings)
    assert [one["what"] for one in shown["damages"]] == [f"backfill {plan.id} has 0 of 4 rows"]
    compute_backfill(None, settings, plan)
    assert values(Table(home.tables.corrections).read()) == rows


def test_a_backfill_that_is_not_published_is_no_damage(computed):
    settings, home, _, plan = computed
    audit_backfill(settings, plan)
    tear_chunk(home, 0, EMPTY)
    code, report = ask(settings, "--yes")
    assert (code, report["left"]) == (0, [])
    paste(settings, f"`rivertwice backfill run p --id {plan.id} --yes`")
    (publication,) = publications_of(read_sequence(home))
    assert (publication.rows, Table(home.tables.corrections).read().num_rows) == (4, 4)


def test_a_publication_says_how_many_rows_it_has(made):
    _, home, _, plan = made
    (one,) = publications_of(read_sequence(home))
    assert (one.backfill, one.rows) == (plan.id, 4)
