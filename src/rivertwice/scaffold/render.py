"""The texts of a guessed definition: `pipeline.yaml` and `transform.sql`. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rivertwice.pipeline.durations import format_duration
from rivertwice.pipeline.source_model import MOST_EXACT, decimal_digits
from rivertwice.scaffold.guess import Finding, Guess

GAP = "TODO"
_WIDTH = 110
_WORDS = frozenset({
    "all", "and", "any", "as", "between", "both", "by", "case", "cast", "check", "collate", "column", "create",
    "cross", "current", "date", "day", "delete", "desc", "describe", "distinct", "else", "end", "escape", "except",
    "exists", "extract", "false", "fetch", "filter", "for", "foreign", "from", "full", "function", "grant", "group",
    "grouping", "having", "hour", "in", "index", "inner", "insert", "intersect", "interval", "into", "is", "join",
    "leading", "left", "like", "limit", "minute", "month", "natural", "not", "null", "of", "offset", "on", "only",
    "or", "order", "outer", "over", "overlaps", "partition", "position", "primary", "range", "references", "right",
    "row", "rows", "second", "select", "session", "some", "start", "table", "then", "time", "timestamp", "to",
    "trailing", "true", "type", "union", "unique", "unknown", "update", "user", "using", "values", "view", "when",
    "where", "window", "with", "year",
})  # fmt: skip


def quoted(name: str) -> str:
    """Return a column as SQL writes it: in backticks if SQL has a word like it."""
    return f"`{name}`" if name in _WORDS else name


def _comment(text: str, indent: str = "") -> list[str]:
    """Return a text as comment lines of YAML. A name in it may hold anything: what YAML would not read becomes a question mark."""
    lines, line = [], ""
    for word in "".join(each if each.isprintable() or each.isspace() else "?" for each in text).split():
        if line and len(indent) + 2 + len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [f"{indent}# {each}" for each in (*lines, line)]


def _reason(guess: Guess, what: str) -> str:
    found = next((each for each in guess.findings if each.what == what), None)
    return "" if found is None else f"{found.sure}: {found.why}"


def render_yaml(guess: Guess) -> str:
    """Return the text of `pipeline.yaml`, with the reason of each guess as a comment."""
    sample, view = guess.sample, guess.view
    lines = [
        *_comment(
            f"Guessed by `rivertwice init` from {len(sample.records)} records of {sample.origin}. Check each part against what you know: "
            "a guess sees a sample only. docs/definitions.md of rivertwice explains every field."
        ),
        f"name: {guess.name}",
        f"description: {json.dumps(_description(guess), ensure_ascii=False)}",
        "",
        "sources:",
        f"  {view}: # what transform.sql calls the topic",
        f"    topic: {json.dumps(sample.topic)}",
        f"    partitions: {sample.partitions}",
        *_format_lines(guess),
        "    schema:",
        *_schema_lines(guess),
        *_epoch_lines(guess),
        *_path_lines(guess),
        *_decimal_lines(guess),
        *_comment(_reason(guess, "required"), "    "),
        f"    required: [{', '.join(guess.required)}]",
        *_comment(_reason(guess, "event time"), "    "),
        _event_line(guess),
        *_comment(_reason(guess, "watermark"), "    "),
        f"    watermark: {format_duration(guess.watermark)}",
        *_comment(_reason(guess, "max_future"), "    "),
        f"    max_future: {format_duration(guess.max_future)}",
        "",
        *_comment(_reason(guess, "window")),
        f"window: {{size: {format_duration(guess.window)}}}",
        "",
        *_comment(_reason(guess, "keys")),
        f"keys: [{', '.join(guess.keys)}]",
        f"count_column: {guess.count_column}",
        "columns:",
        f"  {guess.count_column}: {{compare: exact}}",
        *(f"  {each.column}: {{compare: exact}}" for each in guess.measures),
        "",
        "emit: final # a window's rows come once, when the watermark has passed its end",
        "late: {policy: drop} # or side_output, or correct: docs/howto-late.md",
    ]
    return "\n".join(lines) + "\n"


def _description(guess: Guess) -> str:
    by = f" per {', '.join(guess.keys)} and" if guess.keys else " per"
    figures = "".join(f", {each.text}" for each in guess.measures)
    return f"Records{figures}{by} {format_duration(guess.window)} of {guess.sample.topic}."


def _format_lines(guess: Guess) -> list[str]:
    encoding = guess.sample.encoding
    lines = [] if encoding.format == "json" else [f"    format: {encoding.format} # by the schemas pinned in schemas/"]
    lines += ["    framing: confluent # a schema id stands before each value"] if encoding.framed else []
    return lines + ([f"    subject: {json.dumps(encoding.subject)}"] if encoding.subject else [])


def _schema_lines(guess: Guess) -> list[str]:
    lines = []
    for each in guess.fields:
        if each.kind is None:
            lines += _comment(f"not taken: {each.name}: {each.why}", "      ")
            continue
        absent = "" if each.complete else f", absent in {each.total - each.seen} of {each.total}"
        example = each.example if each.example.isprintable() else "..."
        key = (
            f'"{each.name}"'
            if each.name in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
            else each.name
        )
        lines.append(f"      {key}: {each.kind} # for instance {example}{absent}")
    return lines or ["      {}"]


def _epoch_lines(guess: Guess) -> list[str]:
    units = {each.name: each.unit for each in guess.declared if each.unit is not None}
    if not units:
        return []
    inner = ", ".join(f"{name}: {unit}" for name, unit in units.items())
    return [f"    epochs: {{{inner}}} # numbers since 1970-01-01T00:00Z"]


def _path_lines(guess: Guess) -> list[str]:
    paths = {each.name: guess.sample.paths[each.name] for each in guess.declared if each.name in guess.sample.paths}
    if not paths:
        return []
    return [
        "    paths: # where the records have these fields",
        *(f"      {name}: {path}" for name, path in paths.items()),
    ]


def _decimal_lines(guess: Guess) -> list[str]:
    decimals = [each.kind for each in guess.declared if each.kind is not None and each.kind.startswith("decimal")]
    has_room = all(decimal_digits(kind)[0] <= MOST_EXACT for kind in decimals)
    if guess.sample.encoding.format != "json" or not decimals or not has_room:
        return []
    return [
        "    decimals: exact # a number with more digits after the point than its type is a dead letter, not rounded"
    ]


def _event_line(guess: Guess) -> str:
    if guess.event_time is None:
        return f"    event_time: # {GAP}: name the timestamp field of the schema here, and in window() of transform.sql"
    return f"    event_time: {guess.event_time.name}"


def render_sql(guess: Guess) -> str:
    """Return the text of `transform.sql`."""
    event = quoted(guess.event_time.name) if guess.event_time is not None else "event_time"
    columns = [
        "window.start AS window_start",
        "window.end AS window_end",
        *(quoted(key) for key in guess.keys),
        f"count(*) AS {guess.count_column}",
        *(f"{each.expression(quoted(each.field))} AS {each.column}" for each in guess.measures),
    ]
    keys = "".join(f", {quoted(key)}" for key in guess.keys)
    has_sums = any(each.function in ("sum", "mean") for each in guess.measures)
    lines = [
        "-- One row per window and key. The stream runs this text, and so does every recompute.",
        *(
            []
            if guess.event_time is not None
            else [f"-- {GAP}: write the field of event_time into window(), as pipeline.yaml names it."]
        ),
        *(["-- Sums are decimals: the same digits whatever the order of the rows."] if has_sums else []),
        "SELECT",
        ",\n".join(f"  {column}" for column in columns),
        f"FROM {guess.view}",
        f"GROUP BY window({event}, '{format_duration(guess.window)}'){keys}",
    ]
    return "\n".join(lines) + "\n"


def finding_rows(findings: Sequence[Finding]) -> list[tuple[str, str, str, str, str]]:
    """Return the rows of the table that shows the guess."""
    return [(each.what, each.value or "?", each.sure, each.why, each.where) for each in findings]
