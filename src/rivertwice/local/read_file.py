"""Read a sample of a file: JSON lines, CSV or Parquet. A file becomes the records of a topic by `pipelines/NAME/produce.py`."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from rivertwice.core import RequestError, Row, to_iso
from rivertwice.local.sample import RecordSample, SampleRecord, parse_object, with_zone

JSON_ENDINGS, CSV_ENDINGS, PARQUET_ENDINGS = (".jsonl", ".ndjson", ".json"), (".csv", ".tsv"), (".parquet",)
MOST_FIELD = 1_048_576
_INTEGER, _NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})\Z"), re.compile(r"-?(0|[1-9]\d{0,17})\.\d{1,18}\Z")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def field_name(column: str) -> str:
    """Return the field that a column of a file becomes: a-z, 0-9 and _."""
    name = re.sub(r"[^a-z0-9]+", "_", _WORD_START.sub("_", column.strip()).lower()).strip("_")[:64]
    return name if name[:1].isalpha() else f"c_{name}".rstrip("_")


def sample_file(path: Path, topic: str, most: int, zone: ZoneInfo | None = None) -> RecordSample:
    """Return a sample of the first `most` records of a file.

    Args:
        path: the file.
        topic: the topic that its records are for.
        most: records in the sample.
        zone: the zone of times that are written without one; None: such times stay texts.

    Raises:
        RequestError: the file is absent, of another kind, or has no record.
    """
    skipped: dict[str, int] = {}
    try:
        values = list(islice(file_values(path, skipped), most))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        message = f"{path} cannot be read ({error}); save it as UTF-8, or name another file"
        raise RequestError(message) from None
    if not values:
        reasons = (
            f" ({', '.join(f'{count} lines are {reason}' for reason, count in skipped.items())})" if skipped else ""
        )
        message = f"{path} has no records{reasons}; it must hold one JSON object a line, or rows of CSV or Parquet"
        raise RequestError(message)
    names = dict.fromkeys(name for value in values for name in value)
    renamed = {name: field_name(name) for name in names}
    twice = sorted({new for new in renamed.values() if list(renamed.values()).count(new) > 1})
    if twice:
        both = [name for name, new in renamed.items() if new == twice[0]]
        message = f"{path}: the columns {both} would both become the field {twice[0]!r}; rename one"
        raise RequestError(message)
    records = [SampleRecord(0, number, 0, None, None, as_fields(value, zone)) for number, value in enumerate(values)]
    changed = {name: new for name, new in renamed.items() if name != new}
    return RecordSample(f"file {path.name}", topic, 1, records, skipped, None, renamed=changed, is_file=True)


def as_fields(value: Mapping[str, Any], zone: ZoneInfo | None) -> Row:
    """Return a record of a file as the topic has it: fields of allowed names, and times with a zone."""
    return {field_name(name): with_zone(each, zone) if zone is not None else each for name, each in value.items()}


def file_values(path: Path, skipped: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a file, one after the other; lines that hold none are counted in `skipped`.

    Raises:
        RequestError: the file is absent, or of another kind.
    """
    if not path.is_file():
        message = f"{path} is not a file, so there is nothing to read; name one of JSON lines, CSV or Parquet"
        raise RequestError(message)
    ending = path.suffix.lower()
    if ending in JSON_ENDINGS:
        return _json_lines(path, skipped)
    if ending in CSV_ENDINGS:
        return _csv_rows(path, "\t" if ending == ".tsv" else ",")
    if ending in PARQUET_ENDINGS:
        return _parquet_rows(path)
    known = ", ".join((*JSON_ENDINGS, *CSV_ENDINGS, *PARQUET_ENDINGS))
    message = f"{path} ends with {ending or 'no ending'!r}, so its format is not known; files end with {known}"
    raise RequestError(message)


def _json_lines(path: Path, skipped: dict[str, int]) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if not line.strip():
                continue
            value = parse_object(line)
            if isinstance(value, str):
                skipped[value] = skipped.get(value, 0) + 1
                continue
            yield value


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(MOST_FIELD)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, delimiter=delimiter):
            yield {name: csv_value(text) for name, text in row.items() if isinstance(name, str)}


def csv_value(text: str | None) -> Any:
    """Return a cell of a CSV file as JSON would hold it: an empty one is null, `007` stays a text."""
    if text is None or not text:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if _INTEGER.match(text):
        return int(text)
    return Decimal(text) if _NUMBER.match(text) else text


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        batches: Iterable[pa.RecordBatch] = pq.ParquetFile(path).iter_batches(batch_size=1_000)
        for batch in batches:
            for row in batch.to_pylist():
                yield {name: _parquet_value(value) for name, value in row.items()}
    except pa.ArrowInvalid as error:
        message = f"{path} is not a Parquet file ({str(error).splitlines()[0]}); name another file"
        raise RequestError(message) from None


def _parquet_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value) if value.tzinfo is not None else value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return Decimal(str(value)) if value == value and abs(value) != float("inf") else None
    return str(value) if isinstance(value, bytes) else value
