"""Write into the fault report when all slow tests last ran, on which code, and how they ended.

Usage: python scripts/slow_report.py RESULTS.xml REPORT.md. RESULTS.xml is what `pytest -m faults --junitxml` wrote; the
section between the two marks of REPORT.md is replaced, or added at its end.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

BEGIN, END = "<!-- slow tests: begin -->", "<!-- slow tests: end -->"


def section(results: ET.Element, code: str) -> str:
    """Return the section's text: one line on the whole run, one for each test that did not pass. Pure.

    Args:
        results: root of a JUnit report.
        code: name of the commit that ran.
    """
    cases = [(case, _ending(case)) for case in results.iter("testcase")]
    counts = {ending: sum(each == ending for _, each in cases) for ending in ("passed", "failed", "skipped")}
    suite = next(results.iter("testsuite"))
    minutes = float(suite.get("time", "0")) / 60
    began = suite.get("timestamp", "")[:16].replace("T", " ")
    counted = ", ".join(f"{count} {ending}" for ending, count in counts.items())
    lines = [BEGIN, "", "## Slow tests", ""]
    lines += [f"`make test-slow` last ran on {began}, on the code `{code}`: {counted}, in {minutes:.0f} minutes.", ""]
    for case, ending in cases:
        if ending != "passed":
            lines.append(f"- {ending}: `{case.get('classname')}::{case.get('name')}`")
    return "\n".join([*lines, END])


def _ending(case: ET.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def merged(report: str, text: str) -> str:
    """Return a report with the section in the place of its old one, or at the end. Pure."""
    before, mark, rest = report.partition(BEGIN)
    if not mark:
        return f"{report.rstrip()}\n\n{text}\n"
    return before + text + rest.partition(END)[2]


def main(argv: list[str]) -> int:
    """Replace the section. Return the exit code."""
    results, report = (Path(each) for each in argv)
    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    code = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    report.write_text(merged(report.read_text(), section(ET.parse(results).getroot(), code)))  # noqa: S314 (our own run wrote it)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
