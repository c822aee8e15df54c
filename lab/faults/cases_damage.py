"""F24, F25, F31: the live checkpoint broken, a savepoint rotten, the definition changed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lab.faults.cases import case, require
from lab.faults.damage import KINDS, break_class, break_file
from lab.faults.lab import PIPELINE, Lab
from lab.faults.lab_project import edit_definition
from lab.faults.savepoint_runs import (
    alerts,
    begin,
    events,
    prove_listed,
    recover_under_agent,
    run_command,
    snapshots_often,
    take,
)
from rivertwice.core.errors import FingerprintError
from rivertwice.savepoint.catalogue import load_savepoint
from rivertwice.savepoint.operations.record import read_fall_back, read_restores
from rivertwice.savepoint.operations.restore import restore_savepoint
from rivertwice.savepoint.records import MANIFEST
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.sequence import head


def stream_with_savepoints(lab: Lab, batches: Sequence[int], killed_at: int) -> list[str]:
    """Stream, take a savepoint after some batches, kill the driver later, prove them; the log is not read to its end."""
    lab.produce()
    driver, watch = lab.start_driver(), lab.steps()
    taken = []
    for batch in batches:
        lab.until(lambda at=batch: watch.finished(at), 120, f"batch {batch}")  # type: ignore[misc]
        taken.append(take(lab).id)
    require(lab.kill_when(driver, lambda: watch.finished(killed_at)), f"the driver ended by itself; {lab.log_end()}")
    prove_listed(lab)
    return taken


def damage_and_recover(lab: Lab, which: str, kind: str) -> str:
    """Break one class of the live checkpoint's files; the agent must still bring the stream to the log's end."""
    before, restores = head(lab.home), events(lab).count("restore")
    done = break_class(lab.checkpoint, which, kind, lab.random)
    answer = recover_under_agent(lab)
    moved = head(lab.home) != before
    require(not answer.startswith("stopped"), f"{done}: {answer}; the last exit: {Exit.load(lab.home)}")
    require(
        events(lab).count("restore") - restores == moved, f"{done}: {events(lab)}, the head {before} {head(lab.home)}"
    )
    return f"{done}: {'fell back' if moved else 'unharmed'}"


def damages(lab: Lab, classes: Sequence[str], count: int) -> None:
    """Break several classes one after the other, in kinds the seed draws, with a chapter of the story between them."""
    stream_with_savepoints(lab, [3], 6)
    combinations = [(which, kind) for which in classes for kind in KINDS]
    outcomes = []
    for which, kind in lab.random.sample(combinations, count):
        lab.produce(lab.next_plan(records=60))
        outcomes.append(damage_and_recover(lab, which, kind))
    lab.fact("damage", "; ".join(outcomes))
    require(any("fell back" in outcome for outcome in outcomes) or count < 3, f"no damage was felt at all: {outcomes}")


@case("F24/newest-batch", "the newest files of offsets and commits gone", kills=2, quick=True)
def newest_batch_gone(lab: Lab) -> None:
    """To Spark this is a checkpoint one batch shorter: it would plan that batch again, with another range."""
    stream_with_savepoints(lab, [3], 6)
    lab.fact("damage", damage_and_recover(lab, "newest-batch", "missing"))


@case("F24/folder", "every file of the live checkpoint gone, or truncated, zeroed, bit-flipped", seeds=4, kills=2)
def folder_broken(lab: Lab) -> None:
    """To Spark an empty folder is a new query."""
    stream_with_savepoints(lab, [3], 6)
    lab.fact("damage", damage_and_recover(lab, "folder", KINDS[lab.seed % len(KINDS)]))


@case(
    "F24/logs", "metadata, offsets, commits, sources: missing, truncated, zeroed, bit-flipped; three in a row", kills=4
)
def logs_broken(lab: Lab) -> None:
    """The small files that hold the stream's position."""
    damages(lab, ("metadata", "offsets", "commits", "sources"), 3)


@case("F24/state", "changelogs, snapshots, state metadata, checksums: missing, truncated, ...; three in a row", kills=4)
def state_broken(lab: Lab) -> None:
    """The files of the state, snapshots among them."""
    snapshots_often(lab)
    damages(lab, ("changelog", "snapshot", "state-metadata", "checksum"), 3)


@case("F24/unproved", "the live checkpoint is damaged and no savepoint is proved: a named stop, and the way out works")
def damaged_without_a_proof(lab: Lab) -> None:
    """Nothing is guessed; what the page asks a person to do is done."""
    begin(lab, 5)
    taken = take(lab)
    lab.produce(lab.next_plan(records=60))
    lab.fact("damage", break_class(lab.checkpoint, "newest-batch", "missing", lab.random))
    answer = recover_under_agent(lab)
    lab.fact("answer", answer)
    require(answer.startswith("stopped") and "--unproved" in answer, f"it must stop and name the way out: {answer}")
    require([alert["kind"] for alert in alerts(lab)] == ["checkpoint"], f"alerts: {alerts(lab)}")
    require(head(lab.home) == "t1", "the head moved to a savepoint that nobody proved")
    run_command(lab, "savepoint", "restore", PIPELINE, taken.id, "--unproved", "--yes")
    lab.run_to_end()


@case("F25", "the newest proved savepoint rotten when the live checkpoint is damaged", seeds=4, kills=2)
def rotten_savepoint(lab: Lab) -> None:
    """It is refused by its hashes, by name, and the next older proved one takes the place."""
    older, newer = stream_with_savepoints(lab, [2, 5], 8)
    kind = KINDS[lab.seed % len(KINDS)]
    folder = lab.home.savepoints / newer
    files = sorted(path for path in (folder / "checkpoint").rglob("*") if path.is_file() and path.stat().st_size)
    victim = folder / MANIFEST if lab.random.random() < 0.25 else lab.random.choice(files)
    lab.fact("rot", f"{victim.relative_to(folder)}: {break_file(victim, kind, lab.random)}")
    lab.fact("damage", break_class(lab.checkpoint, "newest-batch", "missing", lab.random))
    answer = recover_under_agent(lab)
    report = read_fall_back(lab.home)
    require(answer == "fell back" and report is not None, f"{answer}; {lab.log_end()}")
    lab.fact("used", None if report is None else report.savepoint)
    require(report is not None and report.savepoint == older, f"used {report}")
    has_manifest = (
        folder / MANIFEST
    ).exists()  # without a manifest a savepoint does not exist, and nothing is to be named
    require(report is not None and (newer in report.passed_over) == has_manifest, "the rotten one is not named")


# ---- changed definitions


def _edit_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    require(old in text, f"{path.name} holds no {old!r}")
    path.write_text(text.replace(old, new))


def _change(folder: Path, what: str) -> None:
    definition, transform = folder / "pipeline.yaml", folder / "transform.sql"
    if what == "state":  # another aggregate under the same name: Spark itself would accept it
        _edit_text(transform, "max(CASE", "min(CASE")
    elif what == "keys":
        _edit_text(transform, "  k,\n", "  upper(k) AS k,\n")
    elif what == "semantics":
        _edit_text(folder / "rows.sql", "amount >= 0", "amount >= 1")
    elif what == "watermark":
        _edit_text(definition, "watermark: 20 seconds", "watermark: 40 seconds")
    elif what == "decode":
        _edit_text(definition, "max_record_bytes: 4096", "max_record_bytes: 2048")


def changed_definition(lab: Lab, what: str) -> None:
    """A changed definition is refused by driver, proof and restore, with its reason; put back, the stream continues."""
    begin(lab, 5)
    taken = take(lab)
    folder = lab.settings.definitions / PIPELINE
    aside = lab.folder / "definition-before"
    shutil.copytree(folder, aside)
    _change(folder, what)
    code = lab.wait(lab.start_driver(until_end=True), 120)
    record = Exit.load(lab.home)
    require(code == 1 and record is not None, f"a driver with another definition ended with {code}")
    require(record is not None and record.failure == "fingerprint", f"it was refused as {record}")
    lab.fact("refused", "" if record is None else record.message.partition(";")[0])
    refusal = ""
    try:
        restore_savepoint(lab.settings, PIPELINE, taken.id, unproved=True)
    except FingerprintError as error:
        refusal = str(error)
    require("another definition" in refusal, "a restore under another definition was not refused")
    require(head(lab.home) == "t1" and not read_restores(lab.home), "a refused restore left something behind")
    shutil.rmtree(folder)
    shutil.copytree(aside, folder)
    lab.run_to_end()
    prove_listed(lab)


for _what in ("state", "keys", "semantics", "watermark", "decode"):
    case(
        f"F31/{_what}",
        f"the definition changed in {_what}: refused with its reason, never started empty",
        seeds=1 if _what in ("keys", "decode") else 3,
        kills=1,
    )(partial(changed_definition, what=_what))


@case("F31/partitions", "shuffle partitions changed: the checkpoint's own number holds, the state is whole", kills=1)
def changed_partitions(lab: Lab) -> None:
    """Spark pins the number in `offsets/N`; a stream that restarted empty would lose the open windows."""
    begin(lab, 5)
    taken = take(lab)

    def more(document: dict[str, object]) -> None:
        stream = document["stream"]
        assert isinstance(stream, dict)
        stream["shuffle_partitions"] = lab.random.choice([1, 3, 5])

    edit_definition(lab.settings, more)
    lab.run_to_end()
    prove_listed(lab)
    restored = restore_and_go_on(lab)
    require(load_savepoint(lab.home, taken.id).manifest.pins["spark.sql.shuffle.partitions"] == "2", "the pin was lost")
    lab.fact("restored", restored)


def restore_and_go_on(lab: Lab) -> str:
    """Restore the newest proved savepoint and stream a further chapter on the child."""
    run_command(lab, "savepoint", "restore", PIPELINE, "--yes")
    lab.produce(lab.next_plan(records=100))
    lab.run_to_end()
    return str(head(lab.home))
