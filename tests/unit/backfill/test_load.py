"""What a first load needs to know of a home: which records a window needs, what waits, and which backfill was cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homes.backfill import HOUR, asked, make_home, write_chunk
from homes.first_load import ZONES, make_load
from homes.ledger import NOW
from rivertwice.backfill import load as load_module
from rivertwice.backfill.audit import audit_backfill
from rivertwice.backfill.load import find_interrupted, require_first_start
from rivertwice.backfill.load_plan import REASON
from rivertwice.backfill.load_state import has_closed, unloaded_windows
from rivertwice.backfill.model import BackfillRequest
from rivertwice.backfill.observe import observe_backfill
from rivertwice.backfill.plan import plan_backfill, plan_id
from rivertwice.backfill.publish import publish_backfill
from rivertwice.backfill.store import save_plan
from rivertwice.core.errors import AuditError, LogGapError, RequestError
from rivertwice.core.homes import PipelineHome
from rivertwice.core.instants import TimeRange, from_ms
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle
from rivertwice.timeline.first_load import record_load
from rivertwice.timeline.sequence import last_seq, publish

Made = tuple[Settings, PipelineHome, Bundle]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A home whose ten batches of an hour stand for what the stream read; four blocks of a load are beside them."""
    monkeypatch.setattr("rivertwice.backfill.observe._in_kafka", lambda *_: {0: (0, 200)})
    return make_home(tmp_path)


def test_a_window_of_a_load_needs_the_blocks_that_may_hold_its_records(made: Made) -> None:
    settings, home, bundle = made
    blocks = [zone._replace(start=zone.start + 100, end=zone.end + 100) for zone in ZONES]
    record_load(home, make_load(bundle, ranges={0: (100, 140)}), blocks)
    view = observe_backfill(settings, "p")
    assert len(view.batches) == 14
    assert plan_backfill(asked(1, 2), view).offsets == {"flights": {0: ((10, 120),)}}
    monkeypatched = [batch for batch in view.batches if batch.offsets["flights"][0] == (110, 120)]
    assert [(batch.trusted, batch.min_event_ms) for batch in monkeypatched] == [(True, HOUR)]


def test_blocks_that_another_decode_made_are_always_read(made: Made) -> None:
    settings, home, bundle = made
    hashes = {**bundle.fingerprint.hashes(), "decode": "other"}
    record_load(home, make_load(bundle, fingerprint=hashes), ZONES)
    assert [batch.trusted for batch in observe_backfill(settings, "p").batches[-4:]] == [False] * 4


def test_the_windows_of_a_load_wait_until_the_stream_has_closed_them(made: Made) -> None:
    _, home, bundle = made
    assert has_closed(home, make_load(bundle, before_ms=8 * HOUR))
    assert not has_closed(home, make_load(bundle, before_ms=9 * HOUR))
    assert not has_closed(PipelineHome(home.root.parent / "q"), make_load(bundle))


def test_a_load_is_for_a_first_start_alone(made: Made) -> None:
    _, home, bundle = made
    with pytest.raises(RequestError, match=r"p began already: timeline t1 .* `rivertwice backfill run p"):
        require_first_start(home)
    load = make_load(bundle)
    record_load(home, load, ZONES)
    assert require_first_start(home) == load
    assert require_first_start(PipelineHome(home.root.parent / "q")) is None


def load_request(first: int, end: int) -> BackfillRequest:
    return BackfillRequest("p", TimeRange(from_ms(first * HOUR), from_ms(end * HOUR)), REASON)


def test_a_backfill_that_was_cut_off_is_found_until_it_is_published(made: Made) -> None:
    settings, home, bundle = made
    load = make_load(bundle)
    publish(home, load.covering(last_seq(home) + 1).to_payload(), expected_seq=last_seq(home), now=NOW)
    assert unloaded_windows(home, load) == ((0, 4 * HOUR),)
    piece = (0, 2 * HOUR)
    save_plan(home, plan_backfill(asked(0, 2), observe_backfill(settings, "p")))
    assert find_interrupted(home, piece) is None
    plan = save_plan(home, plan_backfill(load_request(0, 3), observe_backfill(settings, "p")))
    other = replace(plan, semantics="of another definition")
    save_plan(home, replace(other, id=plan_id(other)))
    assert find_interrupted(home, piece) == plan
    assert find_interrupted(home, (0, 4 * HOUR)) is None
    write_chunk(home, plan, 0, *((hour, "a", 10) for hour in range(3)))
    audit_backfill(settings, plan)
    publish_backfill(settings, plan)
    assert find_interrupted(home, piece) is None
    assert unloaded_windows(home, load) == ((3 * HOUR, 4 * HOUR),)


def test_a_backfill_whose_audit_failed_is_planned_again(made: Made) -> None:
    settings, home, _ = made
    plan = save_plan(home, plan_backfill(load_request(0, 2), observe_backfill(settings, "p")))
    write_chunk(home, plan, 0, (0, "a", 10), records={0: 11})
    with pytest.raises(AuditError):
        audit_backfill(settings, plan)
    assert find_interrupted(home, (0, 2 * HOUR)) is None


def test_records_that_the_archive_lacks_are_named_before_anything_happens(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _, bundle = made
    monkeypatch.setattr(load_module, "archived_ranges", lambda *_: {0: (0, 30)})
    with pytest.raises(LogGapError, match=r"lacks partition 0 \[30, 40\)"):
        load_module._require_archived(settings, make_load(bundle), "id")  # type: ignore[arg-type]
