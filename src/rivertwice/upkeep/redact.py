"""Replace one value of some fields in record bytes and in tables. Pure.

The value is replaced, not removed. The same pseudonym, from which the value cannot be derived, is used everywhere, so a
recompute over the rewritten log gives the rewritten tables. The rest of a record stays as it was, byte by byte.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.definition import PREFIX, Records, Swap

# The scalar values of a JSON text with the place of each, also of a text that is damaged or truncated. Pure.
#
# Values are decoded as the records' decoder (`engine.decode`) reads them into a `string` field: any spelling of the same text gives the
# same value, and a number gives its text. So a caller can decide by the value, and replace exactly the bytes of one token.

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7  # between them Java writes a double without an exponent


@dataclass(frozen=True, slots=True)
class Scalar:
    """One string, number, `true` or `false`.

    Attributes:
        start, end: its bytes, quotes included.
        name: the field that it is the value of, also as an item of an array; None outside of an object.
        text: its value as a `string` field reads it.
        quoted: whether it is a string. closed: whether a string has its second quote.
        is_name: it is the name of a field, and not a value.
    """

    start: int
    end: int
    name: str | None
    text: str
    quoted: bool
    closed: bool = True
    is_name: bool = False


def scalars(data: bytes) -> Iterator[Scalar]:
    """Yield every scalar of a JSON text, names of fields too, in its order; `null` is none.

    Never raises: bytes that are not JSON give the tokens that can be told apart.
    """
    names: list[str | None] = [None]  # of each open object or array the field that its items belong to
    waiting: Scalar | None = None  # a string that is a name if a colon follows
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token == b":" and waiting is not None:
            yield Scalar(waiting.start, waiting.end, None, waiting.text, quoted=True, is_name=True)
            names[-1], waiting = waiting.text, None
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        if token == b"{":
            names.append(None)
        elif token == b"[":
            names.append(names[-1])
        elif token in (b"}", b"]"):
            if len(names) > 1:
                names.pop()
        elif token[:1] == b'"':
            closed = len(token) > 1 and token[-1:] == b'"' and not _ends_escaped(token)
            waiting = Scalar(*match.span(), names[-1], decode_string(token[1 : -1 if closed else None]), True, closed)
        elif token not in (b",", b":", b"null"):
            yield Scalar(*match.span(), names[-1], _text_of(token.decode(errors="replace")), quoted=False)
    if waiting is not None:
        yield waiting


def _ends_escaped(token: bytes) -> bool:
    body = token[:-1]
    return (len(body) - len(body.rstrip(b"\\"))) % 2 == 1


def decode_string(body: bytes) -> str:
    """Return the text of a JSON string without its quotes; half of a surrogate pair is `?`, as in the JVM."""
    text = _ESCAPE.sub(_unescaped, body.decode(errors="replace"))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass").encode(errors="replace").decode()


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _SHORT.get(match[2], match[2])


def _text_of(token: str) -> str:
    match = _NUMBER.match(token)
    if match is None:
        return token
    if match[1] is None and match[2] is None:
        return token.removeprefix("-") if token.strip("-0") == "" else token
    return java_text(float(token))


def java_text(number: float) -> str:
    """Return a double as Java's `Double.toString` writes it, `1.5`, `1.0E10`; one that is too large as Spark's parser does."""
    if math.isinf(number):
        return '"Infinity"' if number > 0 else '"-Infinity"'
    if number == 0 or _PLAIN_FROM <= abs(number) < _PLAIN_TO:
        return repr(number)
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int), "a finite number"
    first, *rest = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


# Every way in which files write one text: as it is, with the escapes of JSON (also of JSON in JSON), Python, URLs and HTML. Pure.

_SHORT_SPELLINGS = {'"': '"', "\\": "\\", "/": "/", "'": "'", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_BEFORE = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
_BEFORE_IN_RE2 = r"(?:^|[^A-Za-z0-9_]|\\[bfnrt]|\\u[0-9a-fA-F]{4})"
_HTML = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}


def spelling_pattern(text: str, *, whole_word: bool) -> str:
    """Return a regular expression over bytes, in ASCII, that Python and RE2 (in Latin-1 mode) read alike.

    Args:
        text: what is looked for; not empty.
        whole_word: letters, digits and `_` before or after it make it another text. RE2 has no look-around, so there the sign
            before and the sign after belong to the match.
    """
    body = "".join(map(_spelt, text))
    return rf"{_BEFORE_IN_RE2}(?:{body})(?:$|[^A-Za-z0-9_])" if whole_word else body


@functools.lru_cache(maxsize=8)
def spellings(text: str, *, whole_word: bool = True) -> re.Pattern[bytes]:
    """Return the compiled pattern of all spellings; a match is the text alone."""
    body = spelling_pattern(text, whole_word=False)
    return re.compile((rf"{_BEFORE}{body}(?![A-Za-z0-9_])" if whole_word else body).encode())


def _spelt(sign: str) -> str:
    raw = sign.encode(errors="surrogatepass")
    units = sign.encode("utf-16-be", errors="surrogatepass")
    number = ord(sign)
    ways = [
        "".join(rf"\x{byte:02x}" for byte in raw),
        "".join(rf"\\+u{_hex(units[at : at + 2])}" for at in range(0, len(units), 2)),
        "".join(rf"\\+x{_hex(bytes([byte]))}" for byte in raw),
        "".join(f"%{_hex(bytes([byte]))}" for byte in raw),
        f"&#(?:0*{number}|[xX]0*{_digits(f'{number:x}')});",
    ]
    if number < 256:
        ways.append(rf"\\+x{_hex(bytes([number]))}")
    else:
        ways.append(rf"\\+U{_digits(f'{number:08x}')}")
    if sign in _SHORT_SPELLINGS:
        ways.append(r"\\+" + re.escape(_SHORT_SPELLINGS[sign]))
    if sign in _HTML:
        ways.append(f"&{_HTML[sign]};")
    return f"(?:{'|'.join(dict.fromkeys(ways))})"


def _hex(data: bytes) -> str:
    return _digits(data.hex())


def _digits(text: str) -> str:
    return "".join(f"[{sign}{sign.upper()}]" if sign.isalpha() else sign for sign in text)


Value = str | int
PROSE = {
    "amendments": ("why",),
    "causes": ("detail",),
    "dead_letters": ("detail",),
    "quality": ("observed", "examples", "error", "reason"),
    "reconciles": ("gate",),
    "verdicts": ("reason",),
}
"""Tables to their columns with texts for people."""
_CODES = ("kind", "severity", "pair", "verdict")  # fields of such JSON texts that programs read
_KEY_COLUMN = "key"  # of raw records; in tables of verdicts a column of this name contains a JSON text
_AS_RECORD_KEY = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view


@dataclass(frozen=True)
class Redactor:
    """What is replaced.

    Attributes:
        value: the value to replace. pseudonym: what replaces it, of the same type.
        names: fields of records and columns of tables that contain it.
        binary: the formats of records that are not JSON.
    """

    value: Value
    pseudonym: Value
    names: frozenset[str]
    binary: tuple[Records, ...] = ()

    @property
    def swap(self) -> Swap:
        """The same replacement for a record with a schema."""
        return Swap(self.value, self.pseudonym, self.names)

    def record_key(self, key: bytes) -> bytes:
        """Return a record's key: replaced if it is the value as a text or as JSON, else as it was."""
        if key == str(self.value).encode():
            return str(self.pseudonym).encode()
        for records in self.binary:
            if (replaced := records.replaced_key(key, self.swap)) is not None:
                return replaced
        found = list(scalars(key))
        if len(found) == 1 and key.strip() == key[found[0].start : found[0].end]:
            return self._with_tokens(key, [found[0]] if found[0].quoted and found[0].text == str(self.value) else [])
        is_record = key.lstrip()[:1] == b"{" or (self.binary and key[:1] == PREFIX)
        return self.record(key) if is_record else key

    def record(self, data: bytes) -> bytes:
        """Return the bytes of a record with the value replaced: Avro and Protobuf by their schemas, others as in `text`."""
        for records in self.binary:
            if (replaced := records.replaced(data, self.swap)) is not None:
                return replaced
        return self.text(data)

    def text(self, data: bytes) -> bytes:
        """Return bytes of a JSON object, of any depth, with the value of the named fields replaced; all other bytes stay.

        A value is decided by what it says, not by its spelling, and a number of a text field by its digits.
        Bytes that are not a JSON object (a dead letter) have no fields for sure. There every spelling of the text is replaced where it is
        a separate word. If the bytes may be a damaged binary record, it is replaced everywhere, because a length before it may look like
        a letter.
        """
        replaced = self._in_fields(data)
        return replaced if _is_json_object(replaced) else self._anywhere(replaced)

    def _in_fields(self, data: bytes) -> bytes:
        value = str(self.value)
        named = (scalar for scalar in scalars(data) if scalar.name in self.names and not scalar.is_name)
        return self._with_tokens(data, [scalar for scalar in named if scalar.text == value])

    def _with_tokens(self, data: bytes, tokens: Sequence[Scalar]) -> bytes:
        """Return the bytes with these tokens replaced; a text stays a text, and a number a number if the pseudonym is one."""
        pieces, at = [], 0
        for token in tokens:
            quoted = token.quoted or isinstance(self.pseudonym, str)
            new = json.dumps(str(self.pseudonym) if quoted else self.pseudonym, ensure_ascii=False)
            pieces += [data[at : token.start], (new if token.closed else new[:-1]).encode()]
            at = token.end
        return b"".join((*pieces, data[at:]))

    def _anywhere(self, data: bytes) -> bytes:
        if not isinstance(self.value, str):
            return data
        return spellings(self.value, whole_word=not self.binary).sub(lambda _: str(self.pseudonym).encode(), data)

    def _prose(self, item: str) -> str:
        """Return a text that is written for people, or JSON with such texts in it, with the value replaced where it is a word."""
        data = self._in_fields(item.encode())
        if not _is_json(data):
            return self._anywhere(data).decode()
        pieces, at = [], 0
        for scalar in scalars(data):
            if scalar.quoted and not scalar.is_name and scalar.name not in _CODES:
                pieces += [data[at : scalar.start], self._anywhere(data[scalar.start : scalar.end])]
                at = scalar.end
        return b"".join((*pieces, data[at:])).decode()

    def table(self, rows: pa.Table, *, prose: Collection[str] = ()) -> tuple[pa.Table, list[int]]:
        """Return the rows with the value replaced, and the indexes of the rows that changed.

        Args:
            prose: text columns whose texts are written for people, and may have the value in them (`PROSE`).
        """
        changed: set[int] = set()
        for number, field in enumerate(rows.schema):
            column, places = self._column(field, rows.column(number), is_prose=field.name in prose)
            if places:
                rows = rows.set_column(number, field, column)
                changed.update(places)
        return rows, sorted(changed)

    def _column(self, field: pa.Field, column: pa.ChunkedArray, *, is_prose: bool) -> tuple[pa.ChunkedArray, list[int]]:
        kind = field.type
        if pa.types.is_integer(kind) and field.name in self.names and isinstance(self.value, int):
            return self._rewritten(column, kind, lambda item: self.pseudonym if item == self.value else item)
        if _is_text(kind) and is_prose:
            return self._rewritten(column, kind, self._prose, self._needle())
        if _is_text(kind):
            named = field.name in self.names
            return self._rewritten(column, kind, lambda item: self._cell(item, named=named), self._needle())
        if any(check(kind) for check in _AS_RECORD_KEY):
            rewrite = self.record_key if field.name == _KEY_COLUMN else self.record
            as_text = isinstance(self.value, str) or not self.binary  # in a binary record a number may have any bytes
            return self._rewritten(column, kind, rewrite, self._needle() if as_text else None)
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
            return self._rewritten(column, kind, self._headers)
        return column, []

    def _cell(self, item: str, *, named: bool) -> str:
        if named and item == self.value:
            return str(self.pseudonym)
        return self._in_fields(item.encode()).decode() if item.lstrip()[:1] in ("{", "[") else item

    def _headers(self, headers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**header, "value": None if header["value"] is None else self.record_key(header["value"])}
            for header in headers
        ]

    def _needle(self) -> str | None:
        """Return a pattern that every cell with the value matches; None for a value that numbers of any spelling may have."""
        value = str(self.value)
        return (
            None if isinstance(self.value, str) and _is_fraction(value) else spelling_pattern(value, whole_word=False)
        )

    @staticmethod
    def _rewritten(
        column: pa.ChunkedArray, kind: pa.DataType, rewrite: Callable[[Any], Any], needle: str | None = None
    ) -> tuple[pa.ChunkedArray, list[int]]:
        """Return the column with each value rewritten, and the indexes that changed; only values that match the needle are checked."""
        places: Sequence[int] = range(len(column))
        if needle is not None:
            places = _matching(column, needle)
        new = {}
        for place in places:
            item = column[place].as_py()
            after = None if item is None else rewrite(item)
            if after != item:
                new[place] = after
        if not new:
            return column, []
        values = column.to_pylist()
        for place, after in new.items():
            values[place] = after
        return pa.chunked_array([pa.array(values, kind)]), sorted(new)


def columns_with(rows: pa.Table, value: Value, names: Collection[str]) -> dict[str, int]:
    """Return the columns of other names with cells that are equal to the value, and their number: they may mean it, too."""
    counts = {}
    for field in rows.schema:
        if field.name in names or not (_is_text(field.type) if isinstance(value, str) else False):
            continue  # equal numbers too often have another meaning
        count = pc.sum(pc.equal(rows.column(field.name).cast(pa.string()), value)).as_py() or 0
        if count:
            counts[field.name] = int(count)
    return counts


def columns_around(rows: pa.Table, redactor: Redactor) -> dict[str, int]:
    """Return where a text still is, in any spelling, among other words too, and in how many rows.

    Records name the field that has it: `value.note`, `value (name of a field)`.
    """
    counts: Counter[str] = Counter()
    if not isinstance(redactor.value, str):
        return counts
    for field in rows.schema:
        column, kind = rows.column(field.name), field.type
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
            column = pc.list_flatten(column).combine_chunks()
            parts = {part.name: column.field(part.name) for part in kind.value_type}
            cells = {f"{field.name}.{name}": pa.chunked_array([part]) for name, part in parts.items()}
        else:
            cells = {field.name: column}
        for name, part in cells.items():
            if _is_text(part.type) or any(check(part.type) for check in _AS_RECORD_KEY):
                is_word = not (
                    redactor.binary and not _is_text(part.type)
                )  # there, a length before it may look like a letter
                for place in _matching(part, spelling_pattern(redactor.value, whole_word=is_word)):
                    counts.update({f"{name}{where}" for where in _where(part[place].as_py(), redactor.value)})
    return dict(counts)


def _where(cell: str | bytes, value: str) -> set[str]:
    data = cell.encode() if isinstance(cell, str) else cell
    if data.lstrip()[:1] not in (b"{", b"[") or not _is_json(data):
        return {""}
    word = spellings(value)
    found = (scalar for scalar in scalars(data) if word.search(data, scalar.start, scalar.end))
    return {" (name of a field)" if scalar.is_name else f".{scalar.name}" for scalar in found} or {""}


def _matching(column: pa.ChunkedArray, pattern: str) -> list[int]:
    """Return the indexes of the cells that match a pattern of `spelling_pattern`."""
    hits = pc.match_substring_regex(column.cast(pa.large_binary()), pattern)
    indexes: list[int] = pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist()
    return indexes


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def _is_json_object(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{" and _is_json(data)


def _is_fraction(text: str) -> bool:
    try:
        number = float(text.strip('"'))
    except ValueError:
        return False
    return not math.isnan(number) and java_text(number) == text  # a text such as "nan" is a number to Python alone


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
