"""`rivertwice admin repair`: damage by name, what it means, and rows that come back out of their own data files, proved by the ledger."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from homes.ledger import NOW
from homes.project import make_project
from homes.torn import ZEROS, make_home, tear, tear_commit
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.storage.table import Table
from rivertwice.storage.table_care import TableCare
from rivertwice.storage.table_log import CUT, EMPTY, GONE, entry_path
from rivertwice.timeline.intact import require_rows, require_whole_logs
from rivertwice.timeline.intent import Intent, write_intent
from rivertwice.timeline.ledger import read_ledger
from rivertwice.timeline.sequence import last_seq, publish, read_sequence
from rivertwice.timeline.served import export_sha256, rebuild_served

pytestmark = pytest.mark.long


@pytest.fixture
def made(tmp_path):
    return make_home(tmp_path)


def ask(settings, *arguments):
    options = ["--project", str(settings.project), "--home", str(settings.home), "--output", "json"]
    answer = CliRunner().invoke(cli, [*options, "admin", "repair", "p", *arguments])
    return answer.exit_code, json.loads(answer.stdout or "null") if answer.exit_code in (0, 3) else answer.output


def contents(home):
    """What lies in the home, byte by byte."""
    return {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}


def test_a_sound_home_is_said_to_be_sound(made):
    settings, home, _ = made
    before = contents(home)
    assert ask(settings) == (0, {"damages": [], "repaired": False})
    assert contents(home) == before


@pytest.mark.parametrize(
    ("table", "key", "batch", "how"),
    [
        *(("changelog", "ledger", batch, how) for batch in (3, 5) for how in (EMPTY, CUT, ZEROS, GONE)),
        ("dead_letters", "dead", 3, EMPTY),
        ("dead_letters", "dead", 5, GONE),
        ("late_rows", "late", 2, CUT),
        ("late_rows", "late", 5, EMPTY),
    ],
)
def test_a_torn_commit_is_named_and_its_rows_come_back_proved(made, table, key, batch, how):
    settings, home, bundle = made
    rebuild_served(home, bundle.definition)
    served, place = export_sha256(home), getattr(home.tables, table)
    rows = sorted(map(str, Table(place).read().to_pylist()))
    path = tear_commit(place, key, batch, how)
    before = contents(home)
    code, shown = ask(settings)
    assert code == 3
    assert contents(home) == before  # a look changes nothing
    torn = [one for one in shown["damages"] if str(path) in one["what"]]
    newest = max(int(one.stem) for one in path.parent.glob("*.json"))
    assert len(torn) == (0 if how == GONE and int(path.stem) > newest else 1)
    lost = [one for one in shown["damages"] if one["what"].startswith(f"batch {batch} of t1")]
    assert [one["table"] for one in lost] == [table]
    assert "its own data file, which is still there" in lost[0]["cure"]
    code, report = ask(settings, "--yes")
    assert (code, report["left"], report["failed"]) == (0, [], [])
    assert sorted(map(str, Table(place).read().to_pylist())) == rows
    require_whole_logs(home)
    assert len(require_rows(home, "t1")) == 6
    assert Table(home.tables.changelog).applied_version("p#t1") == 5
    assert export_sha256(home) == served
    if torn and how != GONE:
        assert (home.root / "damaged").is_dir()
    assert ask(settings) == (0, {"damages": [], "repaired": False})


def test_the_meaning_names_the_windows_that_served_would_lack(made):
    settings, home, _ = made
    tear_commit(home.tables.changelog, "ledger", 3, EMPTY)
    _, shown = ask(settings)
    meaning = next(one["meaning"] for one in shown["damages"] if one["what"].startswith("batch 3 of t1"))
    assert meaning == (
        "served would lack or alter 2 result rows, of windows that ended after 1970-01-01T02:00:00Z up to 1970-01-01T03:00:00Z"
    )


def test_a_flipped_value_is_found_by_digest_and_a_short_file_by_size(made):
    settings, home, _ = made
    files = sorted(home.tables.changelog.rglob("*.parquet"), key=lambda path: pq.read_table(path).num_rows)
    victim = next(path for path in files if pq.read_table(path)["_batch"].to_pylist() == [4, 4])
    table = pq.ParquetFile(victim).read()
    at = table.schema.get_field_index("n")
    pq.write_table(table.set_column(at, "n", pa.array([11, 4], pa.int64())), victim)
    _, shown = ask(settings)
    named = [one for one in shown["damages"] if one["table"] == "changelog"]
    assert any("batch 4 of t1" in one["what"] for one in named), shown


def test_without_its_data_file_a_batch_is_computed_again(made):
    settings, home, _ = made
    tear_commit(home.tables.changelog, "ledger", 3, EMPTY)
    for path in home.tables.changelog.rglob("*.parquet"):
        if pq.read_table(path)["_batch"].to_pylist() == [3, 3]:
            path.unlink()
    _, shown = ask(settings)
    cure = next(one["cure"] for one in shown["damages"] if one["what"].startswith("batch 3 of t1"))
    assert (
        cure == "written again from recorded ranges (read and computed again with Spark), proved by the ledger's digest"
    )


@pytest.mark.parametrize("how", [EMPTY, GONE])
def test_a_newest_batch_that_emitted_nothing_gets_its_commit_again(tmp_path, how):
    settings, home, _ = make_home(tmp_path, batches=1)  # batch 0 emits nothing
    tear_commit(home.tables.changelog, "ledger", 0, how)
    assert Table(home.tables.changelog).applied_version("p#t1") is None
    code, report = ask(settings, "--yes")
    assert (code, report["left"]) == (0, [])
    assert Table(home.tables.changelog).applied_version("p#t1") == 0
    assert [data["batch"] for _, data in Table(home.tables.changelog).commits("ledger")] == [0]


@pytest.mark.parametrize("table", ["changelog", "dead_letters", "late_rows", "ledger"])
@pytest.mark.parametrize("how", [EMPTY, CUT])
def test_the_first_entry_of_a_log_is_made_again_from_a_data_file(made, table, how):
    settings, home, _ = made
    place = getattr(home.tables, table)
    rows = sorted(map(repr, (sorted(row.items()) for row in Table(place).read().to_pylist())))
    tear(entry_path(place, 0), how)
    assert ask(settings)[0] == 3
    code, report = ask(settings, "--yes")
    assert (code, report["left"]) == (0, [])
    assert sorted(map(repr, (sorted(row.items()) for row in Table(place).read().to_pylist()))) == rows
    require_rows(home, "t1")


def test_rows_of_the_ledger_alone_are_copied_from_the_changelogs_commits(made):
    settings, home, _ = made
    path = entry_path(home.tables.ledger, 3)
    path.write_bytes(b"")
    code, shown = ask(settings)
    assert code == 3
    assert str(path) in shown["damages"][0]["what"]
    code, report = ask(settings, "--yes")
    assert (code, report["left"]) == (0, [])
    assert [row.batch for row in read_ledger(home)] == list(range(6))


@pytest.mark.parametrize("how", [EMPTY, CUT])
def test_a_torn_sequence_entry_comes_back_from_its_data_file_or_stays(made, how):
    settings, home, _ = made
    publish(
        home, {"backfill": "b", "ranges": [], "semantics": "s", "bundle": "b", "as_of": {}}, expected_seq=1, now=NOW
    )
    entries = read_sequence(home)
    path = entry_path(home.tables.sequence, Table(home.tables.sequence).open().version)
    tear(path, how)
    code, report = ask(settings, "--yes")
    assert (code, report["left"]) == (0, [])
    assert (read_sequence(home), last_seq(home)) == (entries, 2)

    newest = entry_path(home.tables.sequence, Table(home.tables.sequence).open().version)
    for name in (home.tables.sequence).glob("*.parquet"):
        if pq.read_table(name)["seq"].to_pylist() == [2]:
            name.unlink()
    torn = tear(newest, how)
    code, report = ask(settings, "--yes")
    assert code == 3
    assert newest.read_bytes() == torn
    assert "--accept-loss sequence" in report["left"][0]["cure"]
    code, report = ask(settings, "--yes", "--accept-loss", "sequence")
    assert (code, [entry.seq for entry in read_sequence(home)]) == (0, [1])


def test_the_loss_that_a_message_offers_to_accept_can_be_accepted_for_every_table(made):
    settings, home, _ = made
    place = home.tables.versions("airports")
    for number in range(3):
        Table(place).append(pa.table({"n": [number]}))
    tear(entry_path(place, 2), EMPTY)
    left = ask(settings, "--yes")[1]["left"]
    assert [one["table"] for one in left] == ["versions/airports"]
    assert "`rivertwice admin repair p --yes --accept-loss versions/airports`" in left[0]["cure"]
    code, report = ask(settings, "--yes", "--accept-loss", "versions/airports")
    assert (code, report["left"]) == (0, [])
    code, said = ask(settings, "--yes", "--accept-loss", "versions/airports")
    assert (code, "has no torn commit whose loss could be accepted" in said) == (1, True)


def test_a_torn_table_of_results_is_readable_again(made):
    settings, home, bundle = made
    rebuild_served(home, bundle.definition)
    served = export_sha256(home)
    tear(entry_path(home.tables.served, Table(home.tables.served).open().version), CUT)
    code, report = ask(settings, "--yes")
    assert (code, report["left"], export_sha256(home)) == (0, [], served)


def test_a_repair_leaves_what_is_wanted_as_it_was_and_holds_the_agent_off(made, monkeypatch):
    settings, home, _ = made
    write_intent(home, "running", "somebody", utc_now())
    tear_commit(home.tables.dead_letters, "dead", 3, EMPTY)
    seen = []
    mend = TableCare.mend_log

    def watched(care, torn, aside, *rest):
        if aside is not None:  # a copy of the table is mended first
            seen.append((Intent.load(home).desired, home.drain.exists()))
        return mend(care, torn, aside, *rest)

    monkeypatch.setattr(TableCare, "mend_log", watched)
    assert ask(settings, "--yes")[0] == 0
    assert seen == [("stopped", True)]
    assert Intent.load(home).desired == "running"
    assert not home.drain.exists()


def test_a_pipeline_that_never_ran_has_nothing_to_repair(tmp_path):
    settings = make_project(tmp_path, {"p": make_home(tmp_path / "other")[0].definitions / "p"})
    assert ask(settings) == (0, {"damages": [], "repaired": False})
    code, report = ask(settings, "--yes")
    assert (code, report["found"], report["done"]) == (0, [], [])


def test_the_text_says_what_was_done_and_where_the_damaged_files_lie(made):
    settings, home, _ = made
    tear_commit(home.tables.changelog, "ledger", 3, EMPTY)
    answer = CliRunner().invoke(
        cli, ["--project", str(settings.project), "--home", str(settings.home), "admin", "repair", "p", "--yes"]
    )
    assert answer.exit_code == 0
    assert "changelog: 2 rows of batch 3 of t1 written again" in answer.stdout
    assert f"damaged files are in {home.root / 'damaged'}" in answer.stdout
    assert answer.stdout.endswith("nothing is damaged now\n")
