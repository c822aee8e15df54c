"""Make text from outside safe for a terminal, a chat or a mail: control characters are written out, not sent."""

from __future__ import annotations

import logging
import re
import sys

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
