"""F24/offsets-flipped: one byte of `offsets/N` is changed: in its structure, an offset or the watermark."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

from lab.faults.cases import case, require
from lab.faults.lab import Lab
from lab.faults.savepoint_runs import events, prove_listed, recover_under_agent, take
from lab.faults.steps import numbers
from rivertwice.savepoint.operations.record import read_fall_back
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import path_ledger
from rivertwice.timeline.sequence import head

POSITIONS = ("offset", "watermark", "structure")
READ_AT_A_START = 4
"""A start compares so many of the newest files; it does not read older ones."""


def bytes_of(data: bytes, position: str) -> list[int]:
    """Return where in an `offsets/N` the bytes of a class are: digits of an offset or of the watermark, or JSON's signs."""
    lines = [line.span() for line in re.finditer(rb"[^\n]+", data)]
    if position == "offset":
        start, end = lines[2]
        matches = re.finditer(rb'"\d+":(\d+)', data[start:end])
        return [start + at for matched in matches for at in range(*matched.span(1))]
    start, end = lines[1]
    if position == "watermark":
        matches = re.finditer(rb'"batchWatermarkMs":(\d+)', data[start:end])
        return [start + at for matched in matches for at in range(*matched.span(1))]
    return [at for begin, end in lines[1:3] for at in range(begin, end) if data[at] in b'{}":,']


def flip(path: Path, position: str, dice: random.Random) -> str:
    """Change one byte of a class by one bit and return what was done; a digit stays a digit."""
    data = bytearray(path.read_bytes())
    at = dice.choice(bytes_of(bytes(data), position))
    before = data[at]
    data[at] ^= 1 << (dice.randrange(8) if position == "structure" else 0)
    path.write_bytes(bytes(data))
    return f"offsets/{path.name}, {position}: byte {at} {bytes([before])!r} -> {bytes([data[at]])!r}"


def flip_and_recover(lab: Lab, position: str, which: str, *, keep_checksum: bool) -> str:
    """Flip a byte; the agent must find it by name and fall back, unless it is in a file that nothing reads.

    `which`: `newest`, planned and perhaps not committed; `committed`; or `older`. Without its checksum, as after a copy that
    leaves hidden files out, only the ledger shows what a committed batch read.
    """
    folder = lab.checkpoint / "offsets"
    newest, committed = max(numbers(folder)), path_ledger(lab.home)[-1].batch
    unread = [number for number in numbers(folder) if number <= newest - READ_AT_A_START]
    number = {"newest": newest, "committed": committed}.get(which)
    if number is None:
        require(bool(unread), f"the checkpoint keeps no older batch: {numbers(folder)}")
        number = lab.random.choice(unread)
    before, restores, exits_before = head(lab.home), events(lab).count("restore"), len(_exits(lab))
    done = flip(folder / str(number), position, lab.random)
    if not keep_checksum:
        (folder / f".{number}.crc").unlink(missing_ok=True)
    done += "" if keep_checksum else ", without its checksum"
    answer = recover_under_agent(lab)
    moved = head(lab.home) != before
    require(not answer.startswith("stopped"), f"{done}: {answer}; the last exit: {Exit.load(lab.home)}")
    require(events(lab).count("restore") - restores == moved, f"{done}: {events(lab)}, the head {before}")
    if which != "older" and (keep_checksum or number <= committed):
        require(moved, f"{done}: nobody noticed")
        named = [event["message"] for event in _exits(lab)[exits_before:] if f"offsets/{number}" in event["message"]]
        require(
            bool(named),
            f"{done}: no exit names it: {_exits(lab)[exits_before:]}; fall-back: {read_fall_back(lab.home)}",
        )
    return f"{done}: {'fell back' if moved else 'unharmed'}"


def _exits(lab: Lab) -> list[dict[str, Any]]:
    path = lab.settings.home / "agent" / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["kind"] == "exit"]


@case(
    "F24/offsets-flipped",
    "one byte of offsets/N flipped, newest, committed or older: an offset's digit, the watermark's, the structure's",
    seeds=6,
    kills=4,
)
def flipped_offsets(lab: Lab) -> None:
    """The dangerous one is a digit of an offset: Spark would read another range under the same number."""
    lab.produce()
    driver, steps = lab.start_driver(), lab.steps()
    lab.until(lambda: steps.finished(3), 120, "batch 3")
    take(lab)
    planned_only = lab.seed % 2 == 1
    batch = lab.random.randrange(7, 9)
    struck = lab.kill_when(driver, lambda: steps.planned(batch) if planned_only else steps.finished(batch))
    require(struck, f"the driver ended by itself; {lab.log_end()}")
    prove_listed(lab)
    done = []
    for number, which in enumerate(("newest", "committed", "older")):
        if number:
            lab.produce(lab.next_plan(records=60))
        position = POSITIONS[(lab.seed + number) % len(POSITIONS)]
        done.append(flip_and_recover(lab, position, which, keep_checksum=lab.random.random() < 0.5))
    lab.fact("damage", "; ".join(done))
