"""Records that were once read for minutes, or taken although something follows their JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.decode_fuzz import write_raw
from rivertwice.definition.source import Source
from rivertwice.engine.decode import decode

pytestmark = pytest.mark.spark

SOURCE = Source.model_validate(
    {
        "topic": "t", "partitions": 1, "event_time": "t", "watermark": "10 s", "max_future": "10000000 days", "required": ["t"],
        "schema": {"t": "timestamp", "s": "string", "m": "decimal(10,2)", "deep": "decimal(38,10)"}, "paths": {"deep": "x.y.deep"},
    }
)  # fmt: skip
TIME = '"t":"2026-01-01T00:00:00Z"'
ENDLESS = (
    "1e999999999", "-1e-999999999", "0.5E+99999", "1e000099999", '"1e999999999"', '"+1E-999999999"', '"1\\u0065999999999"',
    '"1e\\u0039\\u0039\\u0039\\u0039\\u0039\\u0039\\u0039"', '"1e٩٩٩٩٩٩٩٩"', '"\\u0031e999999999"', '"' + "9" * 1_000 + '"',
)  # fmt: skip


def read(spark: SparkSession, folder: Path, *texts: str) -> list[str | None]:
    """Return the reason of each text, None where it is accepted."""
    write_raw([text.encode() for text in texts], folder / "records.parquet")
    rows = decode(spark.read.parquet(str(folder / "records.parquet")), SOURCE).sort("_offset").collect()
    return [row["_reason"] for row in rows]


def test_a_decimal_with_a_huge_exponent_is_refused_however_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    fields = [f'"m":{each}' for each in ENDLESS]
    fields += [f'"\\u006d" : {each}' for each in ENDLESS]
    fields += [f'"x":{{"y":{{"deep"\n:\t{each}}}}}' for each in ENDLESS]
    fields += [f'"x":{{"y":{{"d\\u0065\\u0065p":{each}}}}}' for each in ENDLESS]
    fields += [f'"m":{each},"m":1' for each in ENDLESS]
    assert read(spark, tmp_path, *(f"{{{TIME},{each}}}" for each in fields)) == ["schema"] * len(fields)


def test_what_only_looks_like_a_huge_exponent_is_read(spark: SparkSession, tmp_path: Path) -> None:
    fine = [
        '"m":1e4', '"m":"1e2"', '"m":1e0000002', '"m":1.5E-9999', '"m":0e0', '"m":1,"s":"1e999999999"', '"m":1,"s":"\\"m\\":1e999999999"',
        '"m":1,"id":"7f9e12345678"', '"m":1,"other":1e999999999', '"x":{"m":"free 1e99999"}', '"\\u00e9":1e3,"m":2', '"s":"\\u0041"',
    ]  # fmt: skip
    assert read(spark, tmp_path, *(f"{{{TIME},{each}}}" for each in fine)) == [None] * len(fine)


@pytest.mark.parametrize("size", [900_000])
def test_a_long_text_costs_time_that_is_linear_in_its_length(spark: SparkSession, tmp_path: Path, size: int) -> None:
    parts = ('"m":', '\\"', "\\u0041", '"', "\\\\", '"m":"', "1", " ", '"m":1e', "\\u0031", '"m" ')
    texts = [f'{{{TIME},"s":"' + part * (size // len(part)) + '"}' for part in parts]
    reasons = read(spark, tmp_path, *texts)
    assert len(reasons) == len(parts)
    assert reasons[1:3] == [None, None]


@pytest.mark.parametrize(
    "rest",
    [
        ' ,"\\u0001":""} x}',
        ' ,"\x01":""} x}',
        ',"\\u0001":"","b":{}',
        ',"b":{}',
        ',"_record":{"t":"2026-01-02T00:00:00Z"}',
        ' ,"\\u0001":"' + "0" * 64 + '"} {}',
        "}",
        " {}",
    ],
)
def test_a_text_cannot_hide_what_follows_its_json(spark: SparkSession, tmp_path: Path, rest: str) -> None:
    assert read(spark, tmp_path, f"{{{TIME}}}{rest}", f"{{{TIME}}}") == ["json", None]


def test_a_text_cannot_hide_what_follows_its_json_in_the_object(spark: SparkSession, tmp_path: Path) -> None:
    hidden = [
        f'{{{TIME},"\\u0001":""}} x}}',
        f'{{{TIME},"\x01":""}} x}}',
        "{} x}",
        '{"\\u0001":""} x}',
    ]
    assert read(spark, tmp_path, *hidden) == ["json"] * len(hidden)


def test_a_record_may_have_a_field_with_the_name_of_the_mark(spark: SparkSession, tmp_path: Path) -> None:
    fine = [
        f'{{{TIME},"\\u0001":true}}',
        f'{{{TIME},"s":"\\u0001"}}',
        f'{{"\\u0001":{{"\\u0001":""}},{TIME}}}',
    ]
    assert read(spark, tmp_path, *fine) == [None] * 3


def test_an_object_without_fields_is_json(spark: SparkSession, tmp_path: Path) -> None:
    assert read(spark, tmp_path, "{}", " { \n } ", "{ }", "{,}", "{") == [
        "missing",
        "missing",
        "missing",
        "json",
        "json",
    ]
