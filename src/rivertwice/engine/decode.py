"""Turn Kafka records (JSON, Avro, Protobuf) into typed rows, or into a reason for refusal. No expression can throw.

Expressions run in the JVM; Protobuf and some patterns use Python functions.

JSON is read strictly: one object, double quotes, no NaN, timestamps as ISO 8601 with a zone. Three leniencies of
Spark's parser remain, the same in a stream and in a recompute: the last value of a repeated key wins, a `string` field
takes the JSON text of a number, boolean, array or object, and a number with more digits after the point than its decimal type
is rounded, unless the source says `decimals: exact`.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.pandas import functions as pandas_functions
from pyspark.sql.pandas.types import from_arrow_schema

from rivertwice.core import SparkVersion
from rivertwice.definition import (
    DETAIL,
    JAVA_ENGINE,
    MICROS,
    MOST_DIGITS,
    REASON,
    TIMESTAMP,
    AvroSchema,
    InSet,
    NotNull,
    Pattern,
    PatternError,
    ProtoReader,
    Range,
    RecordRule,
    Source,
    decimal_digits,
    epoch_bounds,
    match_whole,
    matcher_of,
)
from rivertwice.engine.envelope import (
    Case,
    carries,
    change_time,
    envelope_cases,
    envelope_schema,
    field_text,
    framing_cases,
    image,
    is_delete,
    open_envelope,
    payload,
    with_deletes,
)
from rivertwice.engine.row_errors import NO_CHECKS, RowChecks

# Avro values to typed columns: each record by its own writer's schema, resolved into the pinned reader's.
#
# Spark's `from_avro` gives NULL for bytes it cannot read. But it ignores bytes after a record, and may read a truncated
# record together with the bytes that follow. So every value is read inside a frame: the record, then its length in eight
# bytes. Only a record that ends exactly at the end of the value is followed by its own length.

_END = {"type": "fixed", "name": "rivertwice_end", "size": 8}
_FRAME = "rivertwice_frame"
# The same years that a timestamp in JSON may have: no offset can carry one out of 0001 to 9999.
_FIRST, _LAST = "0002-01-01T00:00:00Z", "9999-01-01T00:00:00Z"


def avro_columns(records: DataFrame, source: Source, fits: Column) -> DataFrame:
    """Return `records` with the source's fields, NULL where a record cannot be read, and `_end`."""
    inner = records.withColumn("_inner", F.when(fits, payload(source)))
    parsed = inner.withColumn("_parsed", _parsed(source))
    fields = source.schema_.items()
    return parsed.select(
        *records.columns,
        F.octet_length("_inner").alias("_inner_bytes"),
        F.col("_parsed.end").alias("_end"),
        _named({name: ~F.is_valid_utf8(_raw(name)) for name, kind in fields if kind == "string"}).alias("_no_text"),
        _named({name: _beyond(_raw(name), kind) for name, kind in fields}).alias("_beyond"),
        *(_typed_avro(name, kind) for name, kind in fields),
    )


def avro_cases(source: Source) -> list[Case]:
    """Return the reasons that only Avro records have, in the order they are judged."""
    whole = F.coalesce(F.col("_end") == _length(F.col("_inner_bytes")), F.lit(False))
    return [
        *framing_cases(source, source.pins.writers),
        (~whole, "avro", F.lit("the value is not one record of its schema")),
        (F.col("_no_text") != "", "utf8", F.concat(F.col("_no_text"), F.lit(" is not UTF-8"))),
        (F.col("_beyond") != "", "schema", F.concat(F.col("_beyond"), F.lit(" is beyond what its type can hold"))),
    ]


def _raw(name: str) -> Column:
    return F.col("_parsed.value").getField(name)


def _typed_avro(name: str, kind: str) -> Column:
    # Avro accepts any bytes as text; bytes that are not UTF-8 must not reach Arrow, not even in a refused row.
    return (F.try_validate_utf8(_raw(name)) if kind == "string" else _raw(name).try_cast(kind)).alias(name)


def _beyond(value: Column, kind: str) -> Column:
    if kind == "double":
        return F.isnan(value) | (F.abs(value) == float("inf"))
    if kind == "timestamp":
        return (value < F.lit(_FIRST).cast("timestamp")) | (value >= F.lit(_LAST).cast("timestamp"))
    return value.isNotNull() & value.try_cast(kind).isNull() if kind.startswith("decimal") else F.lit(False)


def _parsed(source: Source) -> Column:
    pins = source.pins
    reader = pins.reader.wide_decimals()
    framed = F.concat(F.col("_inner"), _length(F.octet_length("_inner")))
    if not pins.writers:
        return _resolved(framed, pins.writer, reader)
    cases = F
    for schema_id, writer in sorted(pins.writers.items()):
        cases = cases.when(carries(schema_id), _resolved(framed, writer, reader))  # type: ignore[assignment]
    return cases  # type: ignore[return-value]


def _resolved(data: Column, writer: AvroSchema, reader: AvroSchema) -> Column:
    return from_avro(
        data, _frame(writer), {"avroSchema": _frame(reader), "mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
    )


def _frame(schema: AvroSchema) -> str:
    fields = [{"name": "value", "type": json.loads(schema.text)}, {"name": "end", "type": _END}]
    return json.dumps({"type": "record", "name": _FRAME, "fields": fields})


def _length(count: Column) -> Column:
    return F.unhex(F.lpad(F.hex(count.cast("bigint")), 16, "0"))


def _named(conditions: dict[str, Column]) -> Column:
    """Return the names whose condition holds, as text; a condition that is NULL does not hold."""
    return F.concat_ws(", ", *(F.when(condition, F.lit(name)) for name, condition in conditions.items()))


# Protobuf values to typed columns. Spark has no expression for them here, so Google's reader runs in a Python worker on Arrow batches.
#
# The same function decodes in a stream and in a recompute. It sees only a record's bytes, so place and time of the run do not matter.

PROTOBUF_REASONS = ("framing", "protobuf", "utf8", "schema")


def _by_arrow(function: Callable[[pa.Array], pa.Array], kind: str, given: pa.DataType) -> Callable[[Column], Column]:
    """Return a function of columns that Python computes on whole Arrow columns, a batch at a time.

    Where Spark has no such functions, columns of pandas that hold the same Arrow values do it.

    Args:
        kind: type of the result, as SQL writes it.
        given: type of the column that it is passed.
    """
    functions: Any = pandas_functions  # the annotations of its overloads ask for what has a default
    if SparkVersion.installed().has("arrow columns"):
        return cast("Callable[[Column], Column]", functions.arrow_udf(function, kind))
    import pandas as pd

    def compute(values: Any) -> Any:
        result = function(pa.array(values, given, from_pandas=True))
        if not pa.types.is_struct(result.type):
            return result.to_pandas(types_mapper=pd.ArrowDtype)
        names = [field.name for field in result.type]
        return pa.table(result.flatten(), names).to_pandas(types_mapper=pd.ArrowDtype)

    # Spark reads here whether the result is a struct; the annotations of this module are texts.
    compute.__annotations__ = {"values": pd.Series, "return": pd.DataFrame if kind.startswith("struct") else pd.Series}
    return cast("Callable[[Column], Column]", functions.pandas_udf(compute, kind))


def proto_columns(records: DataFrame, source: Source, fits: Column) -> DataFrame:
    """Return `records` with the source's fields, NULL where a record cannot be read, and why it cannot."""
    reader = ProtoReader(source.message_type, source.schema_, source.framing == "confluent")
    kind = from_arrow_schema(pa.schema(list(reader.arrow_type))).simpleString()

    def read(values: pa.Array) -> pa.Array:
        return reader.read(values.to_pylist())

    parsed = records.withColumn("_parsed", _by_arrow(read, kind, pa.binary())(F.when(fits, payload(source))))
    fields = [F.col("_parsed").getField(name).alias(name) for name in (*source.schema_, REASON, DETAIL)]
    return parsed.select(*records.columns, *fields)


def proto_cases(source: Source) -> list[Case]:
    """Return the reasons that only Protobuf records have, in the order they are judged."""
    ids = [int(each) for each in source.schema_ids] if source.framing == "confluent" else []
    why = [(F.coalesce(F.col(REASON) == reason, F.lit(False)), reason, F.col(DETAIL)) for reason in PROTOBUF_REASONS]
    return [*framing_cases(source, ids), *why]


REASONS = (
    "tombstone",
    "empty",
    "size",
    "framing",
    "utf8",
    "schema_id",
    "json",
    "envelope",
    "avro",
    "protobuf",
    "schema",
    "missing",
    "rule",
    "future",
    "transform",
)
ADDRESS = ("_partition", "_offset", "_record_time")
HASH = "_hash"
"""Column with a hash of the record's address, timestamp, key and value."""
HEAVY = ("_key", "_value", "_headers")
DEAD_COLUMNS = ("_reason", "_detail", *HEAVY)
SCHEMA_ID_HEADER = "schema-id"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "not read",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "allowComments": "false",
    "allowUnquotedFieldNames": "false",
}
# from_json stops after the first value. So a last field is put into the object; it is read only if nothing follows the object.
_TAIL = "\x01"  # in JSON only as a code, and no name of a field can have it
_TAIL_CODE = "\\u0001"
_UNREAD = "{}"
_TOO_LONG = "a decimal has an exponent of five digits or more, or a thousand digits in quotes"


def decode(
    raw: DataFrame,
    source: Source,
    checks: RowChecks = NO_CHECKS,
    *,
    details: bool = True,
    hashed: bool = False,
    beside: Sequence[str] = (),
) -> DataFrame:
    """Return one row per record: the schema's fields, the address, and `_reason` (NULL: accepted) with `_detail`.

    Args:
        raw: Kafka's columns key, value, topic, partition, offset, timestamp, and headers if the source reads them (`reads_headers`).
        checks: on which records the SQL throws (`compile.decode_view` knows them).
        details: whether to compute `_detail`; a stream that only counts reasons plans each batch again, and a smaller plan sooner.
        hashed: whether to compute `HASH`.
        beside: further columns of `raw` that the rows keep.
    """
    headers = F.col("headers") if "headers" in raw.columns else F.lit(None)
    records = raw.select(
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_record_time"),
        F.col("key").alias("_key"),
        F.col("value").alias("_value"),
        headers.cast(HEADERS_TYPE).alias("_headers"),
        *beside,
    )
    fits = F.octet_length("_value") <= F.lit(source.max_record_bytes)
    if source.format == "avro":
        typed, broken = avro_columns(records, source, fits), [*_schema_id_case(source), *avro_cases(source)]
    elif source.format == "protobuf":
        typed, broken = proto_columns(records, source, fits), [*_schema_id_case(source), *proto_cases(source)]
    else:
        typed, broken = _json_columns(records, source, fits), _json_cases(source)
    if source.tombstones == "delete":
        typed = with_deletes(typed, source)
    cases = _cases(source, fits, broken, checks)
    judged = typed.withColumn("_case", _first_case(source, cases))
    fields = [*source.schema_, *source.marks]
    return judged.select(
        *(_if_accepted(name) if checks.ways else F.col(name) for name in fields),
        *ADDRESS,
        _reason(cases).alias("_reason"),
        *([_detail(cases).alias("_detail")] if details else []),
        *([F.xxhash64(*ADDRESS, "_key", "_value").alias(HASH)] if hashed else []),
        *HEAVY,
        *beside,
    )


def _if_accepted(name: str) -> Column:
    """Return a field that is NULL in a rejected record.

    Spark may evaluate a condition of the SQL before the filter that leaves rejected records out; it throws on what it throws on.
    """
    return F.when(F.col("_case").isNull(), F.col(name)).alias(name)


def _json_columns(records: DataFrame, source: Source, fits: Column) -> DataFrame:
    texts = records.withColumn("_text", F.when(fits, F.try_validate_utf8(payload(source).cast("string"))))
    # A column, because Spark interprets what `from_json` has as an argument. It is read again by a case: Spark would move what is read
    # once into the argument.
    marked = texts.withColumn("_mark", _mark()).withColumn("_marked", _marked(source))
    parsed = marked.withColumn("_parsed", F.from_json("_marked", _parse_schema(source), _OPTIONS))
    if source.envelope == "debezium":
        parsed = open_envelope(parsed)
    return parsed.select(*parsed.columns, *(_typed(source, name, kind) for name, kind in source.schema_.items()))


def _marked(source: Source) -> Column:
    """Return the text with `_TAIL` as its last field; no JSON where it is not one object."""
    text = F.col("_text")
    data = text.cast("binary")
    # A text without white space around it, as nearly all are, is not searched by an expression.
    is_object = text.startswith("{") | text.rlike(r"\A\s*+\{")
    body = F.when(text.endswith("}"), F.substring(data, F.lit(1), F.octet_length(data) - 1).cast("string")).otherwise(
        F.regexp_extract(text, r"(?s)\A(.*)\}\s*\z", 1)
    )
    is_empty = ~text.contains('"') & text.rlike(r"\A\s*+\{\s*+\}\s*+\z")
    whole = F.concat(body, F.when(is_empty, '"').otherwise(',"'), F.lit(_TAIL_CODE + '":"'), "_mark", F.lit('"}'))
    stalls = _stalls(source)
    object_ = whole if stalls is None else F.when(stalls, _UNREAD).otherwise(whole)
    return F.when(text.isNotNull(), F.when(is_object, object_).otherwise(""))


def _mark() -> Column:
    """Return what `_TAIL` has. A text that could have this field itself gets a value that it cannot know, its own hash."""
    return F.when(F.col("_text").contains(_TAIL_CODE), F.sha2("_text", 256)).otherwise("")


def _decimal_keys(source: Source) -> set[str]:
    """Return the keys under which JSON has decimals."""
    return {source.parts_of(name)[-1] for name, kind in source.schema_.items() if kind.startswith("decimal")}


def _stalls(source: Source) -> Column | None:
    """Return whether a decimal has a power of five digits or more, or a thousand digits in quotes; None for a source without decimals.

    Spark would write such a number out, digit by digit, before it looks at its type: for minutes, with 400 MB of memory (tried on 4.2).
    The patterns look for the key of a decimal and its value; they take time that is linear in the text, and no stack (all repeats are
    possessive). There is one for each name, since Java skips through a text only for a pattern that begins with the same signs.
    """
    names = _decimal_keys(source)
    if not names:
        return None
    code = r"\\u[0-9A-Fa-f]{4}"  # a key and a text in quotes may have any sign as its code
    before = r"(?:[\p{Nd}.+-]|\\u(?!00[46]5)[0-9A-Fa-f]{4})"
    in_quotes = rf'"{before}*+(?:[eE]|\\u00[46]5)(?:[\p{{Nd}}+-]|{code}){{5}}'
    value = rf'\s*+:\s*+(?:-?+[0-9.]++[eE][+-]?+0*+[0-9]{{5}}|{in_quotes}|"{before}{{1000}})'
    coded = rf'{code}(?:[^"\\]|{code}){{0,{max(map(len, names))}}}+"{value}'
    text = F.col("_text")
    plain = (text.rlike(rf'"\Q{name}\E"{value}') for name in sorted(names))
    return functools.reduce(operator.or_, plain, text.contains("\\u00") & text.rlike(coded))


def _json_cases(source: Source) -> list[Case]:
    framed = [int(each) for each in source.schema_ids] if source.framing == "confluent" else []
    return [
        *framing_cases(source, framed),
        (F.col("_marked").isNull(), "utf8", F.lit("the value is not UTF-8")),
        *_schema_id_case(source),
        *([(F.col("_marked") == _UNREAD, "schema", F.lit(_TOO_LONG))] if _decimal_keys(source) else []),
        (_is_not_whole(), "json", F.lit("the value is not one JSON object")),
        *(envelope_cases() if source.envelope == "debezium" else []),
        (_wrong_type(source), "schema", _wrong_fields(source)),
    ]


def _parse_schema(source: Source) -> str:
    # Timestamps are parsed as text: from_json would also take numbers and Spark's own formats.
    # Exact decimals are parsed with all digits that there is room for; as text they would pass through a double.
    kinds = {
        **source.schema_,
        **dict.fromkeys(source.epochs, "bigint"),
        **{name: _wide_decimal(source.schema_[name]) for name in source.exact_decimals},
    }
    fields = source.nested_type({name: "string" if kind == "timestamp" else kind for name, kind in kinds.items()})
    record_fields = envelope_schema(fields) if source.envelope == "debezium" else fields
    return f"struct<{record_fields}, `{_TAIL}`: string, `{_OPTIONS['columnNameOfCorruptRecord']}`: string>"


def _parsed_value(source: Source, name: str) -> Column:
    return functools.reduce(Column.getField, source.parts_of(name), image(source))


def _typed(source: Source, name: str, kind: str) -> Column:
    value = _parsed_value(source, name)
    if name in source.exact_decimals:
        return _exact_decimal(value, kind, _json_text(source, name)).alias(name)
    if name in source.epochs:
        value = _since_1970(value, source.epochs[name])
    elif kind == "timestamp":
        value = F.when(is_plain_instant(value) | value.rlike(TIMESTAMP), F.try_to_timestamp(value))
    if source.envelope == "debezium" and name == source.event_time:
        value = change_time(value, source)
    return value.alias(name)


def _exact_decimal(wide: Column, kind: str, text: Column) -> Column:
    """Return a number that was read with all digits that Spark has room for as its decimal type; NULL if that does not hold all of them.

    The text tells a zero from a number that is too small for any of these digits.
    """
    narrow = wide.try_cast(kind)
    is_seen = (narrow != 0) | (text.try_cast("double") == 0)
    return F.when((narrow == wide) & is_seen, narrow)


def _json_text(source: Source, name: str) -> Column:
    """Return a field as text, NULL if the record has none; a number passes through a double."""
    return field_text(name) if source.envelope == "debezium" else F.get_json_object("_text", source.json_path(name))


def _wide_decimal(kind: str) -> str:
    """Return the decimal type with the same digits before the point, and as many after it as there is room for."""
    precision, scale = decimal_digits(kind)
    return f"decimal({MOST_DIGITS},{MOST_DIGITS - (precision - scale)})"


def _since_1970(number: Column, unit: str) -> Column:
    # A number outside the years that a text may name is null, and so another type; within them nothing overflows.
    first, end = epoch_bounds(unit)
    return F.when((number >= first) & (number < end), F.timestamp_micros(number * F.lit(MICROS[unit])))


def is_plain_instant(text: Column) -> Column:
    """Return whether a text has the form of nearly all instants, `2013-06-30T04:00:00Z` or with up to six digits after a point.

    TIMESTAMP decides all others; this costs a quarter of it. Of the digits only the last is looked at: Spark's parser refuses
    anything else between these signs (read in its `parseTimestampString`), except the name of a zone, and none ends with a digit and Z.
    """
    signs = [_has(text, place, sign) for place, sign in ((5, "-"), (8, "-"), (11, "T"), (14, ":"), (17, ":"))]
    size = F.octet_length(text)
    last_digit = F.substring(text.cast("binary"), size - 1, 1)
    return functools.reduce(
        operator.and_,
        [
            (size == 20) | (size.between(22, 27) & _has(text, 20, ".")),
            *signs,
            text.endswith("Z"),
            last_digit.between(F.lit(bytearray(b"0")), F.lit(bytearray(b"9"))),
            text >= "0002",
            text < "9999",
        ],
    )


def _has(text: Column, place: int, sign: str) -> Column:
    # Of bytes: in a text Spark counts characters from its begin, and copies it to do so.
    return F.substring(text.cast("binary"), place, 1) == F.lit(bytearray(sign.encode()))


def _cases(source: Source, fits: Column, broken: list[Case], checks: RowChecks) -> list[Case]:
    return [
        (F.col("_value").isNull(), "tombstone", F.lit("the record has no value")),
        (F.octet_length("_value") == 0, "empty", F.lit("the value has no bytes")),
        (~fits, "size", F.concat(F.octet_length("_value").cast("string"), F.lit(" bytes"))),
        *broken,
        _missing_case(source),
        *((_breaks(rule), "rule", F.lit(rule.name)) for rule in source.rules),
        (_is_future(source), "future", _ahead(source)),
        *([(checks.throws(), "transform", checks.detail())] if checks.ways else []),
    ]


def _first_case(source: Source, cases: list[Case]) -> Column:
    """Return the index of the first case that fits, NULL if none does.

    A number and not the verdict itself: a stream needs no detail, and what nothing uses is then not compiled.
    """
    first: Any = F
    if source.tombstones == "delete":
        first = F.when(is_delete(source), F.lit(None))
    for index, (condition, _, _) in enumerate(cases):
        first = first.when(condition, F.lit(index))
    return cast(Column, first)


def _reason(cases: list[Case]) -> Column:
    return F.get(F.array(*(F.lit(reason) for _, reason, _ in cases)), F.col("_case"))


def _detail(cases: list[Case]) -> Column:
    found: Any = F
    for index, (_, _, detail) in enumerate(cases):
        found = found.when(F.col("_case") == index, detail)
    return cast(Column, found)


def _schema_id_case(source: Source) -> list[Case]:
    if not source.reads_headers:
        return []
    schema_id = last_header(SCHEMA_ID_HEADER).cast("string")
    absent = schema_id.isNull() if not source.schema_id_optional else F.lit(False)
    unknown = F.coalesce(~schema_id.isin(source.schema_ids), F.lit(False))
    detail = F.coalesce(F.substring(F.make_valid_utf8(schema_id), 1, 100), F.lit("no header schema-id"))
    return [(absent | unknown, "schema_id", detail)]


def last_header(key: str) -> Column:
    """Return the value of the last header with this key; NULL if there is none.

    Spark compiles this. With a lambda function (`filter`) it would interpret the lambda, and compile nothing of the
    projection that has it.
    """
    from_end = F.array_position(F.reverse(F.col("_headers.key")), key)  # 1 is the last header, 0 is none
    return F.get("_headers", F.when(from_end > 0, F.size("_headers") - from_end).cast("int"))["value"]


def _is_not_whole() -> Column:
    # A wrong type leaves the rest of the object readable, so the mark is missing only after an error of syntax.
    return ~F.col("_parsed").getField(_TAIL).eqNullSafe(F.col("_mark"))


def _wrong_type(source: Source) -> Column:
    parts = [F.col("_parsed").getField(_OPTIONS["columnNameOfCorruptRecord"]).isNotNull()]
    for name, kind in source.schema_.items():
        if kind == "timestamp" or name in source.exact_decimals:
            parts.append(_parsed_value(source, name).isNotNull() & F.col(name).isNull())
        if kind == "double":
            parts.append(F.coalesce(F.isnan(name) | (F.abs(name) == float("inf")), F.lit(False)))
    return functools.reduce(operator.or_, parts)


def _wrong_fields(source: Source) -> Column:
    names = []
    for name, kind in source.schema_.items():
        wrong = F.col(name).isNull() & _json_text(source, name).isNotNull()
        if len(source.parts_of(name)) > 1:
            outer = F.get_json_object("_text", f"$['{source.parts_of(name)[0]}']")
            wrong = wrong | (F.col(name).isNull() & outer.isNotNull() & ~outer.startswith("{"))
        if kind == "double":
            wrong = wrong | F.isnan(name) | (F.abs(name) == float("inf"))
        names.append(F.when(wrong, F.lit(f"{name} is no {kind}")))
    return F.concat_ws(", ", *names)


def _missing_case(source: Source) -> Case:
    required = source.required_fields
    condition = functools.reduce(operator.or_, (F.col(name).isNull() for name in required))
    return condition, "missing", F.concat_ws(", ", *(F.when(F.col(name).isNull(), F.lit(name)) for name in required))


def _breaks(rule: RecordRule) -> Column:
    value = F.col(rule.field)
    if isinstance(rule, NotNull):
        return value.isNull()
    if isinstance(rule, InSet):
        return ~value.isin(rule.values)
    if isinstance(rule, Pattern):
        return ~_matches(rule.pattern, value)
    return _outside(rule, value)


def _matches(pattern: str, value: Column) -> Column:
    """Return whether the whole value matches, by an engine that cannot fail on any value (`patterns`)."""
    try:
        matcher = matcher_of(pattern)
    except PatternError:  # in a bundle that ran before such patterns were refused; its meaning must not change
        return value.rlike(rf"\A(?:{pattern})\z")
    if matcher.engine == JAVA_ENGINE:
        return value.rlike(matcher.text)

    def match(values: pa.Array) -> pa.Array:
        return match_whole(values, matcher.text)

    return _by_arrow(match, "boolean", pa.string())(value)


def _outside(rule: Range, value: Column) -> Column:
    below = value < rule.min if rule.min is not None else F.lit(False)
    above = value > rule.max if rule.max is not None else F.lit(False)
    return below | above


def _is_future(source: Source) -> Column:
    ahead = F.unix_micros(source.event_time) - F.unix_micros("_record_time")
    return ahead > F.lit(int(source.max_future.total_seconds() * 1_000_000))


def _ahead(source: Source) -> Column:
    seconds = F.unix_seconds(source.event_time) - F.unix_seconds("_record_time")
    return F.concat(seconds.cast("string"), F.lit(" s after the record's timestamp"))
