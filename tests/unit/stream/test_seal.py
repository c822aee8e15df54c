"""The seal of a timeline, on real tables."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rivertwice.core.errors import LeaseLostError, LostRaceError
from rivertwice.core.settings import Settings
from rivertwice.storage.table import Table
from rivertwice.stream.seal import check_sealed, is_sealed, seal_timeline, stream_app

ROWS = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture
def home(tmp_path):
    settings = Settings(project=tmp_path, home=tmp_path / "home")
    home = settings.pipeline("p")
    Table(home.tables.changelog).append(ROWS, transactions={stream_app("p", "t1"): 0})
    return home


def test_a_sealed_timeline_takes_no_batch_and_another_does(home):
    seal_timeline(home, "p", "t1")
    with pytest.raises(LostRaceError):
        Table(home.tables.changelog).append(ROWS, transactions={stream_app("p", "t1"): 1})
    Table(home.tables.changelog).append(ROWS, transactions={stream_app("p", "t2"): 1})
    assert Table(home.tables.changelog).read().num_rows == 2


def test_a_second_seal_changes_nothing(home):
    seal_timeline(home, "p", "t1")
    version = Table(home.tables.changelog).open().version
    seal_timeline(home, "p", "t1")
    assert Table(home.tables.changelog).open().version == version


@pytest.mark.proves("guarantees.md#changelog")
def test_a_driver_of_a_sealed_timeline_stops_as_one_that_lost_its_lease(home):
    applied = Table(home.tables.changelog).applied_version(stream_app("p", "t1"))
    assert not is_sealed(applied)
    check_sealed(applied, "t1")
    seal_timeline(home, "p", "t1")
    with pytest.raises(LeaseLostError, match="sealed by a restore"):
        check_sealed(Table(home.tables.changelog).applied_version(stream_app("p", "t1")), "t1")
