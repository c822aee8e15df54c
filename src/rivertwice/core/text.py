"""Text for people: the name that was probably meant, and text of others made safe to print. Pure."""

from __future__ import annotations

import difflib
import logging
import re
import sys
from collections.abc import Collection

MOST_LISTED = 20


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that begins with `name` or is most like it, whatever the case; None if none is like it."""
    lower = {each.lower(): each for each in known}
    longer = [each for each in lower if len(name) >= 3 and each.startswith(name.lower())]
    if longer:
        return lower[min(longer, key=len)]
    close = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.6)
    return lower[close[0]] if close else None


def meant(name: str, known: Collection[str]) -> str:
    """Return `; did you mean KNOWN?` for the nearest known name; empty if none is like it."""
    close = nearest(name, known)
    return "" if close is None else f"; did you mean {close}?"


def did_you_mean(name: str, known: Collection[str], prefix: str = "") -> str:
    """Return the end of a message about an unknown name: the nearest known one, or all of them.

    Args:
        prefix: stands before a name where it is written.
    """
    close = nearest(name, known)
    if close is not None:
        return f"did you mean {prefix}{close}?"
    listed = sorted(known)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return f"there are: {', '.join(listed[:MOST_LISTED]) or 'none'}{more}"


# Make text from outside safe for a terminal, a chat or a mail: control characters are written out, not sent.

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters except tab and newline, and characters that change the direction of text or break its lines."""

_BREAKS = re.compile("[\t\n]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\x1b": "\\x1b"}


def printable(text: str) -> str:
    r"""Return `text` with every control character except tab and newline written out, for instance `\x1b`."""
    return _CONTROL.sub(_written_out, text)


def printable_line(text: str) -> str:
    """Return `text` as one line: like `printable`, and tabs and newlines are written out too."""
    return _BREAKS.sub(_written_out, printable(text))


def printable_json(text: str) -> str:
    """Return JSON with the same meaning, in which control characters are JSON's own escapes.

    Raw control characters can only be inside strings, where JSON reads the escape as the same character.
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


class PrintableFormatter(logging.Formatter):
    """A formatter of log lines that writes control characters out; a message's own line breaks stay."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable(super().format(record))


def log_to_stdout() -> None:
    """Write all lines that this process logs to stdout, where its starter keeps them; py4j's only from warnings on."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)


def _written_out(match: re.Match[str]) -> str:
    character = match.group()
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def counted(number: int, one: str, many: str) -> str:
    """Return a number with its noun: `1 row`, `1,200 rows`."""
    return f"{number:,} {one if number == 1 else many}"
