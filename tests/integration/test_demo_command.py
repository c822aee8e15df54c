"""`rivertwice demo` of the installed package, in an empty folder: after a kill in the middle, to its end, and once more."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from running.reader import Reader, build_wheel, reader_with

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with reader_with(build_wheel(tmp_path), tmp_path) as made:
        yield made
        made.run("test ! -d rivertwice-demo || rivertwice --project rivertwice-demo down")


def kill_in_the_stream(reader: Reader) -> None:
    """Start the demo and end it with SIGKILL once it streams."""
    demo = subprocess.Popen(
        ["rivertwice", "demo"], cwd=reader.folder, env=reader.env | {"PATH": reader.env["PATH"]}, stdout=subprocess.PIPE, text=True,
        executable=str(reader.venv / "bin" / "rivertwice"),
    )  # fmt: skip
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if "$ rivertwice start orders" in line:
            break
    demo.send_signal(signal.SIGKILL)
    assert demo.wait() == -signal.SIGKILL, seen


def test_the_demo_runs_to_its_end_after_a_kill_and_once_more(reader: Reader) -> None:
    kill_in_the_stream(reader)
    first = reader.run("rivertwice demo")
    assert "This one starts clean" in first
    second = json.loads(reader.run("rivertwice demo --output json"))
    assert second["project"] == str(reader.folder / "rivertwice-demo")
    steps = [step["step"] for step in second["steps"]]
    for place, step in enumerate(steps, start=1):
        assert f"\n{place}. {step}\n" in first
    assert len(steps) == 7
    assert "Every step held" in first
    assert "17 orders are missing. The first is orders/0@1378" in first
    view = json.loads(reader.run("rivertwice --project rivertwice-demo --output json status"))
    (pipeline,) = view["pipelines"]
    assert (pipeline["state"], pipeline["lag"]) in (("idle", 0), ("running", 0))
    assert reader.run("rivertwice --project rivertwice-demo show orders --limit 3").count("2026-01-05") >= 3
