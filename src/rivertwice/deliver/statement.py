"""Whether a statement that a receiver runs for each record may be run twice. Pure: the text decides, nothing is executed.

A delivery that was interrupted is repeated, and a topic is read again after a crash of its reader. A statement that sets gives the same
state again; one that adds, or inserts without a key, counts twice. Read as PostgreSQL writes it; parameters are `%s`, `%(name)s`,
`:name`, `$1` or `?`. What the text does not show is `not checked`: the words of a trigger or a function are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rivertwice.definition import LintFinding, LintLevel

CHECK = "a statement that runs twice"
_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|(?P<text>'(?:[^']|'')*')|(?P<parameter>%s|%\(\w+\)s|:\w+|\$\d+|\?)|(?P<number>\d+(?:\.\d+)?)"
    r'|(?P<word>[A-Za-z_]\w*|"(?:[^"]|"")*")|(?P<sign>::\w+|[<>!=]=|<>|\|\||.)',
    re.DOTALL,
)
_VALUES = frozenset(
    {"null", "true", "false", "default", "and", "or", "not", "is", "case", "when", "then", "else", "end", "interval"}
)
_CHANGING = frozenset(
    {"now", "current_timestamp", "current_date", "current_time", "localtimestamp", "localtime", "clock_timestamp"}
    | {"statement_timestamp", "random", "nextval", "uuid_generate_v4", "gen_random_uuid"}
)
"""What gives another value each time."""


def judge_statement(text: str) -> LintFinding:
    """Return whether running a statement again with the same parameters changes anything.

    Returns:
        `holds`, `broken`, or `not checked` where the text alone does not show it.
    """
    words = list(_words(text))
    if words and words[-1] == ";":
        words.pop()
    if ";" in words:
        return _unknown("several statements stand in one text", "give one statement at a time")
    verb = words[0] if words else ""
    changing = sorted(_CHANGING & set(words))
    if verb in ("insert", "update", "delete") and changing:
        return _broken(
            f"{changing[0]} gives another value each time",
            "take time and ids from the record, which are the same when it comes again",
        )
    if verb == "delete":
        return _delete(words)
    if verb == "update":
        return _update(words)
    if verb == "insert":
        return _insert(words)
    return _unknown(
        f"{verb.upper() or 'an empty text'} is not INSERT, UPDATE or DELETE; a function, a trigger, a notification or a message may act each time",
        "let it set a row by a key of the record; what cannot be taken back, as an e-mail, needs a receiver that takes each key once",
    )


def _words(text: str) -> Iterator[str]:
    """Yield the words and signs in lower case; texts, numbers and parameters as `?`."""
    for match in _TOKEN.finditer(text):
        if match["text"] or match["parameter"] or match["number"]:
            yield "?"
        elif match["word"] or match["sign"]:
            token = match.group()
            if not token.startswith("::"):  # a cast
                yield token if token.startswith('"') else token.lower()


def _delete(words: Sequence[str]) -> LintFinding:
    if "where" not in words:
        return _broken(
            "DELETE without WHERE removes also what came after the first time",
            "name the row: DELETE FROM ... WHERE its key = the record's",
        )
    return _holds("DELETE names its rows; when it comes again they are gone already")


def _update(words: Sequence[str]) -> LintFinding:
    if "set" not in words or "from" in words or "select" in words:
        return _unknown("the values come from other rows, which may have changed", "set what the record says")
    where = words.index("where") if "where" in words else len(words)
    return _assigned(words[words.index("set") + 1 : where], words[where + 1 :], "UPDATE")


def _insert(words: Sequence[str]) -> LintFinding:
    if "conflict" not in words:
        return _broken(
            "a plain INSERT adds a row each time, or fails at a unique key",
            "INSERT ... ON CONFLICT (its key) DO NOTHING, or DO UPDATE SET",
        )
    if "select" in words:
        return _unknown("the values come from other rows, which may have changed", "insert what the record says")
    action = words[words.index("conflict") + 1 :]
    if "nothing" in action:
        return _holds("the second INSERT meets the key of the first one and does nothing")
    if "set" not in action:
        return _unknown("ON CONFLICT says neither DO NOTHING nor DO UPDATE SET", "write one of them")
    where = action.index("where") if "where" in action else len(action)
    return _assigned(action[action.index("set") + 1 : where], action[where + 1 :], "ON CONFLICT DO UPDATE")


def _assigned(assignments: Sequence[str], where: Sequence[str], what: str) -> LintFinding:
    """Judge `a = ..., b = ...`: a column that is read makes a second run compute from what the first one wrote."""
    columns = [part[0] for part in _parts(assignments) if part]
    read = [
        (part[0], word) for part in _parts(assignments) if "=" in part for word in _read(part[part.index("=") + 1 :])
    ]
    if not read:
        return _holds(f"{what} sets values that the statement is given; when it comes again they are there already")
    if set(columns) & set(_read(where)):
        return _unknown(
            f"{read[0][0]} is computed from {read[0][1]}, and WHERE asks for a column that is set: it may let only the first run through",
            "set the result instead, which a stream can keep as state; then no guard is needed",
        )
    return _broken(
        f"{read[0][0]} is computed from {read[0][1]}, so each further run changes it once more",
        "set the result: let the pipeline keep the count or the balance (a window or a fold), and write it by its key",
    )


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield what stands between the commas outside of brackets."""
    depth, part = 0, list[str]()
    for word in words:
        depth += (word == "(") - (word == ")")
        if word == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _read(words: Sequence[str]) -> list[str]:
    """Return the columns that an expression reads; `excluded.x` is the row that was to be inserted, so it is not one."""
    found = []
    for place, word in enumerate(words):
        before, after = words[place - 1] if place else "", words[place + 1] if place + 1 < len(words) else ""
        is_name = word.startswith('"') or word[:1].isalpha() or word.startswith("_")
        owner = words[place - 2] if before == "." and place > 1 else ""
        if is_name and word not in _VALUES and after not in ("(", ".") and owner != "excluded":
            found.append(word)
    return found


def _holds(told: str) -> LintFinding:
    return LintFinding(CHECK, LintLevel.HOLDS, told)


def _broken(told: str, remedy: str) -> LintFinding:
    return LintFinding(CHECK, LintLevel.BROKEN, told, remedy)


def _unknown(told: str, remedy: str) -> LintFinding:
    return LintFinding(CHECK, LintLevel.NOT_CHECKED, told, remedy)
