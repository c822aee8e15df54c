"""A first suite of data quality for a guessed pipeline: what its sample says of the rows. Pure."""

from __future__ import annotations

import json
from typing import Any

from rivertwice.scaffold.guess import Guess

MOST_VALUES = 20
"""A key with so many values in the sample gets an expectation that names them."""


def suite_path(name: str) -> str:
    """Return where the suite of a pipeline lies, below the project."""
    return f"expectations/{name}/windows.json"


def make_suite(guess: Guess) -> str:
    """Return the text of `windows.json`, as Great Expectations writes a suite: one expectation a line."""
    entries = [
        *(
            _entry("expect_column_values_to_not_be_null", "critical", f"every row has its {key}", column=key)
            for key in guess.keys
        ),
        _entry(
            "expect_column_values_to_be_between",
            "critical",
            "a row counts at least one record",
            column=guess.count_column,
            min_value=1,
        ),
        *(
            _entry(
                "expect_column_values_to_be_in_set",
                "warning",
                f"CHECK: the values of {key} in the sample; add those that it lacks",
                column=key,
                value_set=values,
            )
            for key in guess.keys
            if (values := _values(guess, key))
        ),
    ]
    lines = ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in entries)
    return f'{{\n  "name": "{guess.name} windows",\n  "expectations": [\n{lines}\n  ]\n}}\n'


def _values(guess: Guess, key: str) -> list[str]:
    """Return the texts that a key has in the sample, sorted; none if it is no text, or has many."""
    kind = next((each.kind for each in guess.declared if each.name == key), None)
    seen = [value for record in guess.sample.records if (value := record.value.get(key)) is not None]
    if kind != "string" or not all(isinstance(value, str) for value in seen):
        return []
    values = sorted(set(seen))
    return values if 1 < len(values) <= MOST_VALUES else []


def _entry(kind: str, severity: str, because: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "severity": severity, "kwargs": kwargs, "meta": {"because": because}}
