"""Versions of a pipeline as text: a plan, a comparison. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rivertwice.commands.frame import as_table, to_plain
from rivertwice.commands.trial import examples_text, schema_lines
from rivertwice.config.versions import base_of

if TYPE_CHECKING:
    from rivertwice.timeline.version_records import Acceptance
    from rivertwice.versions.accept import Exchange
    from rivertwice.versions.comparisons import StoredComparison
    from rivertwice.versions.model import Parity, Proof
    from rivertwice.versions.plan import VersionPlan


def plan_text(plan: VersionPlan) -> str:
    """Return a plan for people. Pure."""
    from rivertwice.backfill.load_plan import explain_load
    from rivertwice.backfill.stream_load import explain_stream_load
    from rivertwice.pipeline.counterparts import ACCEPTED, Way, explain_accepted
    from rivertwice.savepoint.operations.upgrade import describe_change

    lines = [
        f"{plan.version} would run beside {plan.beside}: nothing was changed",
        f"definition bundle {plan.old_bundle[:12]} serves on; bundle {plan.new_bundle[:12]} becomes {plan.version}",
        as_table(("component", "old", "new"), [describe_change(change) for change in plan.changes])
        if plan.changes
        else "component  none differs: the same definition computes its past again",
        *plan.diff,
        *(f"column     {name} is added" for name in plan.columns_added),
        *(f"column     {name} is gone" for name in plan.columns_gone),
    ]
    if plan.stream_load is not None:
        lines.append(explain_stream_load(plan.version, plan.stream_load))
    elif plan.load is None:
        lines.append(f"stream     the whole log: {plan.streamed_whole}")
    else:
        lines += [
            explain_load(plan.version, plan.load),
            f"time       the log's event times were read in {plan.look_s} s; the backfills read these records again, and compute",
        ]
    if plan.archive_left is not None:
        lines.append(
            f"retention  Kafka may delete a record that the archive lacks in {plan.archive_left}; it is archived first"
        )
    lines += [
        f"disk       {plan.free_bytes / 1e9:.1f} GB free; tables of its own",
        f"declare    which rows are meant to differ: {plan.change_file}"
        if not plan.different
        else f"accept     {explain_accepted(Way(ACCEPTED, plan.different), plan.version)}",
        f"to {'continue' if plan.begun else 'do'} it: rivertwice upgrade {base_of(plan.version)} --new-version "
        f"{'' if plan.changes else '--recompute '}--yes",
    ]
    return "\n".join(lines)


def parity_text(parity: Parity) -> str:
    """Return a comparison for people: proofs, columns, counts, rows without a cause, the verdict. Pure."""
    lines = [f"old      {proof_text(parity.proofs[0])}", f"new      {proof_text(parity.proofs[1])}"]
    if parity.end is not None:
        begin = "the log's beginning" if parity.start is None else to_plain(parity.start)
        until = "the last record that both have read" if parity.by_record else to_plain(parity.end)
        lines.append(f"windows  from {begin} to {until}: {parity.rows.windows} with rows")
    lines += schema_lines(parity.schema)
    lines += [
        f"left out {part.windows} windows in [{to_plain(part.start)}, {to_plain(part.end)}): {part.why}"
        for part in parity.left_out
    ]
    if parity.end is not None:
        declared = sum(parity.rows.declared)
        lines.append(
            f"rows     {parity.rows.equal} equal, {declared} as declared, {parity.late} by late records alone, "
            f"{parity.unexplained} without a cause"
        )
    lines += [f"warning  {text}" for text in parity.warnings]
    lines += examples_text(parity.rows)
    lines += [f"refused  {reason}" for reason in parity.reasons]
    if parity.passed:
        lines.append(f"passed   every difference between {parity.version} and {parity.beside} has a cause")
    return "\n".join(lines)


def exchange_text(exchange: Exchange) -> str:
    """Return for people what a switch exchanges where rows cannot be compared, and what is missing for it. Pure."""
    from rivertwice.pipeline.counterparts import ACCEPTED, Way, explain_accepted

    before, after = exchange.before, exchange.after
    rows = [
        ("rows", before.rows, after.rows),
        ("windows", before.windows, after.windows),
        ("first begins", before.start or "-", after.start or "-"),
        ("last ends", before.end or "-", after.end or "-"),
    ]
    columns = {"gone": exchange.columns_gone, "added": exchange.columns_added}
    return "\n".join(
        [
            *(f"differs  {reason}" for reason in exchange.different),
            as_table(("served", f"now, {before.version}", f"then, {after.version}"), rows),
            *(f"column   {name} is {change}" for change, names in columns.items() for name in names),
            *(
                f"left out {part.windows} windows in [{to_plain(part.start)}, {to_plain(part.end)}): {part.why}"
                for part in exchange.left_out
            ),
            f"proof    {proof_text(exchange.proof)}",
            *(f"lacks    {step.text}" for step in exchange.unready),
            f"accept   {explain_accepted(Way(ACCEPTED, exchange.different), exchange.version)}",
        ]
    )


def accepted_text(name: str, accepted: Acceptance | None) -> str:
    """Return in a line by whom, when and why rows that could not be compared were accepted; empty: nobody had to. Pure."""
    if accepted is None:
        return ""
    before, after = accepted.before, accepted.after
    return (
        f"{name}: accepted by {accepted.by} at {to_plain(accepted.at)}: {accepted.reason} ({'; '.join(accepted.different)}; "
        f"{before.rows} rows of {before.version} before, {after.rows} of {after.version} after)"
    )


def comparison_text(comparison: StoredComparison | None) -> str:
    """Return the newest comparison of a version in a line. Pure."""
    if comparison is None:
        return "none"
    word = "passed" if comparison.passed else f"refused: {comparison.reasons[0]}"
    return f"{to_plain(comparison.created_at)}, {word}; {comparison.verdict}"


def proof_text(proof: Proof) -> str:
    """Return in a line up to where a version is proved. Pure."""
    from rivertwice.instants import from_ms

    if proof.run is None:
        return f"{proof.version}, not proved"
    until = (
        f" up to {to_plain(from_ms(proof.until_ms))}" if proof.until_ms else ""
    )  # `compare: false`: no row is judged
    return f"{proof.version}, proved by {proof.run}{until}"
