"""Definitions `p` over one source `events`, one for each kind of windows, of which a test changes a part."""

from __future__ import annotations

from rivertwice.definition.definition import Definition, parse_files


def events_yaml(schema: str, *, partitions: int = 1, watermark: str | None = None) -> str:
    """Return `pipeline.yaml` up to its window: `schema` is the text of the fields, among them `k` and `at`."""
    line = "" if watermark is None else f"    watermark: {watermark}\n"
    return (
        "name: p\ndescription: test\nsources:\n  events:\n    topic: events\n"
        f"    partitions: {partitions}\n    schema: {schema}\n    required: [k]\n    event_time: at\n{line}    max_future: 1 hour\n"
    )


WINDOWS_YAML = (
    events_yaml("{k: string, at: timestamp, d: double}", watermark="1 hour")
    + "window: WINDOW\nkeys: KEYS\ncount_column: n\ncolumns: {n: {}}\n"
)


def define_windows(window: str, call: str = "window(at, '1 hour')", keys: str = "[k]") -> Definition:
    """Return a definition of tumbling, hopping or session windows: `window` is its YAML, `call` the function in its SQL."""
    name = call.partition("(")[0]
    sql = f"SELECT {name}.start AS window_start, {name}.end AS window_end, k, count(*) AS n FROM events GROUP BY {call}, k"
    text = WINDOWS_YAML.replace("WINDOW", window).replace("KEYS", keys)
    return parse_files({"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}, "p")


INTERVAL = "{every: 1 minute, lookback: 5 minutes, lookahead: 2 minutes, at: at}"
INTERVAL_SQL = "SELECT window_start, window_end, k, at, v FROM events WHERE v > 1"
INTERVAL_YAML = (
    events_yaml("{k: string, at: timestamp, v: bigint, w: bigint}", watermark="1 minute")
    + "window: WINDOW\nkeys: KEYS\ncolumns: {v: {}}\n"
)


def define_interval(
    window: str = INTERVAL, keys: str = "[k, at]", sql: str = INTERVAL_SQL, extra: str = "", rows: str | None = None
) -> Definition:
    """Return a definition of intervals; `extra` is YAML at its end, `rows` the text of `rows.sql`."""
    text = INTERVAL_YAML.replace("WINDOW", window).replace("KEYS", keys) + extra
    files = {"pipeline.yaml": text.encode(), "transform.sql": sql.encode()}
    return parse_files(files if rows is None else {**files, "rows.sql": rows.encode()}, "p")


FOLD_WINDOW = "{fold: 1 day, at: at}"
FOLD_YAML = (
    events_yaml("{k: bigint, at: timestamp, v: bigint, d: double}", partitions=2)
    + f"window: {FOLD_WINDOW}\nby: [k]\nstate: {{total: bigint}}\nkeys: [k]\ncolumns: {{at: {{}}, total: {{}}}}\n"
    "types: {at: timestamp, total: bigint}\n"
)
FOLD = """
def fold(state, event):
    total = (state or {"total": 0})["total"] + event["v"]  # the sum
    return {"total": total}, [{"total": total}]
"""


def define_fold(change: tuple[str, str] = ("", ""), fold: str | None = FOLD, **files: str) -> Definition:
    """Return a definition of a fold with one text of its YAML changed; None: without `fold.py`."""
    assert change[0] in FOLD_YAML
    texts = {"pipeline.yaml": FOLD_YAML.replace(*change) if change[0] else FOLD_YAML, **files}
    if fold is not None:
        texts["fold.py"] = fold
    return parse_files({name.replace("_sql", ".sql"): text.encode() for name, text in texts.items()}, "p")


def define_fold_by(window: str) -> Definition:
    """Return the definition of a fold with another window."""
    return define_fold((FOLD_WINDOW, window))
