import pytest

from homes.backfill import HOUR, asked, make_home, result, write_chunk
from rivertwice.backfill.audit import audit_backfill, read_audit
from rivertwice.backfill.model import BackfillView
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.store import ChunkRecord, backfill_app, save_plan, stamp_rows
from rivertwice.core.errors import AuditError, LostRaceError
from rivertwice.storage.table import Table

pytestmark = pytest.mark.long


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A home and a plan of two chunks: hours [0, 2) and [2, 3)."""
    settings, home, _ = make_home(tmp_path)
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 100)})
    plan = save_plan(home, plan_backfill(asked(0, 3), observe_backfill(settings, "p"), chunk_records=20))
    assert len(plan.chunks) == 2
    return settings, home, plan


def failure(settings, plan):
    with pytest.raises(AuditError) as caught:
        audit_backfill(settings, plan)
    return str(caught.value)


def test_a_complete_backfill_passes_and_the_finding_is_stored(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 10), (0, "b", 1), (1, "a", 11))
    write_chunk(home, plan, 1, (2, "a", 12))
    report = audit_backfill(settings, plan)
    assert (report.passed, report.rows, report.records) == (True, 4, 34)
    assert [check.name for check in report.checks] == ["chunks", "schema", "keys", "windows", "counts"]
    stored = read_audit(home, plan.id)
    assert stored["passed"] is True
    assert stored["seconds"].keys() == {"compute", "audit"}


def test_a_window_without_rows_passes_when_no_record_was_accepted(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 10))
    write_chunk(home, plan, 1)
    assert audit_backfill(settings, plan).passed


def test_a_backfill_that_is_not_finished_fails_but_may_go_on(made):
    settings, home, plan = made
    assert "0 of 2 chunks" in failure(settings, plan)
    write_chunk(home, plan, 0, (0, "a", 10))
    text = failure(settings, plan)
    assert "missing [1]" in text
    assert "run it again" in text
    assert read_audit(home, plan.id) is None
    write_chunk(home, plan, 1, (2, "a", 12))
    assert audit_backfill(settings, plan).passed


def test_a_repeated_key_fails(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 5), (0, "a", 5))
    write_chunk(home, plan, 1, (2, "a", 12))
    assert "keys: 1 repeated of 2" in failure(settings, plan)
    assert read_audit(home, plan.id)["passed"] is False


def test_a_row_outside_its_chunks_windows_fails(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (2, "a", 5))
    write_chunk(home, plan, 1, (3, "a", 12))
    assert "windows: 2 of 2 rows out of place" in failure(settings, plan)


def test_a_transform_that_loses_or_invents_rows_fails_with_the_windows(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 10), (1, "a", 10), records={0: 10, HOUR: 11})
    write_chunk(home, plan, 1, records={2 * HOUR: 3})
    text = failure(settings, plan)
    assert "counts: 20 counted by the result, 24 accepted; 2 windows differ" in text
    assert f"{HOUR}: 10 against 11" in text


def test_a_column_of_another_type_than_the_changelogs_fails(made):
    settings, home, plan = made
    table = stamp_rows(result((0, "a", 10)), plan.id, 0, "window_start")
    at = table.schema.get_field_index("n")
    Table(home.tables.corrections).append(
        table.set_column(at, "n", table["n"].cast("int32")),
        transactions={backfill_app(plan.id): 0},
        metadata={"backfill": ChunkRecord(0, 1, {0: 10}).to_json(plan.id)},
    )
    Table(home.tables.corrections).append(
        table.slice(0, 0), metadata={"backfill": ChunkRecord(1, 0, {}).to_json(plan.id)}
    )
    assert "schema: n is int32, in the changelog int64" in failure(settings, plan)


def test_a_chunk_committed_twice_fails(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 10))
    write_chunk(home, plan, 1, (2, "a", 12))
    row = stamp_rows(result((2, "b", 1)), plan.id, 1, "window_start")
    Table(home.tables.corrections).append(row, metadata={"backfill": ChunkRecord(1, 1, {}).to_json(plan.id)})
    assert "committed twice [1]" in failure(settings, plan)


def test_a_chunk_can_not_be_committed_twice_through_its_transaction(made):
    _, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 10))
    with pytest.raises(LostRaceError):
        write_chunk(home, plan, 0, (0, "a", 10))


def test_rows_added_behind_the_commits_back_fail(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 10))
    write_chunk(home, plan, 1, (2, "a", 12))
    Table(home.tables.corrections).append(stamp_rows(result((1, "b", 1)), plan.id, 0, "window_start"))
    assert "rows differ from the commit in [0]" in failure(settings, plan)


def test_a_failed_audit_makes_the_next_plan_another_backfill(made):
    settings, home, plan = made
    write_chunk(home, plan, 0, (0, "a", 5), (0, "a", 5))
    write_chunk(home, plan, 1, (2, "a", 12))
    failure(settings, plan)
    view: BackfillView = observe_backfill(settings, "p")
    again = plan_backfill(asked(0, 3), view, chunk_records=20)
    assert again.attempt == 1
    assert again.id != plan.id


def test_other_backfills_in_the_same_table_do_not_disturb(made):
    settings, home, plan = made
    other = plan_backfill(asked(0, 2), observe_backfill(settings, "p"))
    write_chunk(home, other, 0, (0, "a", 99))
    write_chunk(home, plan, 0, (0, "a", 10))
    write_chunk(home, plan, 1, (2, "a", 12))
    assert audit_backfill(settings, plan).rows == 2
