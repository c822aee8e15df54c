"""What identifies Airflow's services is read as it was written: by boot and ticks, or, of 0.1, by a creation time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rivertwice.core.processes import Started
from rivertwice.core.settings import Settings
from rivertwice.local.airflow import ProcessMark, _read_services, airflow_home, is_alive, mark_of


@pytest.mark.parametrize("started", [None, 1763999999.25], ids=["as written now", "as 0.1 wrote it"])
def test_a_services_mark_is_read_as_it_was_written(tmp_path: Path, started: Started | None) -> None:
    home = airflow_home(Settings(project=tmp_path, home=tmp_path / "home"))
    mark = mark_of(os.getpid()) if started is None else ProcessMark(4711, started)
    home.services.parent.mkdir(parents=True)
    services = {"scheduler": {"pid": mark.pid, "started": mark.started}}
    home.services.write_text(json.dumps({"format": 1, "services": services}))
    assert _read_services(home) == {"scheduler": mark}
    assert is_alive(mark) == (started is None)
