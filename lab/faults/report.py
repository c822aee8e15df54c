"""The report of a campaign as a page of Markdown: what each fault did to rivertwice, and to the control job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.faults.cases import Case
from lab.faults.outcomes import CONTROL, OURS, Outcome, wall_seconds

_HEAD = """# Fault report

Written by `rivertwice faults report` from the outcomes in [fault-outcomes.jsonl](fault-outcomes.jsonl), a line for each run;
[Break it on purpose](faults.md) shows how to repeat a line of it, and `make test-faults` runs all of it on the code that is there.

## What was found

"""
FOUND = Path(__file__).with_name("found.md")
"""What the lab, the oracles, the protocol model and trials found. Each fix adds its row."""
_MEANING = """
## What the columns mean

*lost*: (record, window) pairs, dead letters or acknowledged records that are nowhere, or missing from a row that is there. *duplicated*: result rows or dead
letters that are there more than once. *wrong*: rows with other values, or from another batch, than the log and the
recorded batches give. *unexplained*: rows, dead letters or ledger entries without a cause in the log. All are counted by
the oracle, a program without Spark and without rivertwice's code, from the raw log and the tables' files.

**control** is the script people write (`lab/control`): Spark Structured Streaming, foreachBatch, append
to a Delta table, a checkpoint, started again when it fails; when it fails three times in a row its owners remove the
checkpoint. It keeps no ledger, so what came late to it cannot be distinguished from what it lost. Its events are therefore the
seed's own without late, poisonous, future and excluded records, and its truth is a batch over all of them; every
window its log closes must be in its table once. The same oracle counts. F1 to F6 strike it exactly as they strike rivertwice;
F13, F14, F18 and F24 do to it what the line describes as its owners would: a scheduler that starts a second job,
`failOnDataLoss=false`, a checkpoint that is removed when three starts have failed.
"""


def render_report(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> str:
    """Return the page for the outcomes that exist; of a (case, seed, job) that was repeated on the same code the last one counts."""
    last = {(each.case, each.seed, each.job, each.product): each for each in outcomes}.values()
    ours = [each for each in last if each.job == OURS]
    control = [each for each in last if each.job == CONTROL]
    titles = {each.name: each.title for each in cases}
    names = sorted({each.case for each in last}, key=_order)
    lines = [
        _HEAD + FOUND.read_text().strip(),
        "",
        "## What ran",
        "",
        summary(ours, control),
        "",
        *_by_code(list(last)),
    ]
    lines += [
        "",
        "## By case",
        "",
        "| case | what is done | runs | kills | lost | duplicated | wrong | unexplained | s/run | control: lost | control: duplicated | control: wrong |",
    ]
    lines.append("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    lines.extend(_row(name, titles.get(name, ""), ours, control) for name in names)
    failed = [each for each in ours if not each.ok]
    if failed:
        lines += ["", "## Not exact", ""]
        lines += [
            f"- **{each.case}**, seed {each.seed}, on {_code(each)}: {(each.detail.splitlines() or ['no reason'])[0][:600]}"
            for each in failed
        ]
    return "\n".join(lines) + "\n" + _MEANING


def summary(ours: Sequence[Outcome], control: Sequence[Outcome]) -> str:
    """Return the campaign in a few sentences."""
    records = sum(int(each.figures.get("records", 0)) for each in ours)
    sums = [sum(getattr(each, name) for each in ours) for name in ("lost", "duplicated", "wrong", "unexplained")]
    text = (
        f"**{len(ours)} runs of {len({each.case for each in ours})} cases, {sum(each.kills for each in ours)} processes "
        f"killed with SIGKILL, {records} records: {sums[0]} lost, {sums[1]} duplicated, {sums[2]} wrong, {sums[3]} "
        f"unexplained; {sum(not each.ok for each in ours)} runs failed.** They took "
        f"{sum(each.seconds for each in ours) / 60:.0f} minutes"
    )
    wall = f"{wall_seconds([*ours, *control]) / 60:.0f} minutes of wall time."
    if not control:
        return f"{text}; {wall} The control job did not run."
    return (
        f"{text}, the control job's {len(control)} runs {sum(each.seconds for each in control) / 60:.0f} minutes; {wall} "
        f"It lost {sum(each.lost for each in control)} pairs and duplicated {sum(each.duplicated for each in control)} "
        f"rows; {sum(not each.ok for each in control)} of its runs were not exact."
    )


def _by_code(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table of the codes that ran, in the order of their first runs."""
    lines = [
        "| release | commit | code | from | runs | cases | kills | not exact |",
        "|---|---|---|---|---:|---:|---:|---:|",
    ]
    for product in dict.fromkeys(each.product for each in sorted(outcomes, key=lambda each: each.began)):
        runs = [each for each in outcomes if each.product == product and each.job == OURS]
        some = next(each for each in outcomes if each.product == product)
        lines.append(
            f"| {some.release or '-'} | {_commit(some)} | `{product or '-'}` | {some.began[:10] or '-'} | {len(runs)} | "
            f"{len({each.case for each in runs})} | {sum(each.kills for each in runs)} | {sum(not each.ok for each in runs)} |"
        )
    return lines


def _commit(outcome: Outcome) -> str:
    return f"`{outcome.commit}`" if outcome.commit else "-"


def _code(outcome: Outcome) -> str:
    return _commit(outcome) if outcome.commit else f"the code `{outcome.product}`"


def _order(name: str) -> tuple[int, str]:
    return int(name.partition("/")[0][1:]), name


def _row(name: str, title: str, ours: Sequence[Outcome], control: Sequence[Outcome]) -> str:
    own_outcomes = [each for each in ours if each.case == name]
    control_outcomes = [each for each in control if each.case == name]
    cells: list[object] = [name, title]
    if own_outcomes:
        cells += [len(own_outcomes), sum(each.kills for each in own_outcomes)]
        cells += [_mark(own_outcomes, field) for field in ("lost", "duplicated", "wrong", "unexplained")]
        cells.append(round(sum(each.seconds for each in own_outcomes) / len(own_outcomes)))
    else:
        cells += ["-"] * 7
    cells += [
        sum(getattr(each, field) for each in control_outcomes) if control_outcomes else ""
        for field in ("lost", "duplicated", "wrong")
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _mark(outcomes: Sequence[Outcome], field: str) -> str:
    count = sum(getattr(each, field) for each in outcomes)
    failed = sum(not each.ok for each in outcomes)
    return str(count) if not failed or field != "lost" else f"{count} ({failed} failed)"
