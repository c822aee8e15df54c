"""The report of one run, and what is said when nothing of it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.project import FLIGHTS, make_project
from rivertwice.airflow.report_data import find_report, reconcile_lines
from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.plain import to_plain

RUN = {
    "counts": {"stream": {"AGREES": 10, "LATE": 2, "OPEN": 0}, "served": {"AGREES": 12}},
    "gate": {
        "passed": False,
        "alerts": [{"severity": "critical", "kind": "defect", "message": "1 row"}],
        "reason": "nothing new",
    },
    "batch": 7,
    "timeline": "t1",
    "sequence": 3,
}


def test_a_reconcile_is_reported_one_fact_a_line() -> None:
    assert reconcile_lines(RUN) == [
        "stream against truth: 10 AGREES, 2 LATE",
        "served against truth: 12 AGREES",
        "critical: defect: 1 row",
        "reason: nothing new",
        "as of batch 7 of t1, entry 3 of the sequence",
    ]


@pytest.mark.parametrize("run", ["rc-000000000000-1", "pc-000000000000-1", "bf-unknown"])
def test_a_run_of_which_nothing_is_stored_is_named(tmp_path: Path, run: str) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    with pytest.raises(RequestError, match=run):
        to_plain(find_report(settings, "flight_delays", run))


@pytest.mark.parametrize("run", ["../../etc/passwd", "rc-1/2", ""])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, run: str) -> None:
    settings = make_project(tmp_path, {"flight_delays": FLIGHTS})
    with pytest.raises((RequestError, ConfigError)):
        to_plain(find_report(settings, "flight_delays", run))
    with pytest.raises((RequestError, ConfigError)):
        to_plain(find_report(settings, "../x", "rc-1"))
