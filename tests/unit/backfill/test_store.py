import json

import pytest

from homes.backfill import asked, hours, view
from rivertwice.backfill.plan import plan_backfill
from rivertwice.backfill.store import (
    list_backfills,
    load_backfill_plan,
    note_planned,
    plan_from_json,
    plan_to_json,
    planned_for,
    save_plan,
)
from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.settings import Settings
from rivertwice.timeline.serving import Publication
from simulated import sessions as simulated_sessions


@pytest.fixture
def home(tmp_path):
    return Settings(project=tmp_path, home=tmp_path / "home").pipeline("p")


@pytest.fixture
def plan():
    published = Publication(2, "bf-old", hours((0, 4)), "s" * 64, "b" * 64, {"flights": {0: 1}})
    seen = view(archive={"flights": {0: (0, 45)}}, publications=(published,), stale=hours((1, 2)))
    return plan_backfill(asked(0, 10), seen, chunk_records=25)


def path_of(home, plan):
    return home.backfills / plan.id / "plan.json"


def test_a_plan_survives_json_unchanged(plan):
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_a_stored_plan_is_loaded_as_the_very_same_value(home, plan):
    assert save_plan(home, plan) == plan
    assert load_backfill_plan(home, plan.id) == plan
    assert list_backfills(home) == [plan.id]


def test_the_first_plan_of_an_id_stays(home, plan):
    save_plan(home, plan)
    before = path_of(home, plan).read_bytes()
    other = plan_from_json({**plan_to_json(plan), "reason": "again"})
    assert save_plan(home, other).reason == plan.reason
    assert path_of(home, plan).read_bytes() == before


@pytest.mark.proves("howto-correct.md#what-a-plan-says")
def test_a_plan_changed_on_disk_is_refused(home, plan):
    save_plan(home, plan)
    stored = json.loads(path_of(home, plan).read_text())
    stored["plan"]["ranges"] = [[0, 3_600_000]]
    path_of(home, plan).write_text(json.dumps(stored))
    with pytest.raises(RequestError, match="was changed after it was written"):
        load_backfill_plan(home, plan.id)


def test_a_plan_of_another_format_is_refused(home, plan):
    save_plan(home, plan)
    path_of(home, plan).write_text(json.dumps({"format": 2}))
    with pytest.raises(RequestError, match="has format 2, this version reads 1"):
        load_backfill_plan(home, plan.id)


def test_an_unknown_backfill_is_refused_and_an_unsafe_id_is_no_path(home, plan):
    save_plan(home, plan)
    with pytest.raises(RequestError, match=f"no backfill bf-none of p; known: {plan.id}"):
        load_backfill_plan(home, "bf-none")
    with pytest.raises(ConfigError):
        load_backfill_plan(home, "../../etc")


def test_a_session_plan_survives_json_and_names_only_overlapping_keys(home):
    world = simulated_sessions.World()
    for batch in ([("ann", 10_000, 1), ("bob", 10_500, 1)], [("ann", 30_000, 1)], []):
        world.commit(batch)
    plan = world.plan((10_400, 12_000))
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert save_plan(home, plan) == load_backfill_plan(home, plan.id) == plan
    assert plan.windows == 2
    stored = path_of(home, plan).read_text()
    assert "ann" in stored
    assert "bob" not in stored
    assert "sessions" not in plan_to_json(plan_backfill(asked(0, 3), view()))


def test_the_result_of_a_request_is_found_by_its_id(home):
    note_planned(home, "rq-1", "bf-1")
    note_planned(home, "rq-2", "")
    assert (planned_for(home, "rq-1"), planned_for(home, "rq-2")) == ("bf-1", "")
    assert list_backfills(home) == []
    with pytest.raises(RequestError, match="rq-3 of p was not planned"):
        planned_for(home, "rq-3")
