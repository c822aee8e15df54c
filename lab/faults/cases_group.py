"""F1 to F6 in the JVM of a group, which outlives each driver that is killed; and F15: that JVM killed, and its host."""

from __future__ import annotations

from collections.abc import Callable

from lab.faults.cases import case, require
from lab.faults.cases_driver import (
    KILLS,
    killed_at_any_moment,
    killed_behind_files,
    killed_behind_offsets,
    killed_behind_state,
    killed_behind_the_commit,
    killed_idle,
)
from lab.faults.lab import Lab
from lab.faults.lab_project import edit_definition
from rivertwice.engine.warm import stop_engine
from rivertwice.storage.local import read_json
from rivertwice.stream.lease import read_owner

GROUP = "lab"


def join(lab: Lab) -> None:
    """Put the run's pipeline into a group. A driver beside it, which nothing happens to, is not needed: the host stays a minute."""
    edit_definition(lab.settings, lambda document: document["stream"].update(group=GROUP))
    lab.at_end(lambda: stop_engine(lab.settings))


def jvm(lab: Lab) -> int:
    """Return the JVM of the newest driver, which must be a group's."""
    owner = read_owner(lab.home)
    require(owner is not None and owner.group is not None, f"the driver is not in its group: {owner}")
    return 0 if owner is None or owner.jvm_pid is None else owner.jvm_pid


def in_one_jvm(run: Callable[[Lab], None]) -> Callable[[Lab], None]:
    """Return a case that runs in the JVM of a group; what the killed drivers left there must not be seen by the next."""

    def shared(lab: Lab) -> None:
        join(lab)
        lab.run_to_end()
        first = jvm(lab)
        run(lab)
        require(jvm(lab) == first, "the kill of a driver ended the JVM of its group")

    return shared


case("F1/group", "killed right after offsets/N; its JVM lives on", kills=KILLS)(in_one_jvm(killed_behind_offsets))
case("F2/group", "killed right after a state file; its JVM lives on", kills=KILLS)(in_one_jvm(killed_behind_state))
case("F3/group", "killed before the commit; its JVM lives on", kills=KILLS)(in_one_jvm(killed_behind_files))
case("F4/group", "killed behind the commit; its JVM lives on", kills=KILLS)(in_one_jvm(killed_behind_the_commit))
case("F6/group", "killed while it has nothing to do; its JVM lives on", kills=KILLS)(in_one_jvm(killed_idle))
case("F6/group-any", "killed six times at any moment; its JVM lives on", kills=6)(in_one_jvm(killed_at_any_moment))


@case("F15/group", "the JVM of a group killed under a driver, then the process that keeps it", kills=2)
def group_killed(lab: Lab) -> None:
    """The driver ends, and the next one starts another JVM."""
    join(lab)
    lab.produce()
    before = 0
    for strikes_jvm in (True, False):
        driver, steps = lab.start_driver(), lab.steps()
        batch = steps.last_planned() + lab.random.randrange(2, 5)
        lab.until(lambda at=batch, seen=steps: seen.planned(at), 90, f"offsets/{batch}")  # type: ignore[misc]
        victim = jvm(lab)
        require(victim != before, "the next driver is in the JVM that was killed")
        (host,) = (read_json(file) or {} for file in (lab.settings.home / "groups").glob("*/host.json"))
        lab.kill_pid(victim if strikes_jvm else int(host["pid"]))
        code = lab.wait(driver, 60)
        require(code != 0, f"a driver whose JVM was killed ended with {code}")
        before = victim
    lab.run_to_end()
