"""One seed, one schedule: decisions drawn from the seed, or given, then peace, in which everything must come right."""

from __future__ import annotations

from collections.abc import Sequence

from lab.model.coverage import Coverage, Outcome
from lab.model.draws import DrawnRun
from lab.model.rules import Rules
from lab.model.stories import Decision, Focus
from lab.model.versions.run import VersionRun
from lab.model.violations import ViolationError
from rivertwice.core.errors import RivertwiceError

ONE_LOAD_IN = 20
ONE_VERSION_IN = 40


def run_schedule(
    seed: int,
    *,
    rules: Rules | None = None,
    broken: str = "",
    coverage: Coverage | None = None,
    decisions: Sequence[Decision] | None = None,
    focus: Focus | None = None,
    trace: bool = False,
) -> Outcome:
    """Run one schedule to its end.

    Args:
        seed: draws the log and, unless `decisions` are given, every decision.
        rules: the decision functions; None takes the product's.
        broken: name of the protocol step that is broken on purpose.
        coverage: is updated by the schedule.
        decisions: repeats these instead of drawing.
        focus: narrows what the seed draws; without one, every twentieth seed begins with a first load, and every
            fortieth has versions.
        trace: keep a line per step.
    """
    coverage = coverage if coverage is not None else Coverage()
    focus = focus or Focus(loads=seed % ONE_LOAD_IN == 5, versions=seed % ONE_VERSION_IN == 11)
    kind: type[DrawnRun | VersionRun] = VersionRun if focus.versions else DrawnRun
    run = kind(seed, rules or Rules(), broken, coverage, focus, trace=trace)
    coverage.schedules += 1
    ending, violation = "", None
    try:
        if decisions is None:
            for number in range(run.length):
                run.perform(run.decide(number))
        else:
            for decision in decisions:
                run.perform(decision)
        if trace:
            run.lines.append("-- peace --")
        ending = run.finish()
    except ViolationError as error:
        violation = error
    except RivertwiceError as error:
        violation = ViolationError("no error escapes", f"{type(error).__name__}: {error}")
    except (KeyError, AssertionError, IndexError, TypeError, ValueError, AttributeError) as error:
        if not broken and rules is None:
            raise
        violation = ViolationError("nothing stumbles over what it finds", f"{type(error).__name__}: {error}")
    coverage.endings[ending] = coverage.endings.get(ending, 0) + 1
    return Outcome(seed, violation, tuple(run.decisions), ending, tuple(run.lines))
