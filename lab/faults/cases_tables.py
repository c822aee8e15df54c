"""F40, F41: commits of tables torn as by a power loss, data files changed or gone; agent and driver killed together."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lab.faults.cases import case, require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import (
    begin,
    command_log,
    kill_owned,
    recover_under_agent,
    run_command,
    start_command,
)
from rivertwice.agent.launch import agent_status
from rivertwice.core.instants import utc_now
from rivertwice.storage.table_log import added_files, entry_path, parse_entry
from rivertwice.stream.lease import lease_owner
from rivertwice.timeline.intent import Exit, write_intent

WHERE = ("newest", "middle")
HOW = ("zero", "half", "removed")
TABLES = ("changelog", "dead_letters", "ledger", "sequence")


def commits_of(table: Path) -> list[int]:
    """Return the versions of a table's commits that added a file, oldest first."""
    versions = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = parse_entry(path.read_bytes())
        if actions is not None and any("add" in action for action in actions):
            versions.append(int(path.stem))
    return versions


def tear(table: Path, where: str, how: str, *, with_files: bool = False) -> str:
    """Damage one commit of a table and return what was done; with its data files, if asked."""
    versions = commits_of(table)
    version = versions[-1] if where == "newest" else versions[len(versions) // 2]
    entry = entry_path(table, version)
    data = entry.read_bytes()
    if with_files:
        for path in added_files(table, parse_entry(data) or []):
            path.unlink()
    if how == "removed":
        entry.unlink()
    else:
        entry.write_bytes(b"" if how == "zero" else data[: len(data) // 2])
    return f"{table.name}, {where} commit {version}: {how}{', its data files removed' if with_files else ''}"


def require_stopped(lab: Lab, *, may_pass: bool = False) -> str:
    """Start a driver, which must end with class `ledger`, and return its message; with `may_pass` it may reach the end: ""."""
    code = lab.wait(lab.start_driver(until_end=True), 180)
    record = Exit.load(lab.home)
    if may_pass and code == 0:
        return ""
    require(
        code != 0 and record is not None, f"a driver started over damaged tables and ended with {code}; {lab.log_end()}"
    )
    failure = "" if record is None else record.failure
    require(failure == "ledger", f"it ended as {record}")
    require(record is not None and "rivertwice admin repair" in record.message, f"no way out is named: {record}")
    return "" if record is None else record.message[:160]


def stop_and_repair(lab: Lab, *, may_pass: bool = False) -> str:
    """Require that a driver stops; then `admin repair` must find the damage, and with `--yes` it must end it.

    With `may_pass` it may also reach the end: a log without its newest entry is whole, and a batch that was killed between
    its commit and the ledger's copy is replayed.
    """
    stopped = require_stopped(lab, may_pass=may_pass)
    if not stopped:
        return "nothing: the batch counted for nobody yet, and was replayed"
    repair(lab)
    return stopped


def repair(lab: Lab) -> None:
    """Show the damage (exit 3), repair it (exit 0), show again (exit 0)."""
    code = lab.wait(start_command(lab, "admin", "repair", PIPELINE), 120)
    require(code == 3, f"a look at damaged tables ended with {code}: {command_log(lab)}")
    run_command(lab, "admin", "repair", PIPELINE, "--yes")
    run_command(lab, "admin", "repair", PIPELINE)


def torn(lab: Lab, table: str) -> None:
    """A named stop and a repair, or (a ledger's copy, which the changelog's commits still hold) nothing but a copy."""
    begin(lab, 6)
    place = getattr(lab.home.tables, table)
    where, how = WHERE[lab.seed % 2], HOW[lab.seed // 2 % 3]
    if table == "sequence":
        where = "newest"  # its only commit: the first head move
    lab.fact("damage", tear(place, where, how))
    if table == "ledger" and (where, how) == ("newest", "removed"):
        lab.run_to_end()  # a shorter log is whole, and the start heals the copy
        return
    if table == "sequence" and how == "removed":
        lab.run_to_end()  # as before the very first start, whose timeline is taken again
        return
    lab.fact("stopped", stop_and_repair(lab, may_pass=(where, how) == ("newest", "removed")))
    lab.run_to_end()


for _table in TABLES:
    case(
        f"F40/{_table.replace('_', '-')}",
        f"a commit of {_table} torn (newest, middle; zero, half, removed): a named stop and a repair, or nothing lost",
        seeds=2 if _table == "sequence" else 6,
        kills=1,
        proves=("howto-correct.md#repair-tables-after-a-power-loss-or-a-damaged-disk",)
        if _table == "changelog"
        else (),
    )(partial(torn, table=_table))


@case("F40/files", "a commit of changelog or dead letters torn, its data files gone: computed again", seeds=2, kills=1)
def torn_with_files(lab: Lab) -> None:
    """Nothing of the rows is left but their recorded ranges."""
    begin(lab, 6)
    name = ("changelog", "dead_letters")[lab.seed % 2]
    lab.fact("damage", tear(getattr(lab.home.tables, name), "middle", "zero", with_files=True))
    lab.fact("stopped", stop_and_repair(lab))
    lab.run_to_end()


@case(
    "F40/flipped", "a value in a data file of the changelog changed, statistics and all: found by its digest", kills=1
)
def flipped_value(lab: Lab) -> None:
    """A start may pass (number and size can be the same); a repair compares digests, and computes the batch again."""
    begin(lab, 6)
    changelog = Path(lab.home.tables.changelog)
    files = [path for path in sorted(changelog.rglob("*.parquet")) if pq.read_metadata(path).num_rows]
    path = lab.random.choice(files)
    rows = pq.ParquetFile(path).read()
    at = next(
        number
        for number, field in enumerate(rows.schema)
        if str(field.type) == "int64" and not field.name.startswith("_")
    )
    values = rows.column(at).to_pylist()
    values[0] = (values[0] or 0) + 1
    size = path.stat().st_size
    pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type)), path)
    lab.fact(
        "damage", f"{rows.schema.field(at).name} of {path.name} +1; {size} bytes before, {path.stat().st_size} after"
    )
    repair(lab)
    lab.run_to_end()


@case(
    "F41",
    "agent and driver killed together, at any step of a batch; the next agent brings the stream to the end",
    kills=2,
)
def killed_together(lab: Lab) -> None:
    """As when a host goes down: no process is left that remembers."""
    lab.produce()
    write_intent(lab.home, "running", by="lab", now=utc_now())
    status = lab.start_agent()
    batch = lab.random.randrange(2, 7)
    lab.until(lambda: lab.planned(batch), 180, f"batch {batch}")
    owner = lease_owner(lab.home)
    pid = json.loads((lab.settings.home / "agent" / "heartbeat.json").read_text())["pid"]
    require(status is not None and owner is not None, "no driver ran under the agent")
    os.kill(pid, signal.SIGKILL)
    if owner is not None:
        os.killpg(owner.pid, signal.SIGKILL)
    lab.kills += 2
    # Both: an agent that is still ending would be taken for one that lives, and no other would start.
    lab.until(lambda: lease_owner(lab.home) is None and agent_status(lab.settings) is None, 60, "the end of both")
    require(recover_under_agent(lab) == "unharmed", "two kills together are no damage")
    kill_owned(lab)
    lab.run_to_end()
