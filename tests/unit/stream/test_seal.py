"""The seal of a timeline, on real tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rivertwice.core.errors import LeaseLostError, LostRaceError
from rivertwice.core.settings import Settings
from rivertwice.storage import delta
from rivertwice.stream.seal import app_of, check_sealed, is_sealed, seal_timeline

ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def home(tmp_path):
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    home = settings.pipeline("p")
    delta.append(home.tables.changelog, ROWS, transactions={app_of("p", "t1"): 0})
    return home


def test_a_sealed_timeline_takes_no_batch_and_another_does(home):
    seal_timeline(home, "p", "t1")
    with pytest.raises(LostRaceError):
        delta.append(home.tables.changelog, ROWS, transactions={app_of("p", "t1"): 1})
    delta.append(home.tables.changelog, ROWS, transactions={app_of("p", "t2"): 1})
    assert delta.read(home.tables.changelog).num_rows == 2


def test_a_second_seal_changes_nothing(home):
    seal_timeline(home, "p", "t1")
    version = delta.open_table(home.tables.changelog).version()
    seal_timeline(home, "p", "t1")
    assert delta.open_table(home.tables.changelog).version() == version


@pytest.mark.proves("guarantees.md#changelog")
def test_a_driver_of_a_sealed_timeline_stops_as_one_that_lost_its_lease(home):
    applied = delta.applied_version(home.tables.changelog, app_of("p", "t1"))
    assert not is_sealed(applied)
    check_sealed(applied, "t1")
    seal_timeline(home, "p", "t1")
    with pytest.raises(LeaseLostError, match="sealed by a restore"):
        check_sealed(delta.applied_version(home.tables.changelog, app_of("p", "t1")), "t1")
