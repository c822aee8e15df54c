"""Run cases, one seed after another, and store every outcome at once, so that a campaign continues where it stopped."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.faults.cases import Case
from lab.faults.errors import CaseFailedError, require
from lab.faults.judgement import Judgement
from lab.faults.lab import Lab
from lab.faults.outcomes import CONTROL, OURS, Outcome, append_outcome, this_code
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import to_iso, utc_now
from rivertwice.core.settings import Settings
from rivertwice.core.waits import Progress
from rivertwice.local.broker import start_broker, stop_broker

LOG = logging.getLogger(__name__)
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A driver of the lab lives for seconds: half of its start is compiling, and the first compiler is enough."""
RUN_S = 1800.0
_JUDGED = ("records", "batches", "rows", "emitted", "open", "late", "dead", "excluded")


@dataclass(frozen=True)
class Planned:
    """One run to make."""

    case: Case
    seed: int
    job: str


def plan_campaign(
    cases: Sequence[Case],
    controls: Sequence[Case],
    done: Iterable[Outcome],
    *,
    seeds: int | None,
    upto: int | None = None,
) -> list[Planned]:
    """Return the runs that are left, in the matrix's order: one seed of every case before the next seed, the control job last.

    Args:
        cases: to run.
        controls: the cases of the control job.
        done: outcomes that exist already; a (case, seed, job) that is among them is not run again.
        seeds: seeds of each case; None takes the case's own number, and one for the control job.
        upto: continue with further seeds, without the control job, until so many kills are planned in all.
    """
    finished = {(each.case, each.seed, each.job) for each in done}
    planned = [*_rings(cases, OURS, seeds), *_rings(controls, CONTROL, seeds or 1)]
    killing = [each for each in cases if each.kills]
    kills = sum(each.case.kills for each in planned if each.job == OURS)
    seed = max((each.seed for each in planned), default=0)
    while upto is not None and killing and kills < upto:
        seed += 1
        planned += [Planned(each, seed, OURS) for each in killing]
        kills += sum(each.kills for each in killing)
    return [each for each in planned if (each.case.name, each.seed, each.job) not in finished]


def _rings(cases: Sequence[Case], job: str, seeds: int | None) -> list[Planned]:
    wanted = [(seed, each) for each in cases for seed in range(1, (seeds or each.seeds) + 1)]
    return [Planned(each, seed, job) for seed, each in sorted(wanted, key=lambda turn: (turn[0], turn[1].order))]


def run_case(
    settings: Settings, case: Case, seed: int, folder: Path, *, job: str = OURS, keep: bool = False
) -> Outcome:
    """Run one case with one seed and judge it. An error of the run is an outcome too.

    Args:
        settings: with `bootstrap`: the shared broker.
        case: to run.
        seed: seed of the run.
        folder: where the run's own folder is made.
        job: which of the two streams goes through it.
        keep: leave folder and topic for a look afterwards.
    """
    os.environ.setdefault("JAVA_TOOL_OPTIONS", QUICK_JVM)
    os.environ.setdefault("RIVERTWICE_ENGINE", "off")  # a strike is meant for the process that does the work
    began, clock = to_iso(utc_now()), time.monotonic()
    place = folder / f"{case.name.replace('/', '-').lower()}-{seed}-{job}-{uuid.uuid4().hex[:6]}"
    detail, failed, judgement = "", True, None
    lab = _make_lab(settings, place, seed, job)
    try:
        case.run(lab)
        if case.judge:
            judgement = lab.judge()
            require(judgement.rows > 0, "the stream emitted nothing, so nothing was judged")
            detail = "; ".join(judgement.findings[:6])
        failed = False
    except CaseFailedError as error:
        detail = str(error)
    except RivertwiceError as error:
        detail = f"{type(error).__name__}: {error}"
    except Exception as error:
        detail = f"unexpected {type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    finally:
        _close(lab, keep=keep)
    return _outcome(case, seed, job, lab, judgement, detail, failed, began, time.monotonic() - clock)


def _make_lab(settings: Settings, place: Path, seed: int, job: str) -> Lab:
    if job == CONTROL:
        from lab.faults.control_lab import ControlLab

        return ControlLab(settings, place, seed)
    return Lab(settings, place, seed)


def _close(lab: Lab, *, keep: bool) -> None:
    try:
        lab.close(keep=keep)
    except (RivertwiceError, OSError) as error:
        LOG.warning("cleaning up %s: %s", lab.folder, error)


def _outcome(
    case: Case,
    seed: int,
    job: str,
    lab: Lab,
    judgement: Judgement | None,
    detail: str,
    failed: bool,
    began: str,
    seconds: float,
) -> Outcome:
    figures = dict(lab.facts)
    if judgement is not None:
        figures |= {name: getattr(judgement, name) for name in _JUDGED}
    counts: dict[str, Any] = {
        name: 0 if judgement is None else int(getattr(judgement, name))
        for name in ("lost", "duplicated", "wrong", "unexplained")
    }
    ok = not failed and not any(counts.values())
    return Outcome(
        case=case.name,
        seed=seed,
        job=job,
        kills=lab.kills,
        ok=ok,
        seconds=round(seconds, 1),
        detail=detail[:4000],
        figures=figures,
        began=began,
        **this_code(),
        **counts,
    )


def run_campaign(
    settings: Settings,
    planned: Sequence[Planned],
    results: Path,
    folder: Path,
    *,
    say: Progress,
    jobs: int = 1,
) -> list[Outcome]:
    """Run what is planned on one broker, recording each outcome as soon as it is known.

    Args:
        settings: the project; without a broker's address an embedded one is started for the campaign.
        planned: what to run.
        results: the file of outcomes.
        folder: where the runs' folders and the broker lie.
        say: is called with a line per run.
        jobs: runs at the same time; more than one run each in a process of its own.
    """
    outcomes: list[Outcome] = []
    with broker_for(settings, folder) as ready, ThreadPoolExecutor(jobs) as pool:
        made: Iterable[Outcome]
        if jobs == 1:
            made = (run_case(ready, each.case, each.seed, folder / "runs", job=each.job) for each in planned)
        else:
            apart = [pool.submit(run_apart, ready, each) for each in planned]
            made = (each.result() for each in as_completed(apart))
        for outcome in made:
            append_outcome(results, outcome)
            outcomes.append(outcome)
            say(f"[{len(outcomes)}/{len(planned)}] {tell(outcome)}")
    return outcomes


def run_apart(settings: Settings, planned: Planned) -> Outcome:
    """Run one case in a process of its own: some cases change what a process has only once."""
    name, seed = planned.case.name, planned.seed
    command = [sys.executable, "-m", "rivertwice.cli.main", "--output", "json", "faults", "run", "--case", name]
    command += ["--seed", str(seed), *(["--control"] if planned.job == CONTROL else [])]
    env = {**os.environ, **settings.to_env()}
    ending = ""
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=RUN_S, check=False)
        ending = f"it ended with {done.returncode} and printed {done.stderr[-1500:]!r}"
        return Outcome(**json.loads(done.stdout)["outcomes"][0])
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        detail = f"the run printed no outcome: {type(error).__name__}: {str(error)[:500]}; {ending}"
        return Outcome(name, seed, planned.job, 0, 0, 0, 0, 0, ok=False, seconds=0.0, detail=detail, **this_code())


@contextmanager
def broker_for(settings: Settings, folder: Path) -> Iterator[Settings]:
    """Yield settings with a broker's address: the configured one, or an embedded one that lives as long as the block."""
    if settings.bootstrap:
        yield settings
        return
    own = Settings(project=settings.project, home=folder / "broker-home")
    try:
        yield replace(settings, bootstrap=start_broker(own).bootstrap)
    finally:
        stop_broker(own)


def tell(outcome: Outcome) -> str:
    """Return an outcome as a line for people; it names the seed."""
    verdict = "ok" if outcome.ok else "NOT EXACT" if outcome.job == CONTROL else "FAILED"
    text = (
        f"{outcome.case} seed {outcome.seed} ({outcome.job}): {verdict}; {outcome.kills} kills, lost {outcome.lost}, "
        f"duplicated {outcome.duplicated}, wrong {outcome.wrong}, unexplained {outcome.unexplained}, {outcome.seconds} s"
    )
    return text if outcome.ok or outcome.job == CONTROL else f"{text}\n    {outcome.detail}"
