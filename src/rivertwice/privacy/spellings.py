"""Every way in which files write one text: as it is, with the escapes of JSON (also of JSON in JSON), Python, URLs and HTML. Pure."""

from __future__ import annotations

import functools
import re

_SHORT = {'"': '"', "\\": "\\", "/": "/", "'": "'", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
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
    if sign in _SHORT:
        ways.append(r"\\+" + re.escape(_SHORT[sign]))
    if sign in _HTML:
        ways.append(f"&{_HTML[sign]};")
    return f"(?:{'|'.join(dict.fromkeys(ways))})"


def _hex(data: bytes) -> str:
    return _digits(data.hex())


def _digits(text: str) -> str:
    return "".join(f"[{sign}{sign.upper()}]" if sign.isalpha() else sign for sign in text)
