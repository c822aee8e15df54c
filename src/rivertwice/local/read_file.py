"""Read files as people have them: CSV of any dialect, JSON lines, a JSON array, Parquet; packed or not.

How a file is written is sniffed from its content, never from its name alone, and each part can be said instead. A line that holds
no record is named by its number, so that a file is sent whole or not at all.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zoneinfo import ZoneInfo

from rivertwice.core import RequestError, Row, did_you_mean, to_iso
from rivertwice.local.sample import RecordSample, SampleRecord, parse_object, with_zone

CSV, JSON_LINES, JSON_ARRAY, PARQUET = "CSV", "JSON lines", "a JSON array", "Parquet"
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
MOST_FIELD = 1_048_576
SNIFFED_BYTES = 262_144
"""Bytes that are looked at in the beginning, in the middle and at the end of a file."""
EVEN_LINES = 0.6
"""Share of the lines that must have as many fields as the first, for a character to be what divides them."""
NAMED_LINES = 5
"""Broken lines that a message names; the others are counted."""
_AT_ONCE = 1 << 20
"""Bytes that are read at once."""
_SMALL_GAP = 4_096
"""Bytes between two columns of a Parquet file, or before the first, that are read for its digest although nobody asks for them."""
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_SIGNS = "€$£¥₹₽₩₺"
_MONEY = re.compile(
    rf"(?:(?P<before>[{_SIGNS}]|[A-Z]{{3}}) ?)?(?P<figure>-?[\d.,'\u00a0\u202f ]*\d)(?: ?(?P<after>[{_SIGNS}]|[A-Z]{{3}}))?\Z"
)
_INTEGER, _FRACTION = re.compile(r"-?(0|[1-9]\d{0,17})\Z"), re.compile(r"-?(0|[1-9]\d{0,17})\.\d{1,18}\Z")
_GROUPS = {
    ".": re.compile(r"-?[1-9]\d{0,2}([,'\u00a0\u202f ]\d{3})+(\.\d{1,18})?\Z"),
    ",": re.compile(r"-?[1-9]\d{0,2}([.'\u00a0\u202f ]\d{3})+(,\d{1,18})?\Z"),
}
_DAY = re.compile(
    r"(?P<a>\d{1,2})(?P<sep>[./-])(?P<b>\d{1,2})(?P=sep)(?P<year>\d{4}|\d{2})(?P<rest>[ T,]+\d{1,2}:\d{2}(?P<second>:\d{2})?(?: ?(?P<half>[AaPp][Mm]))?)?\Z"
)
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class FileFormat:
    """How a file is written.

    Attributes:
        kind: `CSV`, `JSON lines`, `a JSON array` or `Parquet`.
        packed: `gzip`, `zstd` or `bz2`; None: it is not.
        encoding: of its text, as Python names it.
        delimiter: of CSV.
        decimal: what stands before the decimals of a number, `.` or `,`.
        time_format: of times in another form than ISO 8601, as `strptime` has it; None: there are none.
        money: column of CSV to the sign or currency code that its figures carry and that is left out.
        notes: what is not certain, one sentence each, with what to say instead.
    """

    kind: str
    packed: str | None = None
    encoding: str = "utf-8-sig"
    delimiter: str = ","
    decimal: str = "."
    time_format: str | None = None
    money: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say how the file is read, in one line."""
        parts = [f"{self.kind}{f', packed with {self.packed}' if self.packed else ''}"]
        if self.kind != PARQUET:
            parts.append({"utf-8-sig": "UTF-8"}.get(self.encoding, self.encoding))
        if self.kind == CSV:
            parts.append(f"delimiter {DELIMITERS.get(self.delimiter, repr(self.delimiter))}")
            parts += ["decimal comma"] if self.decimal == "," else []
            parts += [f"{column} in {sign}" for column, sign in (self.money or {}).items()]
        return ", ".join([*parts, *([f"times as {self.time_format}"] if self.time_format else [])])


@dataclass(frozen=True)
class FileOptions:
    """What a person says about a file instead of what would be sniffed; None: it is sniffed.

    Attributes:
        zone: of times that are written without one; None: such times stay texts.
    """

    delimiter: str | None = None
    decimal: str | None = None
    time_format: str | None = None
    encoding: str | None = None
    zone: ZoneInfo | None = None

    def words(self) -> list[str]:
        """The options of a command line that say the same."""
        said = {
            "--delimiter": self.delimiter,
            "--decimal": self.decimal,
            "--time-format": self.time_format,
            "--encoding": self.encoding,
        }
        named = [part for option, value in said.items() if value is not None for part in (option, value)]
        return [*named, *(["--zone", self.zone.key] if self.zone is not None else [])]


@dataclass(frozen=True)
class FileLine:
    """A record of a file, or why a line of it holds none.

    Attributes:
        line: number of the line it begins in, from 1; for an array and Parquet, number of the record.
        broken: what is wrong with it; None: nothing is.
    """

    line: int
    value: Mapping[str, Any]
    broken: str | None = None


def field_name(column: str) -> str:
    """Return the field that a column of a file becomes: a-z, 0-9 and _."""
    name = re.sub(r"[^a-z0-9]+", "_", _WORD_START.sub("_", column.strip()).lower()).strip("_")[:64]
    return name if name[:1].isalpha() else f"c_{name}".rstrip("_")


def sample_file(path: Path, topic: str, most: int, said: FileOptions | None = None) -> RecordSample:
    """Return a sample of a file, from its beginning, middle and end.

    Args:
        most: records in the sample.
        said: what is not to be sniffed.

    Raises:
        RequestError: the file is absent, of another kind, or has no record.
    """
    said = said or FileOptions()
    shape = sniff(path, said)
    sampled = _sampled(path, shape, most)
    broken = [each for each in sampled if each[1].broken is not None]
    kept = [each for each in sampled if each[1].broken is None]
    if not kept:
        message = f"{path} has no records{f' ({describe_broken([each for _, each in broken])})' if broken else ''}; it must hold JSON objects, or rows of CSV or Parquet"
        raise RequestError(message)
    names = dict.fromkeys(name for _, record in kept for name in record.value)
    renamed = {name: field_name(name) for name in names}
    twice = sorted({new for new in renamed.values() if list(renamed.values()).count(new) > 1})
    if twice:
        both = [name for name, new in renamed.items() if new == twice[0]]
        message = f"{path}: the columns {both} would both become the field {twice[0]!r}; rename one"
        raise RequestError(message)
    records = [
        SampleRecord(0, number, stretch, None, None, as_fields(record.value, said.zone, shape.time_format))
        for number, (stretch, record) in enumerate(kept)
    ]
    skipped = {describe_broken([each for _, each in broken]): len(broken)} if broken else {}
    changed = {name: new for name, new in renamed.items() if name != new}
    read_as = (shape.describe(), *shape.notes)
    return RecordSample(
        f"file {path.name}",
        topic,
        1,
        records,
        skipped,
        renamed=changed,
        is_file=True,
        read_as=read_as,
        said=said.words(),
    )


def describe_broken(lines: Sequence[FileLine]) -> str:
    """Name the lines that hold no record: `line 7: not valid JSON; lines 9 and 12: ...`."""
    by_reason: dict[str, list[int]] = {}
    for each in lines:
        by_reason.setdefault(str(each.broken), []).append(each.line)
    return "; ".join(f"{_lines(numbers)}: {reason}" for reason, numbers in by_reason.items())


def _lines(numbers: Sequence[int]) -> str:
    named = ", ".join(f"{number:,}" for number in numbers[:NAMED_LINES])
    more = len(numbers) - NAMED_LINES
    return f"line{'s' if len(numbers) > 1 else ''} {named}{f' and {more:,} more' if more > 0 else ''}"


def as_fields(value: Mapping[str, Any], zone: ZoneInfo | None, time_format: str | None = None) -> Row:
    """Return a record of a file as the topic has it: fields of allowed names, times as ISO 8601, with a zone if one is said."""
    shaped = value if time_format is None else {name: _as_iso(each, time_format) for name, each in value.items()}
    return {field_name(name): with_zone(each, zone) if zone is not None else each for name, each in shaped.items()}


def _as_iso(value: Any, time_format: str) -> Any:
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        instant = datetime.strptime(value, time_format)  # noqa: DTZ007 (its zone is said apart)
        if instant.tzinfo is not None:
            return to_iso(instant)
        return instant.isoformat() if re.search(r"%[HIXcs]", time_format) else instant.date().isoformat()
    return value


# How a file is written, from its content.


def sniff(path: Path, said: FileOptions | None = None) -> FileFormat:
    """Return how a file is written.

    Raises:
        RequestError: it is absent, empty, of another kind, or not as it was said to be.
    """
    said = said or FileOptions()
    if not path.is_file():
        message = f"{path} is not a file, so there is nothing to read; name one of CSV, JSON or Parquet"
        raise RequestError(message)
    try:
        packed = _packed(path)
        blocks = _blocks(path, packed)
    except OSError as error:
        message = f"{path} cannot be read ({error}); is it whole, and may you read it?"
        raise RequestError(message) from None
    head = blocks[0]
    if head.startswith(b"PAR1"):
        return FileFormat(PARQUET)
    if path.suffix.lower() == ".parquet":
        message = f"{path} is not a Parquet file: it does not begin with PAR1; name another file"
        raise RequestError(message)
    if head.startswith(b"PK\x03\x04"):
        message = f"{path} is a ZIP archive or an Excel workbook; unpack it, or save it as CSV, and name that file"
        raise RequestError(message)
    encoding = _encoding(path, blocks, said)
    text = head.decode(encoding, errors="ignore")
    if not text.strip():
        message = f"{path} has no records: it is empty"
        raise RequestError(message)
    if "\0" in text:
        message = f"{path} is not text in {encoding} (it has zero bytes), so its format is not known; name a file of CSV, JSON or Parquet, or say its --encoding"
        raise RequestError(message)
    shape = FileFormat(JSON_LINES, packed, encoding)
    first = text.lstrip()[0]
    if first == "[":
        return replace(shape, kind=JSON_ARRAY, time_format=said.time_format)
    if first == "{":
        return replace(shape, time_format=said.time_format)
    lines = [
        _whole_lines(block.decode(encoding, errors="ignore"), is_first=number == 0, is_all=len(block) < SNIFFED_BYTES)
        for number, block in enumerate(blocks)
    ]
    return _csv_format(path, shape, lines, said)


def _packed(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for mark, name in _PACKED.items() if start.startswith(mark)), None)


def _blocks(path: Path, packed: str | None) -> list[bytes]:
    """Return the first bytes of a file, and those of its middle and end, if it can be entered there."""
    with _open_bytes(path, packed) as file:
        blocks = [file.read(SNIFFED_BYTES)]
        size = path.stat().st_size
        if packed is None and size > 4 * SNIFFED_BYTES:
            for start in (size // 2, size - SNIFFED_BYTES):
                file.seek(start)
                blocks.append(file.read(SNIFFED_BYTES))
    return blocks


def _open_bytes(path: Path, packed: str | None, raw: io.RawIOBase | None = None) -> IO[bytes]:
    file: IO[bytes] = path.open("rb") if raw is None else io.BufferedReader(raw, _AT_ONCE)
    if packed is None:
        return file
    import pyarrow as pa

    opened: IO[bytes] = io.BufferedReader(pa.input_stream(file, compression=packed), _AT_ONCE)
    return opened


def _encoding(path: Path, blocks: Sequence[bytes], said: FileOptions) -> str:
    if said.encoding is not None:
        try:
            "".encode(said.encoding)
        except LookupError:
            message = f"--encoding {said.encoding}: there is no such encoding; {did_you_mean(said.encoding, ('utf-8', 'utf-16', 'cp1252', 'latin-1'))}"
            raise RequestError(message) from None
        return "utf-8-sig" if said.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else said.encoding
    for mark, name in _MARKS.items():
        if blocks[0].startswith(mark):
            return name
    return "utf-8-sig" if all(_is_utf8(block) for block in blocks) else "cp1252"


def _is_utf8(block: bytes) -> bool:
    """Say whether a piece of a file is UTF-8; a character that is cut at either end is none against it."""
    for skip in range(4):
        try:
            block[skip:].decode()
        except UnicodeDecodeError as error:
            if error.end >= len(block) - skip and error.start >= len(block) - skip - 3:
                return True
            if error.start > 0:
                return False
        else:
            return True
    return False


def _whole_lines(text: str, *, is_first: bool, is_all: bool) -> list[str]:
    lines = text.splitlines()
    return lines[0 if is_first else 1 : None if is_all else -1]


def _csv_format(path: Path, shape: FileFormat, pieces: Sequence[Sequence[str]], said: FileOptions) -> FileFormat:
    delimiter = _delimiter(said.delimiter) or _sniff_delimiter(pieces[0])
    notes = []
    if delimiter is None:
        if not {ending.lower() for ending in path.suffixes[-2:]} & {".csv", ".tsv", ".txt"}:
            message = (
                f"{path} is neither JSON nor Parquet, and no comma, semicolon, tab or bar divides its lines, so its format is not known; if it "
                "is CSV, say its --delimiter, or end the name of a file of one column with .csv"
            )
            raise RequestError(message)
        delimiter = ","
        notes.append(
            f"{path.name} has one column, if it is CSV at all: no comma, semicolon, tab or bar divides its lines; say --delimiter if another character does"
        )
    header = next(csv.reader(pieces[0], delimiter=delimiter), [])
    rows = [row for piece in pieces for row in csv.reader(piece, delimiter=delimiter) if len(row) == len(header)][1:]
    columns = {name: [row[number] for row in rows if row[number]] for number, name in enumerate(header)}
    decimal, unsure = (said.decimal, None) if said.decimal is not None else _sniff_decimal(columns, delimiter)
    if decimal not in (".", ","):
        message = f"--decimal {decimal}: a number is written with a point or a comma; give . or ,"
        raise RequestError(message)
    time_format, ambiguous = (said.time_format, None) if said.time_format is not None else _sniff_times(columns)
    money = {name: sign for name, cells in columns.items() if (sign := _sniff_money(cells, decimal)) is not None}
    return replace(
        shape,
        kind=CSV,
        delimiter=delimiter,
        decimal=decimal,
        time_format=time_format,
        money=money,
        notes=(*notes, *filter(None, (unsure, ambiguous))),
    )


def _delimiter(said: str | None) -> str | None:
    if said is None:
        return None
    named = {"tab": "\t", "\\t": "\t", **{name: character for character, name in DELIMITERS.items()}}.get(said, said)
    if len(named) != 1:
        message = f"--delimiter {said}: a delimiter is one character; give one, or comma, semicolon, tab or bar"
        raise RequestError(message)
    return named


def _sniff_delimiter(lines: Sequence[str]) -> str | None:
    """Return the character by which most lines have as many fields as the first, at least two; None: there is none."""
    best: tuple[float, int, str] | None = None
    for delimiter in DELIMITERS:
        with suppress(csv.Error):
            counts = [len(row) for row in csv.reader(lines[:500], delimiter=delimiter) if row]
            if counts and counts[0] > 1:
                found = (counts.count(counts[0]) / len(counts), counts[0], delimiter)
                best = max(best, found) if best else found
    return None if best is None or best[0] < EVEN_LINES else best[2]


def _sniff_decimal(columns: Mapping[str, Sequence[str]], delimiter: str) -> tuple[str, str | None]:
    """Return what stands before decimals, and why that is not certain."""
    figures = [match["figure"] for cells in columns.values() for cell in cells if (match := _MONEY.match(cell.strip()))]
    comma = any(_is_plainly(figure, ",", ".") for figure in figures)
    point = any(_is_plainly(figure, ".", ",") for figure in figures)
    if comma and not point:
        return ",", None
    if comma and point:
        return (
            ".",
            "some numbers have a decimal comma and some a decimal point, so those with a comma stay texts; say --decimal , or correct the file",
        )
    doubtful = next((figure for figure in figures if re.fullmatch(r"-?\d{1,3},\d{3}", figure)), None)
    if doubtful is not None and not point:
        meant = "," if delimiter == ";" else "."
        return (
            meant,
            f"{doubtful} is read as {doubtful.replace(',', '.' if meant == ',' else '')}; say --decimal {'.' if meant == ',' else ','} if it is not",
        )
    return ".", None


def _is_plainly(figure: str, decimal: str, group: str) -> bool:
    """Say whether a figure can be read with one decimal sign alone: 12,5 and 1.234,567 have a comma; 1,234 may have either."""
    whole, sign, decimals = figure.rpartition(decimal)
    if not sign or not decimals.isdigit() or decimal in whole:
        return False
    return group in whole or len(decimals) != 3 or not re.fullmatch(r"-?[1-9]\d{0,2}", whole)


def _sniff_money(cells: Sequence[str], decimal: str) -> str | None:
    """Return the sign or code that all figures of a column carry; None: they carry none, or not the same."""
    found = {match["before"] or match["after"] for cell in cells if (match := _MONEY.match(cell.strip()))}
    if len(found) != 1 or (sign := found.pop()) is None:
        return None
    return sign if all(isinstance(number_in(cell, decimal, sign), int | Decimal) for cell in cells) else None


def _sniff_times(columns: Mapping[str, Sequence[str]]) -> tuple[str | None, str | None]:
    """Return the form of times such as 31.12.2026 14:30, and why it is not known. Days come first unless a value shows another order."""
    for name, cells in columns.items():
        found = [_DAY.match(cell.strip()) for cell in cells]
        matches = [match for match in found if match]
        if not matches or len(matches) < len(found):
            continue
        first, second = max(int(match["a"]) for match in matches), max(int(match["b"]) for match in matches)
        sample = matches[0]
        if sample["sep"] != "." and first <= 12 and second <= 12:
            return (
                None,
                f"{name} holds {sample[0]!r}, which may begin with the day or with the month; say --time-format, for instance {_time_format(sample, '%d', '%m')!r}",
            )
        day, month = ("%m", "%d") if second > 12 else ("%d", "%m")
        return _time_format(sample, day, month), None
    return None, None


def _time_format(match: re.Match[str], first: str, second: str) -> str:
    form = f"{first}{match['sep']}{second}{match['sep']}{'%Y' if len(match['year']) == 4 else '%y'}"
    if match["rest"] is None:
        return form
    gap = re.match(r"[ T,]+", match["rest"])
    assert gap is not None
    hour = "%I" if match["half"] else "%H"
    half = " %p" if match["half"] and " " in match["rest"].lstrip() else "%p" if match["half"] else ""
    return f"{form}{gap[0]}{hour}:%M{':%S' if match['second'] else ''}{half}"


# The records of a file.


class DigestedFile(io.RawIOBase):
    """A file whose digest is taken while it is read, so that it is not read once more for that.

    Bytes are digested in their order. A reader that leaves some out (Parquet's begins with the end) gets what it asks for, and they
    are digested when they come, or at last.
    """

    def __init__(self, path: Path) -> None:
        """Open a file."""
        self._path, self._file = path, path.open("rb", buffering=0)
        self._sha256, self._digested = hashlib.sha256(), 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read in any order."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place that is read next."""
        return self._file.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes, and digest those that follow what is digested."""
        start = self._file.tell()
        if 0 < start - self._digested <= _SMALL_GAP:
            self._file.seek(self._digested)
            while (gap := start - self._digested) and (data := self._file.read(gap)):
                self._digest(data)
            self._file.seek(start)
        count = self._file.readinto(buffer) or 0
        if start <= self._digested < start + count:
            self._digest(memoryview(buffer)[self._digested - start : count])
        return count

    def _digest(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        self._digested += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def sha256(self) -> str:
        """Return the digest of all bytes, in hex; what nobody has read in its order is read."""
        with self._path.open("rb") as file:
            file.seek(self._digested)
            while data := file.read(_AT_ONCE):
                self._digest(data)
        return self._sha256.hexdigest()


def file_lines(path: Path, shape: FileFormat, raw: io.RawIOBase | None = None) -> Iterator[FileLine]:
    """Yield the records of a file in its order; a line that holds none is yielded with what is wrong with it.

    Args:
        path: the file.
        shape: how it is written.
        raw: its bytes, instead of `path`; it is closed at the end.

    Raises:
        RequestError: the file cannot be read as it is said to be written.
    """
    try:
        if shape.kind == PARQUET:
            with _open_bytes(path, None, raw) as parquet:
                yield from _parquet_rows(path, parquet)
            return
        with io.TextIOWrapper(
            _open_bytes(path, shape.packed, raw), shape.encoding, newline="" if shape.kind == CSV else None
        ) as file:
            yield from _READERS[shape.kind](file, shape)
    except (OSError, UnicodeError, csv.Error) as error:
        message = f"{path} cannot be read as {shape.describe()} ({error}); say --encoding or --delimiter, or name another file"
        raise RequestError(message) from None


def _sampled(path: Path, shape: FileFormat, most: int) -> list[tuple[int, FileLine]]:
    """Return records with the number of the piece they are from: beginning, middle and end of a file that can be entered anywhere."""
    size = path.stat().st_size
    can_enter = shape.packed is None and shape.kind in (CSV, JSON_LINES) and not shape.encoding.startswith("utf-16")
    if not can_enter or size < 4 * SNIFFED_BYTES:
        return [(0, record) for record in islice(file_lines(path, shape), most)]
    found = [(0, record) for record in islice(file_lines(path, shape), most - 2 * (most // 3))]
    with path.open("rb") as file:
        header = file.readline() if shape.kind == CSV else b""
        passed = header.count(b"\n")
        for stretch, start in ((1, size // 2), (2, size - SNIFFED_BYTES)):
            passed += _count_lines(file, start) + file.readline().count(b"\n")  # a piece begins in the middle of a line
            piece = file.read(SNIFFED_BYTES)
            text = (header + piece[: piece.rfind(b"\n") + 1]).decode(shape.encoding, errors="replace")
            records = islice(_READERS[shape.kind](io.StringIO(text, newline=""), shape), most // 3)
            found += [(stretch, replace(each, line=each.line + passed - header.count(b"\n"))) for each in records]
            passed += piece.count(b"\n")
    return found


def _count_lines(file: IO[bytes], until: int) -> int:
    """Count the lines that end from where a file stands to a position, and stand there."""
    count = 0
    while (left := until - file.tell()) > 0:
        count += file.read(min(left, 1 << 22)).count(b"\n")
    return count


def _json_lines(file: Iterable[str], shape: FileFormat) -> Iterator[FileLine]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            value = parse_object(line)
            yield FileLine(number, {}, value) if isinstance(value, str) else FileLine(number, value)


def _json_array(file: IO[str], shape: FileFormat) -> Iterator[FileLine]:
    """Yield the elements of an array, which is not held whole."""
    decoder, text, number = json.JSONDecoder(), "", 0
    while "[" not in text and (more := file.read(SNIFFED_BYTES)):
        text += more
    text = text.lstrip().removeprefix("[")
    while True:
        text = text.lstrip().removeprefix(",").lstrip() if number else text.lstrip()
        if text.startswith("]"):
            return
        try:
            end = decoder.raw_decode(text)[1] if text else 0
        except ValueError:
            end = 0
        more = file.read(max(SNIFFED_BYTES, len(text))) if end in (0, len(text)) else ""
        if more:
            text += more
            continue
        number += 1
        if not end:
            yield FileLine(
                number,
                {},
                "not valid JSON, so the array cannot be read further" if text else "missing: the array has no end",
            )
            return
        value = parse_object(text[:end])
        yield FileLine(number, {}, value) if isinstance(value, str) else FileLine(number, value)
        text = text[end:]


def _csv_rows(file: Iterable[str], shape: FileFormat) -> Iterator[FileLine]:
    csv.field_size_limit(MOST_FIELD)
    reader = csv.reader(file, delimiter=shape.delimiter)
    header = next(reader, [])
    readers: list[Callable[[str], Any]] = [
        partial(csv_value, decimal=shape.decimal, sign=(shape.money or {}).get(name)) for name in header
    ]
    begins = reader.line_num + 1
    for row in reader:
        if len(row) > len(header):
            yield FileLine(begins, {}, f"{len(row)} fields, and the header names {len(header)}")
        elif row:
            cells = {name: read(text) for name, read, text in zip(header, readers, row, strict=False)}
            yield FileLine(begins, {**dict.fromkeys(header[len(row) :]), **cells})
        begins = reader.line_num + 1


_READERS: dict[str, Callable[[IO[str], FileFormat], Iterator[FileLine]]] = {
    CSV: _csv_rows,
    JSON_LINES: _json_lines,
    JSON_ARRAY: _json_array,
}


def csv_value(text: str, decimal: str = ".", sign: str | None = None) -> Any:
    """Return a cell of a CSV file as JSON would hold it: an empty one is null, `007` stays a text."""
    text = text.strip()
    if not text:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    number = number_in(text, decimal, sign)
    return text if number is None else number


def number_in(text: str, decimal: str = ".", sign: str | None = None) -> int | Decimal | None:
    """Return the number that a cell holds, without its currency and its groups of three digits; None: it is another text."""
    figure = text.strip()
    if sign is not None:
        figure = figure.removeprefix(sign).removesuffix(sign).strip()
    if _GROUPS[decimal].match(figure):
        figure = re.sub(rf"[^\d\-{re.escape(decimal)}]", "", figure)
    if decimal == ",":
        if "." in figure:
            return None
        figure = figure.replace(",", ".")
    if _INTEGER.match(figure):
        return int(figure)
    return Decimal(figure) if _FRACTION.match(figure) else None


def _parquet_rows(path: Path, file: IO[bytes]) -> Iterator[FileLine]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        batches: Iterable[pa.RecordBatch] = pq.ParquetFile(file).iter_batches(batch_size=1_000)
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield FileLine(number, {name: _parquet_value(value) for name, value in row.items()})
    except pa.ArrowInvalid as error:
        message = f"{path} is not a Parquet file ({str(error).splitlines()[0]}); name another file"
        raise RequestError(message) from None


def _parquet_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_iso(value) if value.tzinfo is not None else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float):
        return Decimal(str(value)) if value == value and abs(value) != float("inf") else None
    return str(value) if isinstance(value, bytes) else value
