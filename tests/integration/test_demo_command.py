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
    command = [str(reader.venv / "bin" / "rivertwice"), "demo"]
    demo = subprocess.Popen(command, cwd=reader.folder, env=reader.env, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if "$ rivertwice start orders" in line:
            break
    demo.send_signal(signal.SIGKILL)
    assert demo.wait() == -signal.SIGKILL, seen


def send(reader: Reader, order_id: int, placed_at: str) -> None:
    """Send one order to the demo's topic."""
    order = {"order_id": order_id, "shop": "berlin", "amount": 12.5, "placed_at": placed_at}
    (reader.folder / "one.jsonl").write_text(json.dumps(order) + "\n")
    reader.run("rivertwice send orders one.jsonl --project rivertwice-demo")


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

    # What is sent as soon as `start --wait` ends is judged by the watermark of what was sent before it began.
    for order_id, placed_at in ((9_000, "2026-01-05T20:00:00Z"), (9_001, "2026-01-05T17:30:00Z")):
        send(reader, order_id, placed_at)
        waited = json.loads(reader.run("rivertwice --project rivertwice-demo --output json start orders --wait"))
        assert (waited["served"], waited["read"] in (0, 1)) == (True, True), (
            waited
        )  # it may be read before the wait begins
    run = json.loads(reader.run("rivertwice --project rivertwice-demo --output json reconcile orders"))
    counts = {pair: {name: count for name, count in of.items() if count} for pair, of in run["counts"].items()}
    assert counts == {
        "stream": {"AGREES": 26, "LATE": 4, "OPEN": 1},
        "served": {"AGREES": 29, "LATE": 1, "OPEN": 1},
    }
