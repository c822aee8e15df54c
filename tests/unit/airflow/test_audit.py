"""What the list of acts shows of a run's values: those of known kinds, and no record."""

from __future__ import annotations

import pytest

from rivertwice.airflow.web_acts import shown_fields
from rivertwice.airflow.web_registry import FLAG, NAME, TEXT, Act, Field

pytestmark = pytest.mark.airflow
ACTS = {
    "amend": Act(
        "amend",
        "Amend",
        "says",
        "operate",
        fields=(Field("value", "Value", TEXT), Field("savepoint", "Savepoint", NAME)),
    ),
    "go": Act("go", "Go", "says", "operate", fields=(Field("quick", "Quick", FLAG),)),
}


def test_values_of_known_kinds_are_shown_and_texts_and_records_are_not() -> None:
    conf = {
        "savepoint": "sp-1", "quick": True, "scope": "range", "start": "2013-06-30T04:00:00Z",
        "value": '{"card": "4111"}', "password": "p", "end": {"nested": 1}, "version": "x" * 101,
    }  # fmt: skip
    assert shown_fields(conf, ACTS) == {
        "savepoint": "sp-1",
        "quick": True,
        "scope": "range",
        "start": "2013-06-30T04:00:00Z",
    }
    assert shown_fields(None, ACTS) == {}
