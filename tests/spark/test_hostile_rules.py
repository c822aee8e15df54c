"""Whatever a value is, a row rule judges it: no pattern exhausts the stack or runs for ever, in a stream as in a recompute."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from homes.project import FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.definition.patterns import JAVA_ENGINE, _parse, _Reader, match_whole, matcher_of
from rivertwice.definition.source import Pattern, Source
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.decode import decode

pytestmark = pytest.mark.spark

AT = datetime(2013, 6, 30, 16, 0, tzinfo=UTC)
PATTERNS = {
    "repeated_choice": r"(a|b)*",
    "nested": r"(a+)+b",
    "domain": r"(?:[a-z0-9]+\.)*[a-z]+",
    "cubic": r".*x.*y.*z",
    "wide": r".{2,}",
    "ignoring_case": r"(?i)(k|[x-z])+",
    "steady_code": r"[A-Z]+-[0-9]+",
    "steady_number": r"-?[0-9]+(?:\.[0-9]+)?",
    "steady_any": r"(?s).*",
    "steady_line": r".*",
    "steady_mail": r"\w+@\w+\.\w+",
    "steady_ahead": r"(?!000)\d{3}",
    "steady_bounded": r"[^a]{0,100}",
}
HOSTILE = (
    "ab" * 50_000, "a" * 100_000, "x" * 100_000 + "!", "a." * 50_000 + "!", "a😀" * 100_000, "😀" * 100_000, "\x00" * 100_000,
    "A" * 100_000, "1" * 100_000 + "x", "-" * 100_000, "a" * 30 + "!", "\u2028" * 100_000, "@" * 100_000, "0" * 100_000, "kK" * 50_000,
    "é" * 50_000, "\r\n" * 50_000, "", "a-1", "AB-12", "-1.5", "a@b.c", "123", "000", "\u017fK",
)  # fmt: skip


def source_with(name: str) -> Source:
    """The flights, accepted or not by one pattern over `tailnum`."""
    _, found = load_definition(FLIGHTS).source
    rule = Pattern(name=name, field="tailnum", rule="pattern", pattern=PATTERNS[name])
    return found.model_copy(update={"rules": [rule], "max_record_bytes": 4_000_000})


def record(value: str) -> bytes:
    fields: dict[str, Any] = {
        "carrier": "UA", "flight": 1, "tailnum": value, "origin": "EWR", "dest": "IAH",
        "sched_dep": "2013-06-30T16:15:00Z", "dep_delay": 3, "cancelled": False,
    }  # fmt: skip
    return json.dumps(fields).encode()


def raw(spark: SparkSession, values: list[str]) -> DataFrame:
    rows = [(None, record(one), [("schema-id", b"flights-1")], "t", 0, at, AT) for at, one in enumerate(values)]
    return spark.createDataFrame(rows, RAW_SCHEMA)


def verdicts(frame: DataFrame) -> dict[int, tuple[str | None, str | None]]:
    chosen = frame.select("_offset", "_reason", "_detail").collect()
    return {row["_offset"]: (row["_reason"], row["_detail"]) for row in chosen}


def expected(name: str, values: list[str]) -> dict[int, tuple[str | None, str | None]]:
    """What RE2 says of the pattern's own parse, whichever engine the rule takes."""
    pattern = PATTERNS[name]
    if "(?!" in pattern:
        fits = [len(one) == 3 and all(sign in "0123456789" for sign in one) and one != "000" for one in values]
    else:
        reader = _Reader(ignore_case="(?i)" in pattern, dot_all="(?s)" in pattern)
        fits = match_whole(pa.array(values), rf"\A(?:{reader.sequence(list(_parse(pattern)))})\z").to_pylist()
    return {at: (None, None) if fit else ("rule", name) for at, fit in enumerate(fits)}


@pytest.mark.parametrize("name", PATTERNS)
def test_hostile_values_are_judged_by_every_pattern(spark: SparkSession, name: str) -> None:
    assert (matcher_of(PATTERNS[name]).engine == JAVA_ENGINE) == name.startswith("steady")
    values = list(HOSTILE)
    assert verdicts(decode(raw(spark, values), source_with(name))) == expected(name, values)


pieces = st.sampled_from(
    ["a", "b", "x", "y", "z", "k", "K", "\u017f", ".", "@", "-", "1", "😀", "\n", "\r", "\u2028", "\x00", "é", "!"]
)
strings = st.one_of(
    st.text(max_size=8),
    st.lists(pieces, max_size=12).map("".join),
    st.builds(lambda one, n: one * n, pieces, st.integers(0, 5_000)),
)


@settings(max_examples=6, derandomize=True)
@given(
    st.sampled_from(sorted(PATTERNS)),
    st.lists(strings.filter(lambda one: one.isprintable() or one), min_size=1, max_size=60),
)
def test_any_value_is_judged_alike_by_both_engines(spark: SparkSession, name: str, values: list[str]) -> None:
    assert verdicts(decode(raw(spark, values), source_with(name))) == expected(name, values)


def test_a_stream_judges_as_a_recompute_does(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(5)
    values = [*HOSTILE, *("".join(draw.choices("ab.x\n😀!", k=40)) for _ in range(20))]
    source = source_with("repeated_choice")
    frame = raw(spark, values)
    frame.write.parquet(str(tmp_path / "records"))
    batch = verdicts(decode(frame, source))
    stream = decode(spark.readStream.schema(frame.schema).parquet(str(tmp_path / "records")), source)
    name = f"rules_{tmp_path.name}".replace("-", "_")
    writer = stream.select("_offset", "_reason", "_detail").writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    assert verdicts(spark.table(name)) == batch == expected("repeated_choice", values)
    # A Python worker never gets more at once.
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "67108864b"
