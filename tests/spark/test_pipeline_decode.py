from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from homes.project import FLIGHTS
from rivertwice.definition.definition import load_definition
from rivertwice.definition.parts import TIMESTAMP, epoch_bounds
from rivertwice.engine.cases import RAW_SCHEMA
from rivertwice.engine.decode import HEADERS_TYPE, decode, is_plain_instant, last_header
from rivertwice.engine.relations import accepted
from rivertwice.upkeep.redact import scalars

pytestmark = [pytest.mark.core, pytest.mark.spark]

GOOD = {
    "carrier": "UA",
    "flight": 1,
    "tailnum": "N1",
    "origin": "EWR",
    "dest": "IAH",
    "sched_dep": "2013-06-30T16:15:00Z",
    "dep_delay": 3,
    "cancelled": False,
}
AT = datetime(2013, 6, 30, 16, 0, tzinfo=UTC)
HEADERS = [("schema-id", b"flights-1")]


def value(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def text(old: str, new: str) -> bytes:
    assert old.encode() in value()
    return value().replace(old.encode(), new.encode())


# label: (value, headers, reason or None when accepted, detail or None when not looked at)
RECORDS: dict[str, tuple[bytes | None, Any, str | None, str | None]] = {
    "a good record": (value(), HEADERS, None, None),
    "a cancelled flight": (value(dep_delay=None, cancelled=True), HEADERS, None, None),
    "an optional field left out": (value(tailnum=None), HEADERS, None, None),
    "a zone other than UTC": (value(sched_dep="2013-06-30T12:15:00-04:00"), HEADERS, None, None),
    "fractions of a second": (value(sched_dep="2013-06-30T16:15:00.123456Z"), HEADERS, None, None),
    "an unknown field": (value(gate="B7"), HEADERS, None, None),
    "white space around": (b" \n" + value() + b"\n", HEADERS, None, None),
    "event time at the edge of the future": (value(sched_dep="2013-06-30T18:00:00Z"), HEADERS, None, None),
    "the last of two schema ids counts": (value(), [("schema-id", b"x"), *HEADERS], None, None),
    "a schema id among other headers": (value(), [("a", b"1"), *HEADERS, ("z", None)], None, None),
    "no value": (None, HEADERS, "tombstone", None),
    "no bytes": (b"", HEADERS, "empty", None),
    "more than a MiB": (value(tailnum="x" * 1_100_000), HEADERS, "size", None),
    "not UTF-8": (b"\xff\xfe{}", HEADERS, "utf8", None),
    "UTF-16": (value().decode().encode("utf-16"), HEADERS, "utf8", None),
    "no headers": (value(), None, "schema_id", "no header schema-id"),
    "another schema id": (value(), [("schema-id", b"flights-9")], "schema_id", "flights-9"),
    "a schema id without value": (value(), [("schema-id", None)], "schema_id", None),
    "the last of two schema ids is another": (value(), [*HEADERS, ("schema-id", b"x")], "schema_id", "x"),
    "the last of two schema ids has no value": (value(), [*HEADERS, ("schema-id", None)], "schema_id", None),
    "an empty list of headers": (value(), [], "schema_id", "no header schema-id"),
    "only other headers": (value(), [("Schema-Id", b"flights-1"), ("", b"flights-1")], "schema_id", None),
    "a schema id that is not UTF-8": (value(), [("schema-id", b"\xff")], "schema_id", "\ufffd"),
    "cut off": (value()[:-5], HEADERS, "json", None),
    "something behind": (value() + b" xx", HEADERS, "json", None),
    "two objects": (value() + value(), HEADERS, "json", None),
    "something behind that ends like an object": (value() + b" xx}", HEADERS, "json", None),
    "an array": (b"[" + value() + b"]", HEADERS, "json", None),
    "a number": (b"1", HEADERS, "json", None),
    "null": (b"null", HEADERS, "json", None),
    "white space": (b"   ", HEADERS, "json", None),
    "single quotes": (value().replace(b'"', b"'"), HEADERS, "json", None),
    "a control character": (text("N1", "N\x01"), HEADERS, "json", None),
    "a byte order mark": (b"\xef\xbb\xbf" + value(), HEADERS, "json", None),
    "five thousand levels": (b'{"x":' * 5000 + b"1" + b"}" * 5000, HEADERS, "json", None),
    "not a number": (text('"dep_delay": 3', '"dep_delay": NaN'), HEADERS, "json", None),
    "a number of 5000 digits": (text('"flight": 1', '"flight": ' + "9" * 5000), HEADERS, "json", None),
    "a text for a number": (value(flight="1"), HEADERS, "schema", "flight is no int"),
    "a fraction for an int": (value(flight=1.5), HEADERS, "schema", "flight is no int"),
    "an int too large": (value(flight=3_000_000_000), HEADERS, "schema", "flight is no int"),
    "a huge int": (text('"flight": 1', '"flight": 99999999999999999999'), HEADERS, "schema", "flight is no int"),
    "a text for a boolean": (value(cancelled="true"), HEADERS, "schema", "cancelled is no boolean"),
    "a number for a timestamp": (value(sched_dep=1372608900), HEADERS, "schema", "sched_dep is no timestamp"),
    "a timestamp without zone": (value(sched_dep="2013-06-30T16:15:00"), HEADERS, "schema", None),
    "a thirteenth month": (value(sched_dep="2013-13-30T16:15:00Z"), HEADERS, "schema", None),
    "the year 0": (value(sched_dep="0000-01-01T00:00:00Z"), HEADERS, "schema", None),
    "an offset of 99 hours": (value(sched_dep="2013-06-30T12:00:00+99:00"), HEADERS, "schema", None),
    "no fields": (b"{}", HEADERS, "missing", "carrier, flight, origin, dest, sched_dep, cancelled"),
    "no origin": (value(origin=None), HEADERS, "missing", "origin"),
    "another airport": (value(origin="SFO"), HEADERS, "rule", "origin_is_new_york"),
    "a code with a line break": (value(dest="IAH\n"), HEADERS, "rule", "dest_is_an_airport"),
    "a delay out of range": (value(dep_delay=2881), HEADERS, "rule", "dep_delay_in_range"),
    "event time in the future": (value(sched_dep="2013-06-30T18:00:01Z"), HEADERS, "future", None),
}


def raw_rows() -> list[tuple[Any, ...]]:
    return [
        (b"k", data, headers, "flights", 0, offset, AT) for offset, (data, headers, _, _) in enumerate(RECORDS.values())
    ]


@pytest.fixture(scope="module")
def decoded(spark: SparkSession) -> dict[str, dict[str, Any]]:
    _, source = load_definition(FLIGHTS).source
    frame = decode(spark.createDataFrame(raw_rows(), RAW_SCHEMA), source)
    labels = list(RECORDS)
    return {labels[row["_offset"]]: row for row in frame.toArrow().to_pylist()}


@pytest.mark.parametrize("label", RECORDS)
def test_a_record_is_accepted_or_set_aside_with_its_reason(decoded: dict[str, dict[str, Any]], label: str) -> None:
    data, _, reason, detail = RECORDS[label]
    row = decoded[label]
    assert row["_reason"] == reason, row["_detail"]
    assert row["_value"] == data
    assert (row["_detail"] is None) == (reason is None)
    if detail is not None:
        assert row["_detail"] == detail


def test_every_record_comes_out_once(decoded: dict[str, dict[str, Any]]) -> None:
    assert set(decoded) == set(RECORDS)


def test_instants_are_read_exactly(decoded: dict[str, dict[str, Any]]) -> None:
    assert decoded["a zone other than UTC"]["sched_dep"] == datetime(2013, 6, 30, 16, 15, tzinfo=UTC)
    assert decoded["fractions of a second"]["sched_dep"] == datetime(2013, 6, 30, 16, 15, 0, 123456, tzinfo=UTC)


def test_not_a_number_is_refused_in_a_double_too(spark: SparkSession) -> None:
    _, source = load_definition(FLIGHTS).source
    doubles = source.model_copy(update={"schema_": {**source.schema_, "dep_delay": "double"}, "rules": []})
    values = [text('"dep_delay": 3', f'"dep_delay": {number}') for number in ("2.5", "1e999", '"NaN"', "NaN")]
    rows = [(b"k", data, HEADERS, "flights", 0, offset, AT) for offset, data in enumerate(values)]
    frame = decode(spark.createDataFrame(rows, RAW_SCHEMA), doubles).orderBy("_offset")
    assert [row["_reason"] for row in frame.collect()] == [None, "schema", "schema", "json"]


def test_a_text_field_reads_a_token_as_the_erasure_of_a_value_does(spark: SparkSession) -> None:
    draw = random.Random(46)
    tokens = [
        rb'"bob\u002Bx@a.de"', rb'"dept\/eve"', rb'"J\u00F6rg"', '"Jörg"'.encode(), rb'"\ud83d\ude00"', rb'"\ud83d"', rb'"a\udc00b"',
        rb'"\u0000\b\f\n\r\t\"\\"', b'""', b"42", b"-0", b"0", b"-7", b"99999999999999999999", b"1.50", b"-0.0", b"1e5", b"1E-5",
        b"1e400", b"-1e400", b"1e-400", b"12345678901234567.89", b"0.001", b"0.0009999", b"9999999.5", b"12345678.0", b"true", b"false",
        *(f"{draw.uniform(-1, 1) * 10 ** draw.randint(-12, 15)!r}".encode() for _ in range(300)),
    ]  # fmt: skip
    _, source = load_definition(FLIGHTS).source
    values = [value(tailnum="@").replace(b'"@"', token) for token in tokens]
    rows = [(b"k", data, HEADERS, "flights", 0, offset, AT) for offset, data in enumerate(values)]
    frame = decode(spark.createDataFrame(rows, RAW_SCHEMA), source.model_copy(update={"rules": []})).orderBy("_offset")
    read = {tokens[row["_offset"]]: (row["_reason"], row["tailnum"]) for row in frame.collect()}
    assert read == {token: (None, next(scalars(token)).text) for token in tokens}


def test_the_last_header_is_the_one_that_a_filter_finds(spark: SparkSession) -> None:
    draw = random.Random(7)
    keys, values = ("schema-id", "schema-i", "", "other", None), (b"1", b"", b"\xff", None)
    lists = [
        [(draw.choice(keys), draw.choice(values)) for _ in range(draw.randrange(5))] if draw.random() < 0.95 else None
        for _ in range(500)
    ]
    frame = spark.createDataFrame([(headers,) for headers in lists], f"_headers {HEADERS_TYPE}")
    filtered = F.try_element_at(F.filter("_headers", lambda header: header["key"] == "schema-id"), F.lit(-1))["value"]
    rows = frame.select(last_header("schema-id").alias("last"), filtered.alias("filtered"), "_headers").collect()
    assert [row for row in rows if row["last"] != row["filtered"]] == []
    assert {row["last"] if row["last"] is None else bytes(row["last"]) for row in rows} == set(values)


@pytest.fixture
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which compiles as a driver's does; sessions of tests interpret."""
    wanted = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value_ in wanted.items():
        spark.conf.set(name, value_)
    yield spark
    for name, value_ in before.items():
        spark.conf.set(name, str(value_))


def test_a_compiled_decode_is_the_interpreted_one(decoded: dict[str, dict[str, Any]], compiling: SparkSession) -> None:
    _, source = load_definition(FLIGHTS).source
    # A repartition, for Spark interprets what it computes of local rows while it plans.
    frame = decode(compiling.createDataFrame(raw_rows(), RAW_SCHEMA).repartition(1), source)
    assert "WholeStageCodegen" in frame._jdf.queryExecution().explainString(explain_mode(compiling))
    compiled = sorted(frame.toArrow().to_pylist(), key=lambda row: row["_offset"])
    assert compiled == sorted(decoded.values(), key=lambda row: row["_offset"])


def explain_mode(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString("codegen")


def test_spark_compiles_all_of_a_decode_but_from_json(compiling: SparkSession) -> None:
    """An expression that Spark interprets splits the stage, and HotSpot compiles no method above 8,000 bytes."""
    _, source = load_definition(FLIGHTS).source
    text = "binary(string(id))"
    headers = f"array(named_struct('key', string(id), 'value', {text})) AS headers"
    raw = compiling.range(9).selectExpr(
        f"{text} AS key",
        f"{text} AS value",
        headers,
        "'t' AS topic",
        "0 AS partition",
        "id AS offset",
        "now() AS timestamp",
    )
    frame = accepted(decode(raw, source), source)
    explained = frame._jdf.queryExecution().explainString(explain_mode(compiling))
    sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", explained)]
    assert sizes
    assert max(sizes) < 8000
    plan = frame._jdf.queryExecution().executedPlan().toString().splitlines()
    interpreted = [line for line in plan if re.match(r"[ :+-]*(Project|Filter)", line)]
    assert ["from_json(" in line for line in interpreted] == [True], interpreted


@pytest.mark.parametrize("plain", ["2013-06-30T16:15:00Z", "2013-06-30T16:15:00.5Z", "2013-06-30T16:15:00.250Z"])
def test_the_short_check_of_instants_takes_only_what_the_pattern_takes(spark: SparkSession, plain: str) -> None:
    # All texts that differ from an instant in one or two places by any of these signs, and some that differ everywhere.
    signs = "059 -+:.TZUaN\t\u00e9"
    years = ("0000", "0001", "0002", "9998", "9999")
    texts = {plain, *(year + plain[4:] for year in years), *(f"2013-06-30T16:15:00.{'1' * more}Z" for more in range(9))}
    for first, second in itertools.combinations(range(len(plain)), 2):
        for one, other in itertools.product(signs, repeat=2):
            texts.add(plain[:first] + one + plain[first + 1 : second] + other + plain[second + 1 :])
    dice = random.Random(20)
    texts |= {"".join(dice.choice(signs) for _ in plain) for _ in range(2_000)}
    # And all ends that a zone of Java may be, where digits of the fraction are.
    java: Any = spark._jvm
    zones = [*java.java.time.ZoneId.getAvailableZoneIds(), *java.java.time.ZoneId.SHORT_IDS, "UTC+1", "GMT-01:00", "Z"]
    texts |= {
        plain[:19] + dot + zone + end for zone in zones for dot in ("", ".", ".1") for end in ("", "Z", " Z", "1Z")
    }
    frame = spark.createDataFrame([(each,) for each in sorted(texts)], "text string")
    text = F.col("text")
    parsed = F.try_to_timestamp(text)
    by_pattern = F.when(text.rlike(TIMESTAMP), parsed)
    short = F.when(is_plain_instant(text) | text.rlike(TIMESTAMP), parsed)
    both = frame.select(text, by_pattern.alias("pattern"), short.alias("short"), is_plain_instant(text).alias("plain"))
    differing = both.where(~F.col("pattern").eqNullSafe(F.col("short"))).toArrow().to_pylist()
    assert differing == []
    assert both.where((F.col("text") == plain) & F.col("plain") & F.col("short").isNotNull()).count() == 1
    assert both.where(F.col("plain") & F.col("short").isNotNull()).count() > 100
    assert both.where(F.col("plain") & F.col("short").isNull()).count() > 1_000


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_a_number_since_1970_is_a_timestamp_or_of_another_type(spark: SparkSession, unit: str, scale: int) -> None:
    """Of fractions, texts, and years that a text could not name either, none is guessed."""
    _, source = load_definition(FLIGHTS).source
    numbers = source.model_copy(update={"epochs": {"sched_dep": unit}})
    second = 1_372_608_900  # 2013-06-30T16:15:00Z
    first, end = epoch_bounds(unit)
    values = [second * scale, first, end - 1, end, first - 1, second + 0.5, str(second * scale), 2**63, None]
    rows = [(b"k", value(sched_dep=each), HEADERS, "flights", 0, at, AT) for at, each in enumerate(values)]
    found = decode(spark.createDataFrame(rows, RAW_SCHEMA), numbers).orderBy("_offset").toArrow().to_pylist()
    assert found[0]["sched_dep"] == datetime(2013, 6, 30, 16, 15, tzinfo=UTC)
    assert [row["_reason"] for row in found] == [None, None, "future", *["schema"] * 3, "schema", "schema", "missing"]
    assert found[3]["_detail"] == "sched_dep is no timestamp"


NUMBERS = (
    "12345678901234567.89", "12345678901234567.9", "9007199254740993.01", "0.10000000000000000555",
    "1.23", "1.2300", "-0.05", "0", "-0", "-0.0", "7", "12.3e-1", "123e-2", "1000E-3", "0e99", "1.5E2", "99999999.99", "1.239", "0.001",
    "1e-3", "1e-40", "0.1e-1", "99999999.999", "100000000", "1e8", "1e400", "1.00000000000000000000000000000000000000000000000001",
    "123456.7800000000000000000000000000000000000000000000000000", "12345678901234567890.12",
)  # fmt: skip


@pytest.mark.proves("definitions.md#what-makes-a-dead-letter")
@pytest.mark.parametrize("kind", ["decimal(10,2)", "decimal(32,18)", "decimal(5,0)", "decimal(20,1)", "decimal(18,2)"])
def test_a_number_that_its_decimal_does_not_hold_is_a_dead_letter_where_that_is_asked_for(
    spark: SparkSession, kind: str
) -> None:
    """Against Python's decimals of 38 digits; without `decimals: exact` it is rounded, as it always was."""
    _, source = load_definition(FLIGHTS).source
    rounded = source.model_copy(update={"schema_": {**source.schema_, "fare": kind}})
    exact = rounded.model_copy(update={"decimals": "exact"})
    precision, scale = (int(part) for part in re.findall(r"\d+", kind))
    draw = random.Random(7)
    drawn = [f"{draw.choice(('', '-'))}{draw.randrange(10 ** draw.randrange(1, 9))}" for _ in range(200)]
    drawn = [f"{each}.{draw.randrange(10**6):06d}"[: draw.randrange(4, 16)].rstrip(".") for each in drawn]
    drawn = [f"{each}e{draw.randrange(-8, 8)}" if draw.random() < 0.4 else each for each in drawn]
    texts = [*NUMBERS, *drawn]
    values = [value()[:-1] + b', "fare": ' + text.encode() + b"}" for text in texts]
    rows = [(b"k", each, HEADERS, "flights", 0, at, AT) for at, each in enumerate(values)]
    found = decode(spark.createDataFrame(rows, RAW_SCHEMA), exact).orderBy("_offset").toArrow().to_pylist()
    wide = Context(prec=500)
    step, seen = Decimal(1).scaleb(-scale), Decimal(1).scaleb(precision - scale - 38)

    def holds(number: Decimal) -> bool:
        rounded = number.quantize(step, ROUND_HALF_UP, context=wide)
        return rounded == number and abs(rounded) < Decimal(10) ** (precision - scale)

    beyond = []
    for text, row in zip(texts, found, strict=True):
        number = Decimal(text)
        if holds(number):
            assert (row["_reason"], row["fare"]) == (None, number), text
        elif not holds(number.quantize(seen, ROUND_HALF_UP, context=wide)):
            assert (row["_reason"], row["fare"], row["_detail"]) == ("schema", None, f"fare is no {kind}"), text
        else:
            beyond.append((text, row["_reason"]))
    assert beyond == [("1e-40", "schema"), (NUMBERS[-3], None)]
    others = ["true", '"x"', "{}", "[1]", "null"]
    values = [value()[:-1] + b', "fare": ' + text.encode() + b"}" for text in others]
    rows = [(b"k", each, HEADERS, "flights", 0, at, AT) for at, each in enumerate(values)]
    found = decode(spark.createDataFrame(rows, RAW_SCHEMA), exact).orderBy("_offset").toArrow().to_pylist()
    assert [row["_reason"] for row in found] == [*["schema"] * 4, None]
    (row,) = (
        decode(
            spark.createDataFrame(
                [(b"k", value()[:-1] + b', "fare": 1.239}', HEADERS, "flights", 0, 0, AT)], RAW_SCHEMA
            ),
            source.model_copy(update={"schema_": {**source.schema_, "fare": "decimal(10,2)"}}),
        )
        .toArrow()
        .to_pylist()
    )
    assert (row["_reason"], row["fare"]) == (None, Decimal("1.24"))
