"""What a transform may not contain, judged by its text. Pure; `checks` judges Spark's plan of it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from rivertwice.core import DefinitionError


@dataclass(frozen=True)
class FunctionRefusal:
    """Why some functions are refused.

    Attributes:
        always: refused even with `compare: false`.
    """

    cause: str
    remedy: str
    always: bool = False


_LIFT = ", or disable the comparison with compare: false"


class Refusals:
    """Why functions are refused."""

    CLOCK: ClassVar[FunctionRefusal] = FunctionRefusal(
        "reads the clock, so a recompute gives another result", "use the event time" + _LIFT
    )
    WHO: ClassVar[FunctionRefusal] = FunctionRefusal(
        "depends on who runs it and where, so stream and recompute may differ", "use a field of the record" + _LIFT
    )
    RANDOM: ClassVar[FunctionRefusal] = FunctionRefusal(
        "gives another value in each run", "derive the value from fields of the row" + _LIFT
    )
    ORDER: ClassVar[FunctionRefusal] = FunctionRefusal(
        "depends on the order of rows, which a recompute does not keep",
        "use min, max, sum or count" + _LIFT,
    )
    SKETCH: ClassVar[FunctionRefusal] = FunctionRefusal(
        "is approximate, so stream and recompute may differ", "use the exact percentile or count" + _LIFT
    )
    DISTINCT: ClassVar[FunctionRefusal] = FunctionRefusal(
        "counts distinct values, which Spark does not support in a stream",
        "group by the value in a separate pipeline, or count rows",
        always=True,
    )
    PLACE: ClassVar[FunctionRefusal] = FunctionRefusal(
        "depends on how rows were split into partitions", "derive the value from fields of the row" + _LIFT
    )
    JAVA: ClassVar[FunctionRefusal] = FunctionRefusal(
        "runs Java code or reads outside the sources", "remove it; this is refused always", always=True
    )
    ONLY_STREAM: ClassVar[FunctionRefusal] = FunctionRefusal(
        "exists only in a stream, so it cannot be recomputed",
        "drop duplicates by key and event time" + _LIFT,
    )


FUNCTIONS: dict[str, FunctionRefusal] = {
    **dict.fromkeys(
        (
            "current_timestamp", "now", "current_date", "curdate", "current_time", "localtimestamp", "current_timezone",
        ),
        Refusals.CLOCK,
    ),
    **dict.fromkeys(("rand", "random", "randn", "uuid", "shuffle", "randstr", "uniform"), Refusals.RANDOM),
    **dict.fromkeys(
        (
            "first", "first_value", "last", "last_value", "any_value", "max_by", "min_by", "collect_list",
            "collect_set", "array_agg", "listagg", "string_agg", "mode", "row_number", "nth_value",
            "lag", "lead",
        ),
        Refusals.ORDER,
    ),
    **dict.fromkeys(
        (
            "percentile_approx", "approx_percentile", "approx_count_distinct", "count_min_sketch",
            "histogram_numeric",
        ),
        Refusals.SKETCH,
    ),
    **dict.fromkeys(("monotonically_increasing_id", "spark_partition_id", "input_file_name"), Refusals.PLACE),
    **dict.fromkeys(("current_user", "user", "session_user", "current_catalog", "current_database", "version"), Refusals.WHO),
    **dict.fromkeys(("input_file_block_start", "input_file_block_length"), Refusals.PLACE),
    **dict.fromkeys(("reflect", "java_method", "try_reflect", "read_files", "secret"), Refusals.JAVA),
    "dropduplicateswithinwatermark": Refusals.ONLY_STREAM,
}  # fmt: skip
WINDOWED = frozenset(
    {"first", "first_value", "last", "last_value", "any_value", "row_number", "nth_value", "lag", "lead", "ntile"}
    | {"collect_list", "collect_set", "array_agg"}
)
"""Functions that are exact with a total order, or if their result is sorted."""
_PREFIXES = {
    "approx_": Refusals.SKETCH,
    "hll_": Refusals.SKETCH,
    "kll_": Refusals.SKETCH,
    "theta_": Refusals.SKETCH,
    "bitmap_": Refusals.SKETCH,
}
_BARE = frozenset(
    {
        "current_timestamp",
        "current_date",
        "current_time",
        "localtimestamp",
        "current_user",
        "user",
        "session_user",
    }
)
_FILE_READ = re.compile(r"\b(text|parquet|json|csv|orc|avro|binaryfile|delta|xml)\s*\.\s*`", re.IGNORECASE)
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)"
    r"|(?P<string>[rR]?'(?:[^'\\]|\\.|'')*'|[rR]?\"(?:[^\"\\]|\\.|\"\")*\")"
    r"|(?P<quoted>`(?:[^`]|``)*`)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9][0-9A-Za-z_.]*)"
    r"|(?P<space>\s+)"
    r"|(?P<other>.)",
    re.DOTALL,
)


def tokens(sql: str) -> list[str]:
    """Return the tokens of `sql` without comments and white space; quoted texts keep their quotes."""
    matches = (match for match in _TOKEN.finditer(sql) if match.lastgroup not in ("comment", "space"))
    return [match.group() for match in matches]


def token_places(sql: str) -> list[str]:
    """Return where each of the `tokens` of `sql` begins, as the beginning of a sentence."""
    places = []
    for match in _TOKEN.finditer(sql):
        if match.lastgroup not in ("comment", "space"):
            line_start = sql.rfind("\n", 0, match.start()) + 1
            places.append(f"line {sql.count(chr(10), 0, match.start()) + 1}, column {match.start() - line_start + 1}: ")
    return places


def normalise(sql: str) -> str:
    """Return `sql` without comments and with single spaces; the same text means the same statement."""
    return " ".join(tokens(sql))


def refusal_of(function: str) -> FunctionRefusal | None:
    """Return why a function is refused, None if it is not."""
    name = function.lower().strip("`")
    return FUNCTIONS.get(name) or next((why for prefix, why in _PREFIXES.items() if name.startswith(prefix)), None)


def find_refused(
    sql: str, *, compared: bool, per_window: bool = False, fields: Collection[str] = ()
) -> list[tuple[str, FunctionRefusal]]:
    """Return the refused functions that `sql` names, in order, with the reason of each.

    Intervals may count distinct values, because they run in batch. Functions over an ordered window are accepted here:
    `interval_check` sees in the plan whether the order is total. A name without parentheses that is one of the `fields` is that
    column (`user`): Spark resolves columns first.
    """
    found = _find_refused(tokens(sql), compared=compared, per_window=per_window, fields=fields)
    return [(name, why) for _, name, why in found]


def _find_refused(
    words: list[str], *, compared: bool, per_window: bool, fields: Collection[str]
) -> list[tuple[int, str, FunctionRefusal]]:
    """Return the index, the name and the reason of each refused function."""
    refused: list[tuple[int, str, FunctionRefusal]] = []
    for index, word in enumerate(words):
        after = words[index + 1] if index + 1 < len(words) else ""
        before = words[index - 1].lower() if index else ""
        if word.lower() == "distinct" and before == "(" and not per_window:
            refused.append((index - 2, f"{words[index - 2]}(DISTINCT ...)", Refusals.DISTINCT))
        bare = word.lower() in _BARE and word.lower() not in fields and before not in (".", "as")
        called = after == "(" or bare
        why = refusal_of(word) if called and re.match(r"[A-Za-z_`]", word) else None
        if per_window and word.lower() in WINDOWED:
            continue
        if why is not None:
            refused.append((index, word, why))
    return [each for each in refused if compared or each[2].always]


def check_sql(sql: str, where: str, *, compared: bool, per_window: bool = False, fields: Collection[str] = ()) -> None:
    """Refuse SQL that may give different results in a stream and in a recompute, or that reads outside its sources.

    `fields` are the fields of the sources: a bare name among them is a column.

    Raises:
        DefinitionError: names the operator, the cause and the remedy.
    """
    words = tokens(sql)
    if not words or words[0].lower() not in ("select", "with"):
        first, at = (words[0], token_places(sql)[0]) if words else ("nothing", "")
        message = f"{where}: {at}the file starts with {first!r}; a transform is one SELECT, optionally after WITH"
        raise DefinitionError(message)
    if ";" in words:
        message = f"{where}: {token_places(sql)[words.index(';')]}there is a ';'; a transform is exactly one SELECT: remove it"
        raise DefinitionError(message)
    if _FILE_READ.search(normalise(sql)):
        message = f"{where} reads files; {Refusals.JAVA.cause}: {Refusals.JAVA.remedy}"
        raise DefinitionError(message)
    refused = _find_refused(words, compared=compared, per_window=per_window, fields=fields)
    if refused:
        places = token_places(sql)
        lines = [f"{where}: {places[index]}{name} {why.cause}; {why.remedy}" for index, name, why in refused]
        raise DefinitionError("\n".join(lines))
