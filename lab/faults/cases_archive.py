"""F40/archive: a file of the archive rotten, gone or cut short, while Kafka has its records, and when it no longer has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lab.faults.cases import case, require
from lab.faults.cases_backfill import closed_ms, plan_range, published, require_truth
from lab.faults.cases_tables import repair
from lab.faults.damage import break_file
from lab.faults.events import BEGIN_MS
from lab.faults.lab import PIPELINE, Lab
from lab.faults.savepoint_runs import command_log, run_command, start_command
from rivertwice.backfill.model import BackfillPlan
from rivertwice.core.instants import from_ms, to_iso
from rivertwice.log import kafka
from rivertwice.log.archive import extend_archive
from rivertwice.storage.table import Table
from rivertwice.timeline.served import export_sha256, rebuild_served

KINDS = ("flipped", "truncated", "missing", "value")
"""A bit of the file flipped; cut in half; gone; or one value of it changed, in a file that every reader of Parquet accepts."""


def break_archive(lab: Lab, kind: str) -> tuple[Path, str]:
    """Break one data file of the archive; return it and what was done."""
    place = Path(lab.settings.archive(lab.topic))
    table = Table(place).open()
    require(table is not None, "there is no archive")
    names: list[Any] = [] if table is None else table.actions()["path"].to_pylist()
    path = place / lab.random.choice(sorted(names))
    if kind != "value":
        return path, break_file(path, kind, lab.random)
    data = bytearray(path.read_bytes())
    at = _digit_in_a_value(bytes(data))
    data[at] ^= 1
    path.write_bytes(bytes(data))
    return path, f"{path.name}: a digit of an amount at byte {at} is another one"


def _digit_in_a_value(data: bytes) -> int:
    """Return where a digit of an amount is stored uncompressed: small strings are not compressed everywhere."""
    at = data.find(b'"amount":')
    while at >= 0:
        digit = at + len(b'"amount":')
        if data[digit : digit + 1].isdigit():
            return digit
        at = data.find(b'"amount":', digit)
    return len(data) // 2


def require_refused(lab: Lab, plan: BackfillPlan, path: Path) -> None:
    """Require that a backfill over the file ends with an error that names it, computes nothing and publishes nothing."""
    size = (lab.folder / "commands.log").stat().st_size if (lab.folder / "commands.log").exists() else 0
    code = lab.wait(start_command(lab, "backfill", "run", PIPELINE, "--yes", "--id", plan.id))
    output = command_log(lab, 1_000_000)[-((lab.folder / "commands.log").stat().st_size - size) :]
    require(code not in (0, 3), f"a backfill over a rotten archive ended with {code}: {output[-2000:]}")
    require(
        path.name in output and "rivertwice admin repair" in output,
        f"neither file nor remedy is named: {output[-3000:]}",
    )
    require(not published(lab, plan.id), "a backfill over a rotten archive is published")


def archived(lab: Lab) -> list[str]:
    """Return the archive's records, each as a text."""
    rows = Table(lab.settings.archive(lab.topic)).read()
    return [] if rows is None else sorted(map(repr, rows.to_pylist()))


def prepared(lab: Lab) -> BackfillPlan:
    """Stream a story, archive it in several files, and plan a backfill of all of it."""
    lab.produce(lab.next_plan(records=400, late_share=0.3))
    lab.run_to_end()
    extend_archive(None, lab.settings, lab.topic, chunk_records=lab.random.choice([100, 150]))
    return plan_range(lab, BEGIN_MS, closed_ms(lab), chunk_records=lab.random.choice([100, 1_000_000]))


@case(
    "F40/archive",
    "a file of the archive flipped, cut short, gone, or a value in it changed, while Kafka has its records: named, and written again",
    seeds=4,
)
def rotten_archive(lab: Lab) -> None:
    """No number is computed from it; the repair reads its records from Kafka again, and the backfill is the oracle's."""
    plan = prepared(lab)
    before = archived(lab)
    path, damage = break_archive(lab, KINDS[lab.seed % len(KINDS)])
    lab.fact("damage", damage)
    require_refused(lab, plan, path)
    repair(lab)
    require(archived(lab) == before, "the archive holds other records after the repair than before the damage")
    kafka.delete_records(
        lab.settings, lab.topic, kafka.end_offsets(lab.settings, lab.topic)
    )  # now only the archive has them
    run_command(lab, "backfill", "run", PIPELINE, "--yes", "--id", plan.id)
    require_truth(lab, plan)
    rebuild_served(lab.home, lab.definition)


@case(
    "F40/archive-alone",
    "the same, and Kafka no longer has the records: named, never computed from, and right again once the file is put back",
    seeds=4,
    proves=("howto-log.md#what-it-promises",),
)
def rotten_archive_alone(lab: Lab) -> None:
    """Nothing can give the records back but a copy of the file; until then every other number stays right."""
    plan = prepared(lab)
    kafka.delete_records(lab.settings, lab.topic, kafka.end_offsets(lab.settings, lab.topic))
    rebuild_served(lab.home, lab.definition)
    served = export_sha256(lab.home)
    backup = lab.folder / "backup"
    shutil.copytree(Path(lab.settings.archive(lab.topic)), backup)
    path, damage = break_archive(lab, KINDS[lab.seed % len(KINDS)])
    lab.fact("damage", damage)
    require_refused(lab, plan, path)
    code = lab.wait(start_command(lab, "admin", "repair", PIPELINE, "--yes"))
    output = command_log(lab)
    require(
        code == 3 and "cannot be repaired" in output and path.name in output,
        f"a repair that cannot ended {code}: {output}",
    )
    rebuild_served(lab.home, lab.definition, force=True)
    require(export_sha256(lab.home) == served, "what is served changed by a rotten archive")
    lab.produce(lab.next_plan(records=60))
    lab.run_to_end()  # the stream needs none of it
    shutil.copyfile(backup / path.relative_to(Path(lab.settings.archive(lab.topic))), path)
    run_command(lab, "admin", "repair", PIPELINE)
    end = to_iso(from_ms(plan.ranges[-1][1]))
    run_command(lab, "backfill", "run", PIPELINE, "--yes", "--from", to_iso(from_ms(plan.ranges[0][0])), "--to", end)
    run_command(lab, "backfill", "run", PIPELINE, "--id", plan.id, "--no-publish")
    require_truth(lab, plan)
    rebuild_served(lab.home, lab.definition)
