"""On the site, the first time a page uses a word of the glossary, the word leads there."""

from __future__ import annotations

import re
from collections.abc import Iterator

PAGE = "glossary.md"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
EVERYDAY = frozenset((
    "log", "open", "late", "path", "case", "address", "head", "version", "origin", "switch", "operation", "publish",
    "audit", "intent", "restore", "lease", "driver", "agent", "project", "home", "source", "session", "interval",
    "pair", "gate", "gap", "drain", "delivery", "pipeline", "definition", "upgrade", "rewind", "trial", "expected",
    "stale", "fork", "batch", "checkpoint", "taken", "cause", "balance", "comparison", "served", "truth",
    "provisional", "corrections",
))  # fmt: skip
"""Words that every page has, or that have their usual meaning too: a link at each would be noise."""
UNTOUCHED = re.compile(r"(`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]*>)")
CODE = re.compile(r"^\s*```")


def names(glossary: str) -> dict[str, str]:
    """Return each word that is linked to the name of its place: `dead letter` to `word-dead-letter`."""
    found = {}
    for row in ROW.finditer(glossary):
        for word in row[1].split(", "):
            if word not in ("word", "---") and "(" not in word:
                found[word] = place(row[1])
    return {word: name for word, name in found.items() if word.lower() not in EVERYDAY and not word.isupper()}


def place(words: str) -> str:
    """Return the name of a row's place."""
    return "word-" + re.sub(r"[^a-z]+", "-", words.lower()).strip("-")


def with_places(glossary: str) -> str:
    """Give each row of the glossary its place."""
    return ROW.sub(
        lambda row: (
            row[0] if row[1] in ("word", "---") else f'| <span id="{place(row[1])}">{row[1]}</span> | {row[2]} |'
        ),
        glossary,
    )


def with_links(text: str, words: dict[str, str], to_root: str = "") -> str:
    """Link the first use of each word in the prose of a page; code, headings, tables and links stay as they are."""
    left = dict(words)
    return "\n".join(_linked(line, left, to_root) if is_prose else line for line, is_prose in _lines(text))


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    is_code = False
    for line in text.split("\n"):
        if CODE.match(line):
            is_code = not is_code
        yield line, not (is_code or CODE.match(line) or line.startswith(("|", "#", "    ", "---", ":::")))


def _linked(line: str, left: dict[str, str], to_root: str) -> str:
    parts = UNTOUCHED.split(line)
    for number, part in enumerate(parts):
        if number % 2 == 0 and left and part:
            parts[number] = _first_uses(part, left, to_root)
    return "".join(parts)


def _first_uses(part: str, left: dict[str, str], to_root: str) -> str:
    longest_first = sorted(left, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})(e?s)?(?![\w-])")

    def linked(found: re.Match[str]) -> str:
        name = left.pop(found[1], None)
        return found[0] if name is None else f"[{found[0]}]({to_root}{PAGE}#{name}){{.word}}"

    return pattern.sub(linked, part)
