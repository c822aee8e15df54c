"""The reconcile's own test (F37): it must find every run that is known to be wrong, and call no unmutated run wrong.

One warm Spark session judges copies of a few seeded streams: `mutations` of them changed in one place, `clean` of them as
they were when some earlier batch was the last. Results are JSON lines; a campaign continues where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lab.faults.lab import Lab
from lab.mutations import MUTATIONS, Mutation, mutate
from rivertwice.agent.served import rebuild
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import from_ms, utc_now
from rivertwice.core.settings import Settings
from rivertwice.engine.session import spark_session
from rivertwice.local.broker import start_broker, stop_broker
from rivertwice.reconcile.report import ReconcileReport
from rivertwice.reconcile.run import reconcile
from rivertwice.storage.table import Table
from rivertwice.timeline.ledger import from_table, to_table

PIPELINE = Lab.pipeline


@dataclass(frozen=True)
class Score:
    """The reconcile's result for one copy.

    Attributes:
        stream: seed of the stream it is a copy of.
        kind: kind of mutation, or `clean`.
        flagged: the copy was called wrong: a DEFECT, a finding, a refusal, or windows of two definitions.
        stray: windows called wrong that the mutation did not touch (results only; 0 elsewhere).
        said: the first reasons.
    """

    stream: int
    kind: str
    seed: int
    detail: str
    flagged: bool
    stray: int
    said: str
    seconds: float

    @property
    def ok(self) -> bool:
        """A mutation was found and nothing else blamed; a clean copy was left alone."""
        return (self.flagged and not self.stray) if self.kind != "clean" else not self.flagged


def stream_once(settings: Settings, folder: Path, seed: int) -> Lab:
    """Stream one seeded story to its end and build its served table."""
    lab = Lab(settings, folder, seed)
    lab.produce()
    lab.run_to_end()
    rebuild(lab.settings, PIPELINE)
    return lab


def copy_home(lab: Lab, folder: Path) -> Settings:
    """Return settings of a copy of a run's home, without its checkpoints."""
    settings = replace(lab.settings, home=folder)
    target = settings.pipeline(PIPELINE).root
    shutil.copytree(lab.home.root, target, ignore=shutil.ignore_patterns("checkpoint", "*.lock", "logs"))
    return settings


def cut_back(settings: Settings, last: int) -> None:
    """Make a copy look as it did when batch `last` was the newest: a clean run that ended earlier.

    The tables are written again, for the old ones' commits still name the batches after it.
    """
    tables = settings.pipeline(PIPELINE).tables
    shortened: dict[Path, pa.Table] = {}
    ledger = Table(tables.ledger).read()
    if ledger is not None:
        shortened[Path(tables.ledger)] = to_table([row for row in from_table(ledger) if row.batch <= last])
    for place in (tables.changelog, tables.dead_letters):
        rows = Table(place).read()
        if rows is not None:
            shortened[Path(place)] = rows.filter(pc.field("_batch") <= last)
    for path, rows in shortened.items():
        shutil.rmtree(path)
        Table(path).append(rows)
    shutil.rmtree(Path(tables.served), ignore_errors=True)
    rebuild(settings, PIPELINE)


def judge(spark: Any, settings: Settings) -> tuple[bool, set[str], str]:
    """Reconcile a copy; return whether it was called wrong, which window starts were, and the first reasons."""
    try:
        report = reconcile(spark, settings, PIPELINE, full=True, now=utc_now(), progress=lambda _: None)
    except RivertwiceError as error:
        return True, set(), f"refused: {type(error).__name__}: {str(error)[:200]}"
    return describe(report)


def describe(report: ReconcileReport) -> tuple[bool, set[str], str]:
    """Return whether a report calls anything wrong, which window starts, and the first reasons."""
    wrong = [judged for judged in report.verdicts if judged.verdict in {"DEFECT", "NOT_COMPARABLE"}]
    reasons = [f"{judged.verdict}: {judged.reason}" for judged in wrong] + [
        finding.message for finding in report.findings
    ]
    starts = {str(from_ms(judged.row.start_ms)) for judged in wrong}
    unexplained = report.total.unexplained
    if unexplained and not reasons:
        reasons.append(f"{unexplained} pairs unexplained")
    return bool(reasons), starts, " | ".join(reasons[:2])[:300]


def stray_windows(mutation: Mutation, starts: set[str]) -> int:
    """Count windows that were called wrong although a mutation of results did not touch them."""
    return len(starts - set(mutation.starts)) if mutation.kind.startswith(("changelog/", "served")) else 0


def plan_scores(
    streams: list[int], mutations: int, clean: int, kinds: Sequence[str] = tuple(MUTATIONS)
) -> Iterator[tuple[int, str, int]]:
    """Yield (stream seed, kind, seed) of every copy: all kinds in turn, over all streams in turn. Pure."""
    for number, kind in enumerate(itertools.islice(itertools.cycle(kinds), mutations)):
        yield streams[number % len(streams)], kind, number
    for number in range(clean):
        yield streams[number % len(streams)], "clean", number


def score_copy(spark: Any, lab: Lab, kind: str, seed: int, folder: Path) -> Score:
    """Copy a run, change it, judge it."""
    began = time.monotonic()
    settings = copy_home(lab, folder)
    detail, stray = "", 0
    if kind == "clean":
        ledger = Table(settings.pipeline(PIPELINE).tables.ledger).read()
        batches = pa.table(ledger).num_rows if ledger is not None else 0
        last = batches - 1 if seed < 10 else random.Random(seed).randrange(batches // 3, batches)  # noqa: S311
        detail = f"as of batch {last} of {batches}"
        if last < batches - 1:
            cut_back(settings, last)
        flagged, _, reasons = judge(spark, settings)
    else:
        mutation = mutate(settings.pipeline(PIPELINE), kind, seed)
        detail = mutation.detail
        flagged, starts, reasons = judge(spark, settings)
        stray = stray_windows(mutation, starts)
    shutil.rmtree(folder)
    return Score(lab.seed, kind, seed, detail, flagged, stray, reasons, round(time.monotonic() - began, 2))


def run_scores(
    settings: Settings,
    folder: Path,
    *,
    streams: int,
    mutations: int,
    clean: int,
    seed: int,
    tell: Callable[[str], None],
    kinds: Sequence[str] = tuple(MUTATIONS),
    spark: Any = None,
) -> list[Score]:
    """Stream, mutate, judge; the settings must name a broker. Outcomes are kept in `folder/scores.jsonl`.

    Args:
        settings: where Spark's jars and the broker are.
        folder: folder of the campaign.
        streams: seeded streams to copy.
        mutations: copies to change, in all.
        clean: copies to leave alone, in all.
        seed: seed of the first stream.
        tell: is called with a line for every copy.
        kinds: kinds of mutations, in turn.
        spark: the session to judge in; None starts one and ends it.
    """
    scores_file = folder / "scores.jsonl"
    done = [Score(**json.loads(line)) for line in scores_file.read_text().splitlines()] if scores_file.exists() else []
    seeds = [seed + number for number in range(streams)]
    known = {(score.stream, score.kind, score.seed) for score in done}
    left = [planned for planned in plan_scores(seeds, mutations, clean, kinds) if planned not in known]
    labs: dict[int, Lab] = {}
    session = spark
    try:
        for wanted in sorted({stream for stream, _, _ in left}):
            labs[wanted] = stream_once(settings, folder / f"stream-{wanted}-{time.time_ns()}", wanted)
            tell(f"stream {wanted}: {labs[wanted].produced} records")
        session = session or spark_session(settings, "rivertwice-mutations")
        for stream, kind, number in left:
            score = score_copy(session, labs[stream], kind, number, folder / "copy")
            done.append(score)
            with scores_file.open("a") as file:
                file.write(json.dumps(asdict(score), sort_keys=True) + "\n")
            tell(f"{'ok  ' if score.ok else 'MISS'} {kind} seed {number} stream {stream}: {score.detail}: {score.said}")
    finally:
        if spark is None and session is not None:
            session.stop()
        for lab in labs.values():
            lab.close()
    return done


def summary(scores: list[Score]) -> str:
    """Return the score as lines for people."""
    mutants = [score for score in scores if score.kind != "clean"]
    cleans = [score for score in scores if score.kind == "clean"]
    lines = [
        f"{len(mutants)} mutations: {sum(s.flagged for s in mutants)} found, {sum(bool(s.stray) for s in mutants)} with windows "
        "blamed that were not touched",
        f"{len(cleans)} unmutated runs: {sum(s.flagged for s in cleans)} false alarms",
    ]
    for kind in MUTATIONS:
        scores_of_kind = [score for score in mutants if score.kind == kind]
        lines.append(f"  {kind:<20} {sum(s.flagged for s in scores_of_kind)} of {len(scores_of_kind)}")
    return "\n".join(lines)


def main() -> int:
    """Score from the command line; exit 0 only if every mutation was found and nothing else was blamed."""
    parser = argparse.ArgumentParser(prog="python -m lab.mutation_score", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="keeps scores, so that the campaign can continue; default: none kept"
    )
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--mutations", type=int, default=200)
    parser.add_argument("--clean", type=int, default=50)
    parser.add_argument("--seed", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rivertwice-mutations-") as name:
        folder: Path = asked.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        settings = replace(Settings.from_env(), home=Path(name) / "home", bootstrap=None, spark_master="local[2]")
        start_broker(settings)
        try:
            scores = run_scores(
                settings,
                folder,
                streams=asked.streams,
                mutations=asked.mutations,
                clean=asked.clean,
                seed=asked.seed,
                tell=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201 (progress)
            )
        finally:
            stop_broker(settings)
    sys.stdout.write(summary(scores) + "\n")
    return 0 if all(score.ok for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
