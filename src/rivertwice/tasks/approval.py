"""What a person reads before a version serves: a headline, and the figures of the comparison as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rivertwice.core import iso_of_ms, to_iso
from rivertwice.tasks.switch import AskedSwitch
from rivertwice.timeline import Entry
from rivertwice.versions import Exchange, Proof, StoredComparison

SHOWN = 10


def headline(choice: AskedSwitch) -> str:
    """Return what is asked, in a line."""
    return f"Let {choice.version} serve in place of {choice.serving}?"


def describe_comparison(stored: StoredComparison, asked: str) -> str:
    """Return the figures of a comparison that passed.

    Args:
        asked: why the switch is asked for.
    """
    counts = stored.counts
    rows = [
        ("equal", counts["equal"], "the same in both"),
        *(("as declared", rule["rows"], _rule(rule)) for rule in stored.expected),
        ("late", counts["late"], "equal, or as declared, when late records count for both"),
        ("without a cause", counts["unexplained"], ""),
    ]
    parts = [
        f"Asked for: {_text(asked)}. The change file says: {_text(stored.reason)}.",
        f"Compared: {counts['windows']} windows with rows, {_span(stored)}.",
        "\n".join(["| rows | number | why |", "|---|---:|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]),
    ]
    columns = [f"column {_code(name)} is {change}" for change in stored.schema for name in stored.schema[change]]
    if columns:
        parts.append(f"Columns: {'; '.join(columns)}.")
    parts += [
        f"**Left out: {part['windows']} windows** from {part['start']} to {part['end']}: {_text(part['why'])}. "
        "What the version lacks of them is served no more."
        for part in stored.left_out
    ]
    parts += [f"Warning: {_text(text)}." for text in stored.warnings]
    parts.append(f"Proofs: {'; '.join(_proof(each) for each in stored.proofs)}. Comparison {_code(stored.run)}.")
    return "\n\n".join(parts)


def describe_exchange(exchange: Exchange, asked: str) -> str:
    """Return what a person should know before a version serves whose rows cannot be compared.

    Args:
        asked: why the switch is asked for.
    """
    before, after = exchange.before, exchange.after
    heads = f"| served | now, {before.version} | then, {after.version} |"
    parts = [
        f"Asked for: {_text(asked)}.",
        f"**No row was compared**: {_text('; '.join(exchange.different))}. By approving you accept that the rows differ.",
        "\n".join([heads, "|---|---:|---:|", *(f"| {a} | {b} | {c} |" for a, b, c in exchange.figures)]),
    ]
    columns = [f"column {_code(name)} is gone" for name in exchange.columns_gone]
    columns += [f"column {_code(name)} is added" for name in exchange.columns_added]
    if columns:
        parts.append(f"Columns: {'; '.join(columns)}.")
    parts += [
        f"**Left out: {part.windows} windows** from {to_iso(part.start)} to {to_iso(part.end)}: {_text(part.why)}. "
        "What the version lacks of them is served no more."
        for part in exchange.left_out
    ]
    parts.append(f"Proof: {_proof(exchange.proof)}.")
    return "\n\n".join(parts)


def describe_refusal(stored: StoredComparison) -> str:
    """Return why a comparison lets nothing serve: its reasons, its counts, and the window of a row without a cause.

    Logs and alerts are kept longer than rows, so no key and no value of a row is in it.
    """
    parts = ["; ".join(stored.reasons), stored.verdict]
    if stored.examples:
        row = stored.examples[0]
        columns = f" ({', '.join(row['values'])})" if row["kind"] == "changed" else ""
        parts.append(
            f"for example, a row of the window [{row['window_start']}, {row['window_end']}) is {row['kind']}{columns}"
        )
    return "; ".join(parts)


def describe_return(choice: AskedSwitch, published: Sequence[Entry]) -> str:
    """Return what a person should know before a version that served before serves again.

    Args:
        published: publications of the version that serves now, made while it served.
    """
    parts = [
        f"Asked for: {_text(choice.reason)}.",
        f"{choice.version} served before and is not compared. Its stream kept running: it serves what it has read until now.",
    ]
    if published:
        lines = [f"- {_code(line)}" for line in publication_lines(published)]
        parts.append(
            "\n".join([f"Publications of {choice.serving} do not count for it: {len(published)}", "", *lines[:SHOWN]])
        )
        if len(lines) > SHOWN:
            parts.append(f"and {len(lines) - SHOWN} more")
    return "\n\n".join(parts)


def publication_lines(published: Sequence[Entry]) -> list[str]:
    """Return for each publication its backfill and the windows."""
    return [f"{entry.payload['backfill']}: {_ranges(entry.payload['ranges'])}" for entry in published]


def _ranges(ranges: Sequence[Sequence[int]]) -> str:
    shown = [f"[{iso_of_ms(start)}, {iso_of_ms(end)})" for start, end in ranges[:SHOWN]]
    return ", ".join(shown) + (f" and {len(ranges) - SHOWN} more" if len(ranges) > SHOWN else "")


def _span(stored: StoredComparison) -> str:
    return f"from {stored.start or 'the beginning of the log'} to {stored.end}"


def _rule(rule: Mapping[str, Any]) -> str:
    what = ", ".join(_code(name) for name in rule["columns"]) or rule["change"]
    where = f", where {_code(rule['where'])}" if rule["where"] else ""
    return f"{_text(rule['reason'])} ({what}{where})"


def _proof(proof: Proof) -> str:
    return f"{proof.version} by {_code(str(proof.run))} up to {iso_of_ms(proof.until_ms)}"


def _code(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return f"`{_text(text).replace('`', chr(39))}`"


def _text(text: str) -> str:
    """Return a text in one line that does not end a cell of a table."""
    return " ".join(text.split()).replace("|", "/").rstrip(".")
