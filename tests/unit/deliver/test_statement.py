"""Statements that a receiver runs for each record: which may run twice, and why the others may not (S16)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from rivertwice.cli.main import cli

HOLDS, BROKEN, UNKNOWN = "holds", "broken", "not checked"


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("UPDATE stock SET level = 5 WHERE item = 1", HOLDS),
        ("UPDATE stock SET level = %(level)s, seen = :at::timestamptz WHERE item = $1;", HOLDS),
        ("UPDATE stock SET level = coalesce(?, 0) WHERE item = ?", HOLDS),
        ("UPDATE stock SET note = 'level + 1' WHERE item = 1 -- level + 1", HOLDS),
        ("DELETE FROM stock WHERE id = 123", HOLDS),
        ("INSERT INTO orders (id, amount) VALUES (%s, %s) ON CONFLICT (id) DO NOTHING", HOLDS),
        ("INSERT INTO stock VALUES (?, ?) ON CONFLICT (item) DO UPDATE SET level = EXCLUDED.level", HOLDS),
        ("UPDATE stock SET level = level + 1 WHERE item = 1", BROKEN),
        ("UPDATE stock SET seen = true, level = level - :sold WHERE item = :item", BROKEN),
        ('UPDATE stock SET "Level" = "Level" + 1', BROKEN),
        ("UPDATE stock SET seen = now() WHERE item = 1", BROKEN),
        ("INSERT INTO orders (id, amount) VALUES (1, 2)", BROKEN),
        (
            "INSERT INTO stock VALUES (?, ?) ON CONFLICT (item) DO UPDATE SET level = stock.level + EXCLUDED.level",
            BROKEN,
        ),
        ("DELETE FROM stock", BROKEN),
        ("UPDATE stock SET level = level - 1, last = :event WHERE item = :item AND last < :event", UNKNOWN),
        ("UPDATE stock SET level = (SELECT count(*) FROM orders) WHERE item = 1", UNKNOWN),
        ("SELECT send_email('a@example.com')", UNKNOWN),
        ("DELETE FROM a WHERE id = 1; UPDATE a SET b = 1", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_what_sets_may_run_twice_and_what_adds_may_not(statement: str, state: str) -> None:
    done = CliRunner().invoke(cli, ["--output", "json", "lint", "--statement", statement])
    found = json.loads(done.stdout)
    assert (found["state"], done.exit_code) == (state, 3 if state == BROKEN else 0), found
    assert bool(found["remedy"]) == (state != HOLDS)


def test_the_message_says_what_is_computed_from_what_and_what_to_do() -> None:
    done = CliRunner().invoke(cli, ["lint", "--statement", "UPDATE stock SET level = level - :sold WHERE item = :item"])
    assert done.stdout.startswith(
        "broken: level is computed from level, so each further run changes it once more; set the result"
    )
