"""Replace one value of some fields in record bytes and in tables. Pure.

The value is replaced, not removed. The same pseudonym, from which the value cannot be derived, is used everywhere, so a
recompute over the rewritten log gives the rewritten tables. The rest of a record stays as it was, byte by byte.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rivertwice.schemas.encode import PREFIX
from rivertwice.schemas.swap import Records, Swap

Value = str | int
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
        for old, new in (
            (str(self.value), str(self.pseudonym)),
            (json.dumps(self.value), json.dumps(self.pseudonym)),
        ):
            if key == old.encode():
                return new.encode()
        for records in self.binary:
            if (replaced := records.replaced_key(key, self.swap)) is not None:
                return replaced
        is_record = key.lstrip()[:1] == b"{" or (self.binary and key[:1] == PREFIX)
        return self.record(key) if is_record else key

    def record(self, data: bytes) -> bytes:
        """Return the bytes of a record with the value replaced: Avro and Protobuf by their schemas, others as in `text`."""
        for records in self.binary:
            if (replaced := records.replaced(data, self.swap)) is not None:
                return replaced
        return self.text(data)

    def text(self, data: bytes) -> bytes:
        """Return bytes of a JSON object, of any depth, with the value of the named fields replaced.

        Bytes that are no JSON object (a dead letter) have no fields. There the text itself is replaced where it is a separate word.
        If the bytes may be a damaged binary record, it is replaced everywhere, for a length before it may look like a letter.
        """
        replaced = self._in_fields(data)
        try:
            parsed = json.loads(replaced)
        except (ValueError, RecursionError):
            return self._anywhere(replaced)
        if isinstance(parsed, str):
            return self._anywhere(replaced)
        if not self._holds(parsed):
            return replaced
        return json.dumps(
            self._replaced(parsed), ensure_ascii=False
        ).encode()  # the value was written with other escapes

    def _in_fields(self, data: bytes) -> bytes:
        spelt = {json.dumps(self.value), json.dumps(self.value, ensure_ascii=False)}
        values = b"|".join(re.escape(spelling.encode()) for spelling in sorted(spelt))
        names = b"|".join(re.escape(json.dumps(name).encode()) for name in sorted(self.names))
        pattern = re.compile(rb"((?:" + names + rb")\s*:\s*)(?:" + values + rb")(?=\s*(?:[,}\]]|\Z))")
        new = json.dumps(self.pseudonym, ensure_ascii=False).encode()
        return pattern.sub(lambda match: match.group(1) + new, data)

    def _anywhere(self, data: bytes) -> bytes:
        if not isinstance(self.value, str):
            return data
        plain = re.escape(self.value.encode())
        word = re.compile(plain if self.binary else rb"(?<![A-Za-z0-9_])" + plain + rb"(?![A-Za-z0-9_])")
        return word.sub(lambda _: str(self.pseudonym).encode(), data)

    def _holds(self, parsed: Any, *, named: bool = False) -> bool:
        if isinstance(parsed, dict):
            return any(self._holds(item, named=name in self.names) for name, item in parsed.items())
        if isinstance(parsed, list):
            return any(self._holds(item, named=named) for item in parsed)
        return named and self._is_value(parsed)

    def _replaced(self, parsed: Any, *, named: bool = False) -> Any:
        if isinstance(parsed, dict):
            return {name: self._replaced(item, named=name in self.names) for name, item in parsed.items()}
        if isinstance(parsed, list):
            return [self._replaced(item, named=named) for item in parsed]
        return self.pseudonym if named and self._is_value(parsed) else parsed

    def _is_value(self, item: Any) -> bool:
        return type(item) is type(self.value) and item == self.value

    def table(self, rows: pa.Table) -> tuple[pa.Table, list[int]]:
        """Return the rows with the value replaced, and the indexes of the rows that changed."""
        changed: set[int] = set()
        for number, field in enumerate(rows.schema):
            column, places = self._column(field, rows.column(number))
            if places:
                rows = rows.set_column(number, field, column)
                changed.update(places)
        return rows, sorted(changed)

    def _column(self, field: pa.Field, column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[int]]:
        kind = field.type
        if pa.types.is_integer(kind) and field.name in self.names and isinstance(self.value, int):
            return self._rewritten(column, kind, lambda item: self.pseudonym if item == self.value else item)
        if _is_text(kind):
            named = field.name in self.names
            return self._rewritten(column, kind, lambda item: self._cell(item, named=named), self._needles())
        if any(check(kind) for check in _AS_RECORD_KEY):
            rewrite = self.record_key if field.name == _KEY_COLUMN else self.record
            as_text = isinstance(self.value, str) or not self.binary  # in a binary record a number may have any bytes
            return self._rewritten(column, kind, rewrite, self._needles() if as_text else ())
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

    def _needles(self) -> list[str]:
        return sorted(
            {str(self.value), json.dumps(self.value)[1:-1] if isinstance(self.value, str) else str(self.value)}
        )

    @staticmethod
    def _rewritten(
        column: pa.ChunkedArray, kind: pa.DataType, rewrite: Callable[[Any], Any], needles: Sequence[str] = ()
    ) -> tuple[pa.ChunkedArray, list[int]]:
        """Return the column with each value rewritten, and the indexes that changed; only values with a needle are checked."""
        places: Sequence[int] = range(len(column))
        if needles:
            plain = column.cast(pa.large_binary())
            hits = (pc.fill_null(pc.match_substring(plain, needle), False) for needle in needles)
            places = pc.indices_nonzero(functools.reduce(pc.or_, hits)).to_pylist()
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


def columns_around(rows: pa.Table, value: Value) -> dict[str, int]:
    """Return the text columns in which the value is one word of a longer text, and the number of such cells."""
    if not isinstance(value, str):
        return {}
    word = r"(^|[^A-Za-z0-9_])" + re.escape(value) + r"($|[^A-Za-z0-9_])"
    counts: dict[str, int] = {}
    for field in rows.schema:
        if _is_text(field.type):
            column = rows.column(field.name).cast(pa.string())
            count = pc.sum(pc.match_substring_regex(column, word)).as_py() or 0
            counts |= {field.name: int(count)} if count else {}
    return counts


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
