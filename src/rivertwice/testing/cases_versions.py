"""F56: a new version killed around each step: its beginning, its load, each switch and the way back; the same command continues."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import yaml

from rivertwice.config.versions import version_name
from rivertwice.store import delta
from rivertwice.supervise.served import definition_of_head
from rivertwice.testing.cases import case, require
from rivertwice.testing.cases_first_load import struck
from rivertwice.testing.lab import DRIVER, PIPELINE, Lab
from rivertwice.testing.processes import end_group, start_process
from rivertwice.testing.reconcile_runs import require_passed
from rivertwice.testing.retention_runs import ask, to_ms
from rivertwice.testing.strikes import AFTER, BEFORE, strike_command
from rivertwice.timeline.first_load import read_load
from rivertwice.timeline.served import rebuild_served
from rivertwice.timeline.served_stamp import serving_by_stamp
from rivertwice.timeline.version_records import read_versions

NEW = version_name(PIPELINE, 2)
UPGRADE = ("upgrade", PIPELINE, "--new-version", "--confirm")
_BEGIN, _LOAD, _SERVE = "rivertwice.versions.begin", "rivertwice.backfill.load", "rivertwice.versions.serve"
DECLARED = {
    "reason": "amounts are counted twice",
    "rows": [{"columns": ["total"], "where": "new.total = 2 * old.total", "reason": "each amount counts twice"}],
}


BEGUN = (
    struck("the definition stored, no version recorded", f"{_BEGIN}:save_bundle"),
    struck("the version recorded, nothing frozen", f"{_BEGIN}:record_version"),
    struck("the old definition frozen", f"{_BEGIN}:write_folder"),
    struck("both definitions frozen", f"{_BEGIN}:write_folder", AFTER, 2),
    struck("the load recorded", f"{_LOAD}:record_load"),
)
PUBLISHED = (
    struck("a backfill computed", f"{_LOAD}:compute_backfill"),
    struck("a backfill published", f"{_LOAD}:publish_backfill"),
)
SWITCHED = (
    (struck("the version's rows built, nothing switched", f"{_SERVE}:rebuild_served"), False),
    (struck("both locks held, nothing switched", f"{_SERVE}:follow_stamp", AFTER, 2), False),
    (struck("switched, not noted", f"{_SERVE}:follow_stamp", BEFORE, 3), True),
)
"""Each with whether the switch is done."""


@case(
    "F56",
    "a new version killed around each step: begun, loaded, switched and back; what consumers read is one version's rows",
    kills=len(BEGUN) + 1 + len(PUBLISHED) + 2 * len(SWITCHED),
)
def killed_in_an_upgrade_beside(lab: Lab) -> None:
    """It begins once, its past is published once, and each kill of a switch leaves the rows of one version, whole."""
    lab.produce(lab.next_plan(records=400, late_share=0.2, closing=False))
    lab.run_to_end()
    rebuild_served(lab.home, lab.definition)
    _change(lab)
    for strike in BEGUN:
        strike_command(lab, strike, *UPGRADE)
    require([each.name for each in read_versions(lab.home)] == [NEW], "the version was not recorded once")
    _stream_beside(lab, killed=True)
    for strike in PUBLISHED:
        strike_command(lab, strike, *UPGRADE)
    said = ask(lab, *UPGRADE)
    require(said["version"] == NEW and said["load"] is not None, f"it began {said}")
    lab.produce(lab.next_plan(records=160, late_share=0.2))
    lab.run_to_end()  # the old definition goes on, whatever the project says
    _stream_beside(lab)
    _keep_served(lab)
    for name in (PIPELINE, NEW):
        require_passed(ask(lab, "reconcile", name))
    parity = ask(lab, "version", "compare", NEW)
    require(parity["passed"], f"the gate refuses: {parity['reasons']}")
    lab.fact("parity", f"{parity['rows']['equal']} equal, {parity['rows']['declared']} declared, {parity['late']} late")
    rows = {name: _rows(lab, name) for name in (PIPELINE, NEW)}
    require(rows[PIPELINE] != rows[NEW], "both versions have the same rows")
    _switch(lab, PIPELINE, NEW, rows)
    _switch(lab, NEW, PIPELINE, rows)
    ask(lab, "version", "serve", NEW, "--yes")
    require(_public(lab) == rows[NEW], "the second switch shows other rows than the first one")
    ask(lab, "version", "serve", PIPELINE, "--yes")  # what the oracle knows
    require(_public(lab) == rows[PIPELINE], "after the way back consumers read other rows than before")


def _switch(lab: Lab, source: str, target: str, rows: dict[str, Any]) -> None:
    """Let another version serve, killed at each step; then once more, to its end."""
    for strike, is_done in SWITCHED:
        strike_command(lab, strike, "version", "serve", target, "--yes")
        serving = target if is_done else source
        require(
            _public(lab) == rows[serving], f"after '{strike.name}' consumers read other rows than those of {serving}"
        )
        _keep_served(lab)
        require(_public(lab) == rows[serving], f"builds after '{strike.name}' changed what consumers read")
        require(serving_by_stamp(lab.home) == serving, f"{serving_by_stamp(lab.home)} serves after '{strike.name}'")
    said = ask(lab, "version", "serve", target, "--yes")
    require(not said["changed"], f"a switch that was done was done again: {said}")


def _keep_served(lab: Lab) -> None:
    """Do what the agent does after a batch: build what each version serves."""
    for name in (PIPELINE, NEW):
        rebuild_served(lab.settings.pipeline(name), definition_of_head(lab.settings, name))


def _change(lab: Lab) -> None:
    """Count each amount twice, and declare that."""
    folder = lab.settings.definitions / PIPELINE
    sql = folder / "transform.sql"
    sql.write_text(sql.read_text().replace("sum(amount)", "2 * sum(amount)"))
    (folder / "changes").mkdir()
    (folder / "changes" / "v2.yaml").write_text(yaml.safe_dump(DECLARED))


def _stream_beside(lab: Lab, *, killed: bool = False) -> None:
    """Run the version's driver to the end of the log; first one that is killed, if asked."""
    command = [*DRIVER[:3], "--pipeline", NEW, "--until-end"]
    for is_killed in [True, False] if killed else [False]:
        lab.settings.pipeline(NEW).drain.unlink(missing_ok=True)  # as the agent does: of a command that was killed
        process = start_process(command, log=lab.folder / "beside.log", env=lab.env(), cwd=lab.settings.project)
        lab.at_end(partial(end_group, process))
        if is_killed:
            require(
                lab.kill_when(process, partial(_has_begun, lab)), "the version's driver ended before its first batch"
            )
            continue
        code = lab.wait(process)
        require(code == 0, f"the version's driver ended with {code}: {(lab.folder / 'beside.log').read_text()[-2000:]}")
    require(read_load(lab.settings.pipeline(NEW)) is not None, "the version streams the whole log")


def _has_begun(lab: Lab) -> bool:
    """Say whether the version's stream has committed a batch."""
    return delta.open_table(lab.settings.pipeline(NEW).tables.ledger) is not None


def _rows(lab: Lab, name: str) -> list[tuple[Any, ...]]:
    return _sorted(delta.read(lab.settings.pipeline(name).tables.served))


def _public(lab: Lab) -> list[tuple[Any, ...]]:
    """Return what consumers read."""
    return _sorted(delta.read(lab.home.public_served))


def _sorted(table: Any) -> list[tuple[Any, ...]]:
    rows: Sequence[dict[str, Any]] = [] if table is None else table.to_pylist()
    return sorted((to_ms(row["window_start"]), row["k"], row["n"], row["total"], row["top"]) for row in rows)
