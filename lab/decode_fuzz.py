"""Made-up and damaged JSON records, decoded by the product and by the slow expressions that its fast ones must equal: no value may differ.

`python -m lab.decode_fuzz [--records 10000000] [--seed 1]`; ends with 1 and the differing records if there
are any. A chunk of 250,000 records is of one source (`SOURCES`, in turn) and depends only on the seed and its number (`--first`). A million
records cost 50 to 60 CPU-seconds. Its line ends with a hash of what every record was decoded as: another Spark must print the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lab.bench.measure import own_cpu_s
from rivertwice.core.settings import Settings
from rivertwice.definition.source import Source
from rivertwice.engine import decode as product
from rivertwice.engine.envelope import open_envelope, payload
from rivertwice.engine.session import spark_session

CHUNK = 250_000
POOL = 3_000
"""Made values of a field from which the records of a chunk draw."""

_FIELDS = {
    "s": "string", "i": "int", "b": "bigint", "d": "double", "m": "decimal(10,2)", "o": "boolean",
    "t": "timestamp", "u": "timestamp", "e": "timestamp", "n": "int",
}  # fmt: skip
_PLAIN: dict[str, Any] = {
    "topic": "t", "partitions": 1, "schema": _FIELDS, "event_time": "t", "watermark": "10 s", "max_future": "10000000 days",
    "required": ["t"], "max_record_bytes": 100_000,
}  # fmt: skip
_NESTED = {"epochs": {"e": "ms"}, "paths": {"n": "x.y.n", "u": "x.at"}}
_TABLE = {"role": "table", "table_keys": ["i"], "envelope": "debezium", "required": ["i"]}
SOURCES = {
    "plain": Source.model_validate(_PLAIN | {"epochs": {"e": "ms"}}),
    "nested": Source.model_validate(_PLAIN | _NESTED),
    "exact decimals": Source.model_validate(_PLAIN | {"epochs": {"e": "us"}, "decimals": "exact"}),
    "change events": Source.model_validate(
        {**{name: said for name, said in _PLAIN.items() if name != "watermark"}, **_TABLE}
    ),
}


# The slow expressions: the text and the mark as an argument, and the pattern for every instant.


def slow_columns(records: DataFrame, source: Source, fits: Column) -> DataFrame:
    """Return what the product's `_json_columns` returns, all by the expressions that say it most plainly."""
    text = F.when(fits, F.try_validate_utf8(payload(source).cast("string")))
    stalls = product._stalls(source)
    assert stalls is not None
    body = F.regexp_extract("_text", r"(?s)\A(\s*\{.*)\}\s*\z", 1)
    last = F.concat(F.lit('"\\u0001":"'), F.sha2("_text", 256), F.lit('"}'))
    whole = F.concat(body, F.when(body.rlike(r"\A\s*\{\s*\z"), "").otherwise(","), last)
    begins = F.col("_text").rlike(r"\A\s*\{")  # of what is no object no number is read
    marked = F.when(stalls & begins, product._UNREAD).otherwise(whole)
    parsed = records.withColumn("_text", text).withColumn("_mark", F.sha2("_text", 256)).withColumn("_marked", marked)
    parsed = parsed.withColumn("_parsed", F.from_json(marked, product._parse_schema(source), product._OPTIONS))
    if source.envelope == "debezium":
        parsed = open_envelope(parsed)
    typed = (product._typed(source, name, kind) for name, kind in source.schema_.items())
    return parsed.select(*parsed.columns, *typed)


def decoded_both_ways(raw: DataFrame, source: Source) -> tuple[DataFrame, DataFrame]:
    """Return what the product decodes records as, and what the slow expressions do."""
    fast = product.decode(raw, source)
    with (
        patch.object(product, "_json_columns", slow_columns),
        patch.object(product, "is_plain_instant", lambda text: F.lit(False) & text.isNull()),
    ):
        slow = product.decode(raw, source)
    return fast, slow


# Values of a field as JSON, good and bad.

_SIGNS = "0159 -+:.TZUaN\t\x00/;é"
_ZONES = ("Z", "Z", "Z", "", "+00:00", "-04:00", "+14:00", "+18:00", "+18:01", "+5:30", "+0530", "-00:00", "NZ", "UTC", "GMT0", " Z", "z", "[UTC]", "+99:00")  # fmt: skip
_YEARS = (
    "2013",
    "2026",
    "1970",
    "1969",
    "0002",
    "0001",
    "0000",
    "9998",
    "9999",
    "1582",
    "12013",
    "+2013",
    "-2013",
    "201",
)
_ODD_NUMBERS = (
    "0", "-0", "-0.0", "0.0", "00", "01", "-01", "1.", ".5", "+1", "1e5", "1E-5", "1e400", "-1e400", "1e-400", "1.50", "0x1F", "1_000",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "99999999999999999999", "12345678901234567.89", "99999999.99", "99999999.995", "100000000", "0.005", "-0.005", "1e-3", "123e-2", "NaN",
    "Infinity", "1e999999999", "-1E-999999999", '"1e999999999"', '"1\\u0065999999999"', "-INF", "1e", "1e+", "--1", "9" * 40, "0." + "1" * 60, "1" + "0" * 40 + "e-40", "9" * 1001, "5e-324", "1.7976931348623157e308",
)  # fmt: skip
_ODD_VALUES = (
    "null", "true", "false", "TRUE", "nul", '""', '"true"', '"1"', "{}", "[]", "[1]", '{"a":1}', '{"y":{"n":1}}', "'x'", "", " ", '"', "}", "{", "]", ",", ":",
    '"\\u0041"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\udc00x"', '"\\x"', '"\\u12"', '"\t"', '"\x01"', '"\\u0000"', '"a\\"b"', '"é"', '"😀"', '"{\\"a\\":1}"',
    '"}"', '"},\\"_end\\":true}"', "/* c */1", "1 // c", '"2013-06-30T16:15:00Z"', "1372608900000",
)  # fmt: skip
_KEYS = ("s", "i", "b", "d", "m", "o", "t", "u", "e", "n", "x", "S", "_end", "_record", "_corrupt", "", "\\u0073", "é", "before", "after", "op", "payload")  # fmt: skip


def instant(draw: random.Random) -> str:
    """Return a text that is an instant, or is nearly one."""
    kind = draw.random()
    month, day = draw.randrange(1, 13), draw.randrange(1, 31)
    hour, minute, second = draw.randrange(24), draw.randrange(60), draw.randrange(60)
    if kind < 0.1:
        month, day, hour, second = draw.randrange(14), draw.randrange(33), draw.randrange(26), draw.randrange(62)
    year = draw.choice(_YEARS) if kind < 0.3 else f"{draw.randrange(1900, 2100)}"
    digits = draw.choice((0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 9))
    fraction = "." + "".join(draw.choices("0123456789", k=digits)) if digits or kind < 0.02 else ""
    zone = draw.choice(_ZONES) if draw.random() < 0.4 else "Z"
    text = f"{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}{zone}"
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
        at = draw.randrange(len(text) + 1)
        text = text[:at] + draw.choice(_SIGNS) * draw.randrange(2) + text[at + draw.randrange(2) :]
    return text.replace("\t", "\\t").replace("\x00", "\\u0000")


def number(draw: random.Random) -> str:
    """Return a number, in nearly all cases one that JSON allows."""
    if draw.random() < 0.3:
        return draw.choice(_ODD_NUMBERS)
    whole = draw.randrange(-(10 ** draw.randrange(1, 20)), 10 ** draw.randrange(1, 20))
    fraction = "." + "".join(draw.choices("0123456789", k=draw.randrange(1, 20))) if draw.random() < 0.4 else ""
    power = f"{draw.choice('eE')}{draw.randrange(-30, 30)}" if draw.random() < 0.2 else ""
    return f"{whole}{fraction}{power}"


def text_of(draw: random.Random) -> str:
    """Return a short text in quotes, some of which end too early."""
    signs = 'ab01 {}[]:,\\\\"\u00e9\u20ac\U0001f600'
    return '"' + "".join(draw.choices(signs, k=draw.randrange(12))).replace('"', '\\"') + '"'


def value_of(draw: random.Random, kind: str) -> str:
    """Return the JSON of a value, of this type in most cases."""
    chance = draw.random()
    if chance < 0.06:
        return draw.choice(_ODD_VALUES)
    if kind == "timestamp":
        return f'"{instant(draw)}"'
    if kind == "string":
        return text_of(draw) if chance < 0.8 else number(draw)
    if kind == "boolean":
        return draw.choice(("true", "false", "null"))
    if kind == "epoch":
        return str(draw.randrange(-62_104_060_900_000, 253_370_764_900_000)) if chance < 0.8 else number(draw)
    if kind == "nested":
        inner = ('"n":' + number(draw), f'"n":{draw.randrange(100)}', '"n":1,"n":2', '"m":{}', draw.choice(_ODD_VALUES))
        return f'{{"y":{{{draw.choice(inner)}}},"at":"{instant(draw)}"}}'
    if kind in ("int", "bigint") and chance < 0.7:
        return str(draw.randrange(-(2**31), 2**31))
    return number(draw)


def good_value(draw: random.Random, kind: str) -> str:
    """Return the JSON of a value that a field of this type takes."""
    if kind == "timestamp":
        digits = draw.choice((0, 0, 1, 2, 3, 3, 4, 5, 6, 6))
        fraction = "." + "".join(draw.choices("0123456789", k=digits)) if digits else ""
        day = f"{draw.randrange(2, 9999):04}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}"
        zone = draw.choice(("Z", "Z", "Z", "+00:00", "-04:00", "+14:00"))
        return f'"{day}T{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}{fraction}{zone}"'
    if kind == "string":
        text = "".join(draw.choices('ab01 {}[]:,\\"/\n\u00e9\u20ac\U0001f600', k=draw.randrange(12)))
        return json.dumps(text, ensure_ascii=draw.random() < 0.5)
    if kind == "boolean":
        return draw.choice(("true", "false"))
    if kind == "nested":
        at = good_value(draw, "timestamp")
        return f'{{"y":{{"n":{draw.randrange(-99, 99)}}},"at":{at}}}'
    if kind in ("double", "decimal(10,2)"):
        return f"{draw.randrange(-(10**7), 10**7)}.{draw.randrange(100):02}"
    return str(draw.randrange(-(2**31), 2**31))


# Records: fields drawn from pools, damaged in two of five.

Edit = Callable[[random.Random, bytes, bytes], bytes]


def _cut(draw: random.Random, data: bytes, _: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _change(draw: random.Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes((draw.choice(_BYTES),)) + data[at + 1 :]


def _insert(draw: random.Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(_JUNK) + data[at:]


def _drop(draw: random.Random, data: bytes, _: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[at + draw.randrange(1, 6) :]


def _splice(draw: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


def _behind(draw: random.Random, data: bytes, other: bytes) -> bytes:
    return data + draw.choice((*_JUNK, other, *_FORGED, b" " + other))


def _before(draw: random.Random, data: bytes, _: bytes) -> bytes:
    return draw.choice(_JUNK) + data


def _around(draw: random.Random, data: bytes, _: bytes) -> bytes:
    one, other = draw.choice(
        (
            (b" ", b"\n"),
            (b"\r\n\t", b"  "),
            (b"\x0b", b"\x0c"),
            (b"\xc2\xa0", b""),
            (b"[", b"]"),
            (b'"', b'"'),
            (b"{", b"}"),
        )
    )
    return one + data + other


def _deep(draw: random.Random, data: bytes, _: bytes) -> bytes:
    depth = draw.choice((1, 2, 50, 497, 498, 499, 500, 995, 996, 997, 998, 999, 1000, 1001, 1002, 1300))
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    inner = opening * depth + b"1" + closing * (depth - draw.choice((0, 0, 0, 1)))
    return data[:-1] + b',"' + draw.choice(_KEYS).encode() + b'":' + inner + b"}"


def _long(draw: random.Random, data: bytes, _: bytes) -> bytes:
    size = draw.choice((300, 900, 4_000, 8_150, 8_192, 20_000, 99_900, 100_001))
    return data[:-1] + b',"s":"' + draw.choice((b"x", "é".encode(), b"\\n", b"}")) * size + b'"}'


def _noise(draw: random.Random, data: bytes, _: bytes) -> bytes:
    return draw.randbytes(draw.randrange(40))


_BYTES = [
    *b'{}[]":,\\0159 -+.eEtfnTZ/\t\n\x00\x1f\x7f',
    0x80,
    0xBF,
    0xC0,
    0xC3,
    0xE2,
    0xED,
    0xF0,
    0xF4,
    0xF5,
    0xFE,
    0xFF,
]
_JUNK = (
    b" ", b"\n", b"\x00", b"x", b"}", b"{", b"]", b"[", b",", b":", b'"', b"\\", b"{}", b"null", b"0", b"-", b"//", b"/**/", b"#", b"'",
    b"\xef\xbb\xbf", b"\xfe\xff", b"\xff", b"\xc3", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xc0\x80",
    b"\xe2\x80\xa8", b'"_end":true', b'"_record":', b',"i":7', b'"t":"2013-06-30T16:15:00.5Z",',
)  # fmt: skip
_EDITS: Sequence[Edit] = (
    *(_cut, _change, _change, _change, _insert, _insert, _insert, _drop, _drop, _splice, _behind, _behind),
    *(_before, _around, _around, _noise),
)
_FORGED = tuple(
    white + name + mark + rest
    for white in (b",", b" ,")
    for name in (b'"\\u0001":', b'"\x01":')
    for mark in (b"true", b'""', b"null")
    for rest in (b"}", b"} x}", b',"b":"')
)
_RARE: Sequence[Edit] = (_deep, _long)


def records(seed: int, number_: int, count: int, source: str) -> Iterator[bytes]:
    """Yield the values of a chunk."""
    draw = random.Random(f"{seed}-{number_}")  # noqa: S311 - a seeded draw, no secret
    kinds = {**_FIELDS, "e": "epoch", "x": "nested"}
    fine = [[f'"{name}":{good_value(draw, kind)}' for _ in range(POOL)] for name, kind in kinds.items()]
    wild = [[f'"{name}":{value_of(draw, kind)}' for _ in range(POOL)] for name, kind in kinds.items()]
    for (_, kind), pool in zip(kinds.items(), wild, strict=True):
        pool[: POOL // 20] = [f'"{draw.choice(_KEYS)}":{value_of(draw, kind)}' for _ in range(POOL // 20)]
        pool[POOL // 20 : POOL // 10] = [""] * (POOL // 10 - POOL // 20)
    dice = np.random.default_rng([seed, number_])
    chosen = [dice.integers(0, POOL, count).tolist() for _ in kinds]
    whole = dice.random(count)
    other = b"{}"
    for at, picks in enumerate(zip(*chosen, strict=True)):
        chance = whole[at]
        parts = [pool[pick] for pool, pick in zip(wild if at % 5 == 4 else fine, picks, strict=True)]
        if at % 5 == 3:  # one field or two
            for place in {at // 5 % len(wild), picks[0] % len(wild)}:
                parts[place] = wild[place][picks[1]]
        if chance < 0.1:  # a few fields, so that a damaged byte is often the only one
            parts = parts[at % 5 :: 5]
        if chance > 0.9:
            parts = [*parts, wild[at % len(wild)][picks[2]], fine[picks[3] % len(fine)][picks[4]]]
        separator = ", " if chance < 0.1 else ","
        body = "{" + separator.join(filter(None, parts)) + "}"
        if source == "change events" and at % 8:
            side = ("after", "before", "after", "payload")[at % 4]
            body = f'{{"op":"{"cudrx"[at % 5]}","{side}":{body},"ts_ms":{at * 1_000_003}}}'
        data = body.encode(errors="surrogatepass")
        if 0.5 < chance < 0.9:
            for _ in range(1 + (at % 7 == 0)):
                data = draw.choice(_EDITS)(draw, data, other)
        elif chance > 0.998:
            data = draw.choice(_RARE)(draw, data, other)
        other = data
        yield data


# Decoding, and what differs.


def write_raw(values: list[bytes], file: Path) -> None:
    """Write values in Kafka's columns, in four row groups."""
    count = len(values)
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "headers": pa.nulls(count, headers),
        "topic": pa.array(["t"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * count, pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), file, row_group_size=max(1, count // 4))


def sums(frame: DataFrame) -> DataFrame:
    """Return offset, reason and a hash of everything that a record was decoded as; null is not nothing, and -0.0 is not 0.0."""
    kept = [name for name in frame.columns if name not in product.HEAVY]
    doubles = [F.col(name).cast("string") for name, kind in frame.dtypes if kind == "double"]
    seen = [part for name in kept for part in (F.col(name).isNull(), F.col(name))]
    return frame.select("_offset", "_reason", F.xxhash64(*seen, *doubles).alias("sum"))


def hash_of(decoded: pa.Table) -> str:
    """Return a hash of rows of `sums`."""
    digest = hashlib.sha256()
    for row in zip(*(decoded[name].to_pylist() for name in decoded.column_names), strict=True):
        digest.update(repr(row).encode())
    return digest.hexdigest()[:16]


def differing(
    spark: SparkSession, values: list[bytes], source: Source, folder: Path
) -> tuple[list[int], pa.Table, str]:
    """Decode values both ways; return the places where they differ, the product's reasons with their counts, and a hash of its rows."""
    file = folder / "records.parquet"
    write_raw(values, file)
    raw = spark.read.parquet(str(file))
    fast, slow = (sums(frame).toArrow().sort_by("_offset") for frame in decoded_both_ways(raw, source))
    same = pc.and_(
        pc.equal(fast["sum"], slow["sum"]),
        pc.equal(pc.fill_null(fast["_reason"], ""), pc.fill_null(slow["_reason"], "")),
    )
    places = np.flatnonzero(~same.to_numpy()).tolist()
    assert fast["_offset"].equals(slow["_offset"])
    return places, fast.group_by("_reason").aggregate([("sum", "count")]), hash_of(fast)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Decode chunk after chunk both ways."""
    parser = argparse.ArgumentParser(prog="python -m lab.decode_fuzz", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first chunk")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="records of a chunk")
    arguments = parser.parse_args()
    total, found = 0, 0
    reasons: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="rivertwice-fuzz-") as name:
        settings = Settings(Settings.from_env().project, Path(name), spark_master="local[2]")
        spark = spark_session(settings, "decode-fuzz")

        def run() -> None:
            nonlocal total, found
            for chunk in range(arguments.first, arguments.first + -(-arguments.records // arguments.chunk)):
                kind = list(SOURCES)[chunk % len(SOURCES)]
                values = list(records(arguments.seed, chunk, arguments.chunk, kind))
                places, counts, digest = differing(spark, values, SOURCES[kind], Path(name))
                total, found = total + len(values), found + len(places)
                for row in counts.to_pylist():
                    reason = row["_reason"] or "accepted"
                    reasons[reason] = reasons.get(reason, 0) + row["sum_count"]
                say(f"chunk {chunk}, {kind}: {len(values):,} records, {len(places)} differ, decoded as {digest}")
                for at in places[:5]:
                    say(f"  {at}: {values[at][:300]!r}")

        cpu_s = own_cpu_s(run)
        spark.stop()
    say(f"{total:,} records, {found} differ, {cpu_s:.0f} CPU-s; {reasons}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
