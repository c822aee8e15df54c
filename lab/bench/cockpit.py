"""What the cockpit's answers cost over a long past: seconds, CPU-seconds and bytes of each, cold and warm. No Spark, no broker.

    PYTHONPATH=.:tests .venv/bin/python -m lab.bench.cockpit [--home FOLDER] [--days 365] [--keys 50] [--pipelines 20] [--only heatmap ...]

A home with that past is made in FOLDER and kept there, so a second call measures at once. *Cold* is the first answer of a process that
has imported everything, *warm* the median of those after it. Others add to `ANSWERS` what they answer.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from homes.cockpit import FIRST, TOPIC, Past, make_past, start_of
from rivertwice.core.instants import from_ms
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import Definition, load_definition
from rivertwice.log import kafka
from rivertwice.read import overview
from rivertwice.read.backfills import list_of_backfills
from rivertwice.read.cell_rows import explain_for_page, read_cell
from rivertwice.read.heatmap import HeatmapQuery, read_heatmap
from rivertwice.read.lateness import read_lateness
from rivertwice.read.overview import describe_row, describe_summary
from rivertwice.read.selection import preview_backfill
from rivertwice.read.trouble import describe_correctness

Answer = Callable[[Settings, str, Past], Any]
WARM = 7


def _late_row(past: Past) -> tuple[int, str]:
    return past.late_of(past.closed - 1)[0]


def _heatmap(**asked: Any) -> Answer:
    return lambda settings, name, past: read_heatmap(settings, name, HeatmapQuery(limit=50, **asked))


def _year(level: str | None) -> Answer:
    def read(settings: Settings, name: str, past: Past) -> Any:
        end = FIRST + timedelta(days=past.days)
        return read_heatmap(settings, name, HeatmapQuery(start=FIRST, end=end, level=level, limit=50))

    return read


def _explain(settings: Settings, name: str, past: Past) -> Any:
    start, key = _late_row(past)
    return explain_for_page(settings, name, from_ms(start), key, FIRST + timedelta(days=past.days))


def _cell(settings: Settings, name: str, past: Past) -> Any:
    start, end = from_ms(start_of(past.closed - 1)), from_ms(start_of(past.closed))
    return read_cell(settings, name, "served", start, end, {"k": _late_row(past)[1]})


def _plan(settings: Settings, name: str, past: Past) -> Any:
    return preview_backfill(settings, name, from_ms(start_of(past.closed - 5)), from_ms(start_of(past.closed)))


def _definition(settings: Settings, name: str) -> Definition:
    return load_definition(settings.definition_folder(name))


def _summary(settings: Settings, name: str, past: Past) -> Any:
    return describe_summary(settings, DEFINITIONS(settings, name), FIRST + timedelta(days=past.days))


def _overview(settings: Settings, name: str, past: Past) -> Any:
    now = FIRST + timedelta(days=past.days)
    return [describe_row(settings, DEFINITIONS(settings, each), now) for each in settings.pipeline_names()]


DEFINITIONS = functools.cache(_definition)
"""The server keeps definitions, too."""
ANSWERS: dict[str, Answer] = {
    "overview of all pipelines": _overview,
    "summary": _summary,
    "heatmap, as it opens": _heatmap(),
    "heatmap, as it opens, stream": _heatmap(pair="stream"),
    "heatmap, a year by day": _year("day"),
    "heatmap, 1,000 windows by 50 keys": _year("window"),
    "heatmap, keys by text": _heatmap(text="k00"),
    "correctness": lambda settings, name, past: describe_correctness(settings, name),
    "lateness": lambda settings, name, past: read_lateness(settings, name, None, None),
    "lateness, a year": lambda settings, name, past: read_lateness(
        settings, name, FIRST, FIRST + timedelta(days=past.days)
    ),
    "cell": _cell,
    "explain": _explain,
    "plan of a backfill": _plan,
    "backfills": lambda settings, name, past: list_of_backfills(settings, name),
}
"""What is measured, by name."""


def without_broker(past: Past) -> None:
    """Let Kafka hold the whole log, without a broker: a plan asks for its offsets alone."""
    end = past.days * past.keys * 10 * 3
    kafka.topic_exists = lambda *_: True
    kafka.topic_id = lambda *_: "id"
    kafka.begin_offsets = lambda *_: {0: 0}
    kafka.end_offsets = lambda *_: {0: end}
    assert TOPIC


def measure(answer: Answer, settings: Settings, name: str, past: Past) -> Mapping[str, float]:
    """Return seconds and CPU-seconds of the first answer and of later ones, and the bytes of one."""
    taken: list[tuple[float, float]] = []
    size = 0
    for _ in range(1 + WARM):
        wall, cpu = time.perf_counter(), time.process_time()
        size = len(json.dumps(to_plain(answer(settings, name, past)), separators=(",", ":")))
        taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    walls, cpus = zip(*taken[1:], strict=True)
    return {
        "cold_s": taken[0][0],
        "cold_cpu_s": taken[0][1],
        "warm_s": statistics.median(walls),
        "warm_cpu_s": statistics.median(cpus),
        "bytes": size,
    }


def _child(folder: Path, past: Past, only: str) -> None:
    settings = Settings(project=folder / "project", home=folder / "home")
    without_broker(past)
    overview.KEPT_S = -1.0  # what was read two seconds ago is read again
    print(json.dumps(measure(ANSWERS[only], settings, _names(1)[0], past)))


def _names(count: int) -> list[str]:
    return [f"p{number:02d}" for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.cockpit", description=__doc__)
    parser.add_argument("--home", type=Path, help="folder of the home; it is made if there is none")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--keys", type=int, default=50)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(ANSWERS))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    past = Past(given.days, given.keys)
    if given.child:
        _child(given.home, past, given.only[0])
        return
    with tempfile.TemporaryDirectory(prefix="rivertwice-bench-") as scratch:
        folder = given.home or Path(scratch)
        if not (folder / "made").exists():
            folder.mkdir(parents=True, exist_ok=True)
            make_past(folder, past, _names(given.pipelines))
            (folder / "made").touch()
        print(f"{given.days} days, {3 * given.days} windows, {given.keys} keys, {given.pipelines} pipelines")
        print(f"{'answer':36}{'cold s':>9}{'CPU-s':>9}{'warm s':>9}{'CPU-s':>9}{'bytes':>10}")
        for only in given.only:
            command = [sys.executable, "-m", "lab.bench.cockpit", "--child", "--home", str(folder)]
            command += ["--days", str(given.days), "--keys", str(given.keys), "--only", only]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            figures = "".join(f"{row[name]:9.3f}" for name in ("cold_s", "cold_cpu_s", "warm_s", "warm_cpu_s"))
            print(f"{only:36}{figures}{row['bytes']:10,}", flush=True)


if __name__ == "__main__":
    main()
