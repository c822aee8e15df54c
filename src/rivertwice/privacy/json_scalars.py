"""The scalar values of a JSON text with the place of each, also of a text that is damaged or truncated. Pure.

Values are decoded as the records' decoder (`pipeline.decode`) reads them into a `string` field: any spelling of the same text gives the
same value, and a number gives its text. So a caller can decide by the value, and replace exactly the bytes of one token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

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
