"""What the fault report says about the slow tests is what their results say, and is replaced by the next run's."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

RESULTS = """<testsuites><testsuite name="pytest" time="7230.5" timestamp="2026-11-24T01:02:03.000000+00:00">
<testcase classname="tests.a" name="test_one" time="1"/>
<testcase classname="tests.a" name="test_two[x-1]" time="1"><failure message="m">t</failure></testcase>
<testcase classname="tests.b" name="test_three" time="1"><skipped message="m"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def slow_report() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "slow_report.py"
    spec = importlib.util.spec_from_file_location("slow_report", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_section_counts_the_results_and_names_what_did_not_pass(slow_report: ModuleType) -> None:
    text = slow_report.section(ET.fromstring(RESULTS), "abc123")
    assert "last ran on 2026-11-24 01:02, on the code `abc123`: 1 passed, 1 failed, 1 skipped, in 121 minutes." in text
    assert "- failed: `tests.a::test_two[x-1]`" in text
    assert "- skipped: `tests.b::test_three`" in text


def test_the_next_run_replaces_the_section_and_nothing_else(slow_report: ModuleType) -> None:
    once = slow_report.merged("# Report\n\nText.\n", f"{slow_report.BEGIN}\nold\n{slow_report.END}")
    twice = slow_report.merged(once, f"{slow_report.BEGIN}\nnew\n{slow_report.END}")
    assert twice == once.replace("old", "new")
    assert once.startswith("# Report\n\nText.\n")
