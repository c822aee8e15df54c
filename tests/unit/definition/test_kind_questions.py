"""How a kind of windows differs from another is answered in `kinds`: who asks elsewhere which kind it is, is counted, and may only grow fewer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rivertwice.definition.kinds import KINDS, kind_of
from rivertwice.definition.windows import Window

SOURCE = Path(__file__).resolve().parents[3] / "src" / "rivertwice"
OF_KINDS = {"kinds", "compilers", "evidence"}
WHICH = re.compile(r"is_fold|is_session\b|isinstance\([^)]*, \w*(?:Stateful|Session|Interval|Tumbling)\w*\)")
PROPERTY = re.compile(
    r"\.kind\.(?:has_|keeps_|takes_|is_|follows_)\w+|\.kind\.\w+ is |type\([^)]*\.kind\)|\.window\.(?:fold|session|every|size)\b"
)
MOST_WHICH, MOST_PROPERTIES = 1, 25
"""Lines that ask today; fifteen may ask which kind it is, and none has to."""


def asking(question: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not OF_KINDS & set(path.relative_to(SOURCE).parts)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if question.search(line)
    ]


def test_lines_outside_the_kinds_that_ask_for_a_kind_grow_fewer() -> None:
    assert MOST_WHICH <= 15
    assert len(which := asking(WHICH)) <= MOST_WHICH, which
    assert len(properties := asking(PROPERTY)) <= MOST_PROPERTIES, properties


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"size": "1 hour"}, "TumblingHopping"),
        ({"size": "1 hour", "slide": "10 minutes"}, "TumblingHopping"),
        ({"session": "1 hour"}, "Sessions"),
        ({"every": "1 hour", "at": "t"}, "Intervals"),
        ({"fold": "1 day", "at": "t"}, "Stateful"),
    ],
)
def test_each_window_has_the_kind_that_its_setting_chooses(given: dict[str, str], kind: str) -> None:
    assert type(kind_of(Window.model_validate(given))).__name__ == kind


def test_each_kind_has_a_setting_of_the_window() -> None:
    settings = [kind.setting for kind in KINDS]
    assert len(set(settings)) == len(settings)
    assert set(settings) <= set(Window.model_fields)


def test_a_definition_and_its_kinds_are_known_without_spark() -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, rivertwice.definition.lint, rivertwice.definition.fingerprint; print('pyspark' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "False"
