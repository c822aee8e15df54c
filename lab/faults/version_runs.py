"""What the cases of versions share: a definition that is changed, the streams of two versions, and the rows that consumers read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import yaml

from lab.faults.cases import require
from lab.faults.cases_first_load import struck
from lab.faults.lab import DRIVER, PIPELINE, Lab
from lab.faults.processes import end_group, start_process
from lab.faults.reconcile_runs import require_passed
from lab.faults.retention_runs import ask, to_ms
from lab.faults.strikes import AFTER, BEFORE
from rivertwice.agent.served import definition_of_head
from rivertwice.core.installed import version_name
from rivertwice.core.instants import utc_now
from rivertwice.log import kafka
from rivertwice.storage.table import Table
from rivertwice.stream.lease import Owner, lease_owner
from rivertwice.timeline.first_load import FirstLoad
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.versions.serve import read_switches

Rows = list[tuple[Any, ...]]
QUIET_S = 5.0
NEW = version_name(PIPELINE, 2)
UPGRADE = ("upgrade", PIPELINE, "--new-version", "--yes")
DECLARED = {
    "reason": "amounts are counted twice",
    "rows": [{"columns": ["total"], "where": "new.total = 2 * old.total", "reason": "each amount counts twice"}],
}
_SERVE = "rivertwice.versions.serve"
SWITCHED = (
    (struck("the version's rows built, nothing switched", f"{_SERVE}:rebuild_served"), False),
    (struck("both locks held, nothing switched", f"{_SERVE}:follow_stamp", AFTER, 2), False),
    (struck("switched, not noted", f"{_SERVE}:follow_stamp", BEFORE, 3), True),
)
"""Steps of a switch, each with whether the switch is done."""


def keep_served(lab: Lab) -> None:
    """Do what the agent does after a batch: build what each version serves."""
    for name in (PIPELINE, NEW):
        rebuild_served(lab.settings.pipeline(name), definition_of_head(lab.settings, name))


def change_definition(lab: Lab) -> None:
    """Count each amount twice, and declare that."""
    folder = lab.settings.definitions / PIPELINE
    sql = folder / "transform.sql"
    sql.write_text(sql.read_text().replace("sum(amount)", "2 * sum(amount)"))
    (folder / "changes").mkdir()
    (folder / "changes" / "v2.yaml").write_text(yaml.safe_dump(DECLARED))


def stream_beside(lab: Lab, *, killed: bool = False) -> None:
    """Run the version's driver to the end of the log; first one that is killed, if asked."""
    command = [*DRIVER[:3], "--pipeline", NEW, "--until-end"]
    for is_killed in [True, False] if killed else [False]:
        lab.settings.pipeline(NEW).drain.unlink(missing_ok=True)  # as the agent does: of a command that was killed
        process = start_process(command, log=lab.folder / "beside.log", env=lab.env(), cwd=lab.settings.project)
        lab.at_end(partial(end_group, process))
        if is_killed:
            require(
                lab.kill_when(process, partial(has_begun, lab)), "the version's driver ended before its first batch"
            )
            continue
        code = lab.wait(process)
        require(code == 0, f"the version's driver ended with {code}: {(lab.folder / 'beside.log').read_text()[-2000:]}")
    require(FirstLoad.load(lab.settings.pipeline(NEW)) is not None, "the version streams the whole log")


def has_begun(lab: Lab) -> bool:
    """Say whether the version's stream has committed a batch."""
    return Table(lab.settings.pipeline(NEW).tables.ledger).open() is not None


def want(lab: Lab, state: str) -> None:
    """Want both streams running or stopped; when stopped, wait until no driver is left."""
    for name in (PIPELINE, NEW):
        write_intent(lab.settings.pipeline(name), state, "lab", utc_now())
    if state == "stopped":
        lab.until(lambda: not any(map(partial(owner_of, lab), (PIPELINE, NEW))), 180, "the drain of both streams")


def owner_of(lab: Lab, name: str) -> Owner | None:
    """Return the driver of a version's stream."""
    return lease_owner(lab.settings.pipeline(name))


def await_all_read(lab: Lab) -> None:
    """Wait until both streams have committed all of the log, and then no batch for a while."""
    wanted = kafka.end_offsets(lab.settings, lab.topic)

    def last(name: str) -> tuple[str, int] | None:
        rows = path_ledger(lab.settings.pipeline(name))
        ends = {int(p): int(end) for p, end in rows[-1].end_offsets[lab.topic].items()} if rows else {}
        return (rows[-1].timeline, rows[-1].batch) if ends == wanted else None

    for name in (PIPELINE, NEW):
        lab.until(lambda name=name: last(name) is not None, 240, f"the end of the log of {name}")  # type: ignore[misc]
    quiet, seen = time.monotonic(), None
    while time.monotonic() - quiet < QUIET_S:
        if (now := [last(name) for name in (PIPELINE, NEW)]) != seen:
            quiet, seen = time.monotonic(), now
        time.sleep(0.2)


def require_proved(lab: Lab) -> dict[str, Rows]:
    """Reconcile both versions, and require that it passes; return the rows of each."""
    keep_served(lab)
    for name in (PIPELINE, NEW):
        require_passed(ask(lab, "reconcile", name))
    return {name: own_rows(lab, name) for name in (PIPELINE, NEW)}


def require_served(lab: Lab, rows: dict[str, Rows], name: str, when: str) -> None:
    """Require that consumers read one version's rows, whole, also once what each version serves was built again."""
    require(public_rows(lab) == rows[name], f"{when} consumers read other rows than those of {name}")
    keep_served(lab)
    require(public_rows(lab) == rows[name], f"builds {when} changed what consumers read")
    require(serving_by_stamp(lab.home) == name, f"{serving_by_stamp(lab.home)} serves {when}, not {name}")


def require_switches(lab: Lab, *wanted: str) -> None:
    """Require that these versions began to serve, in this order, each by one commit."""
    done = [record["to"] for record in read_switches(lab.home)]
    require(done == list(wanted), f"switches to {done} are recorded, not to {list(wanted)}")


def own_rows(lab: Lab, name: str) -> Rows:
    """Return what a version serves, or would serve."""
    return _sorted(Table(lab.settings.pipeline(name).tables.served).read())


def public_rows(lab: Lab) -> Rows:
    """Return what consumers read."""
    return _sorted(Table(lab.home.public_served).read())


def _sorted(table: Any) -> Rows:
    rows: Sequence[dict[str, Any]] = [] if table is None else table.to_pylist()
    return sorted((to_ms(row["window_start"]), row["k"], row["n"], row["total"], row["top"]) for row in rows)
