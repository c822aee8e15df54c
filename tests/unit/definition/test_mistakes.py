"""Mistakes in `pipeline.yaml` and in the text of `transform.sql`: each has file, line, column and a remedy that works when applied."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from homes.project import write_definition
from rivertwice.core.errors import DefinitionError
from rivertwice.definition.definition import load_definition

YAML = """\
name: trips
description: Trips per station and hour.
sources:
  trips:
    topic: bike-trips
    partitions: 2
    schema:
      station: string
      fare: decimal(18,2)
      started_at: timestamp
      sent_at: timestamp
    epochs: {sent_at: ms}
    required: [station]
    event_time: started_at
    watermark: 10 minutes
    max_future: 1 hour
    rules:
      - {name: known, rule: in_set, field: station, values: [a, b]}
      - {name: cheap, rule: range, field: fare, max: 100}
window: {size: 1 hour}
keys: [station]
count_column: trips
columns:
  trips: {compare: exact}
  total: {compare: exact}
emit: final
late: {policy: drop}
airflow:
  schedules: {reconcile: 15 minutes}
  spark: {driver_memory: 2g, conf: {spark.task.maxFailures: "8"}}
stream:
  trigger: 5 s
"""
SQL = """\
SELECT
  window.start AS window_start,
  window.end AS window_end,
  station,
  count(*) AS trips,
  sum(fare) AS total
FROM trips
GROUP BY window(started_at, '1 hour'), station
"""


@dataclass(frozen=True)
class Mistake:
    """A change of a right definition.

    Attributes:
        right: a text of the file, which is replaced.
        wrong: what somebody wrote.
        at: the part of `wrong` at which the message must point; of the first of several.
        words: in the message.
        file: which one.
        fixed: `wrong` after the remedy was applied by hand; None: the message says `did you mean X?`, and X is put in place of what
            stands at its line and column.
    """

    right: str
    wrong: str
    at: str
    words: tuple[str, ...] = ()
    file: str = "pipeline.yaml"
    fixed: str | None = None


MISTAKES = {
    "a field of a source": Mistake("watermark:", "watermrk:", "watermrk", ("sources.trips.watermrk is not a field",)),
    "a field of the file": Mistake("count_column:", "count_colum:", "count_colum", ("count_colum is not a field",)),
    "a field in another case": Mistake("topic:", "Topic:", "Topic"),
    "a field of the window": Mistake("{size:", "{siz:", "siz", ("window.siz",)),
    "a field of a rule": Mistake("fare, max:", "fare, maxx:", "maxx", ("rules.1.range.maxx",)),
    "a field of a column": Mistake("trips: {compare:", "trips: {compared:", "compared", ("columns.trips.compared",)),
    "a kind of rule": Mistake("rule: in_set", "rule: inset", "inset", ("'not_null', 'in_set'",)),
    "a type": Mistake("station: string", "station: strng", "strng", ("not a valid field type",)),
    "a type of another database": Mistake("station: string", "station: varchar", "varchar"),
    "a long integer": Mistake("station: string", "station: long", "long", ("did you mean bigint?",), fixed="station: string"),
    "a way to emit": Mistake("emit: final", "emit: finally", "finally", ("'final' or 'updates'",)),
    "a policy": Mistake("policy: drop", "policy: drops", "drops"),
    "a unit of a time": Mistake("sent_at: ms", "sent_at: mss", "mss", ("'s', 'ms' or 'us'",)),
    "an event time": Mistake("event_time: started_at", "event_time: startd_at", "startd_at", ("absent in schema",)),
    "a required field": Mistake("required: [station]", "required: [statoin]", "statoin", ("not in schema",)),
    "a field of an epoch": Mistake("epochs: {sent_at", "epochs: {send_at", "send_at", ("which is absent in schema",), fixed="epochs: {sent_at"),
    "a count column": Mistake("count_column: trips", "count_column: trip", "trip", ("not among columns",)),
    "no event time": Mistake("event_time: started_at", "event_time:", "event_time", ("has no value",), fixed="event_time: started_at"),
    "no topic": Mistake("    topic: bike-trips\n", "", "trips:\n    partitions", ("sources.trips.topic is missing",), fixed="    topic: x\n"),
    "a duration": Mistake("watermark: 10 minutes", "watermark: 10", "10", ("is not a valid duration",), fixed="watermark: 10 minutes"),
    "a number": Mistake("partitions: 2", "partitions: two", "two", ("whole number",), fixed="partitions: 2"),
    "a list": Mistake("keys: [station]", "keys: station", "station", ("a list",), fixed="keys: [station]"),
    "a name in capitals": Mistake("keys: [station]", "keys: [Station]", "Station", ("start with a lower-case letter",), fixed="keys: [station]"),
    "a field twice": Mistake("emit: final", "emit: final\nemit: final", "emit: final\nlate", ("given again",), fixed="emit: final"),
    "no YAML": Mistake("keys: [station]", "keys: [station", ": trips\ncolumns", ("is not YAML",), fixed="keys: [station]"),
    "another name than the folder's": Mistake("name: trips\n", "name: trip\n", "name", ("the folder is 'trips'",), fixed="name: trips\n"),
    "a pattern without end": Mistake(
        "{name: known, rule: in_set, field: station, values: [a, b]}", '{name: known, rule: pattern, field: station, pattern: "(?=a)(a|b)*"}',
        "{name: known", ("is refused",), fixed='{name: known, rule: pattern, field: station, pattern: "[ab]*"}',
    ),
    "a schedule of no DAG": Mistake("{reconcile:", "{reconcil:", "reconcil", ("airflow.schedules.reconcil",)),
    "a schedule": Mistake("15 minutes", "hourly", "hourly", ("is not a valid schedule", "15 minutes"), fixed="15 minutes"),
    "a cron expression": Mistake("15 minutes", "61 * * * *", "61", ("is not a valid cron",), fixed="5 * * * *"),
    "a day that never occurs": Mistake("15 minutes", "0 0 31 2 *", "0 0 31", ("never occurs",), fixed="0 0 28 2 *"),
    "a short schedule": Mistake("15 minutes", "30 s", "30 s", ("the shortest is 1 minute",), fixed="1 minute"),
    "a field of Spark": Mistake("driver_memory:", "driver_memry:", "driver_memry", ("airflow.spark.driver_memry",)),
    "a size of memory": Mistake("2g", "2 GB", "2 GB", ("match pattern",), fixed="2g"),
    "a setting of the jobs": Mistake("spark.task.maxFailures", "spark.sql.ansi.enabled", "spark.sql", ("remove it",), fixed="spark.task.maxFailures"),
    "a setting that is a field": Mistake("spark.task.maxFailures", "spark.cores.max", "spark.cores", ("write total_executor_cores",), fixed="spark.task.maxFailures"),
    "a secret": Mistake("spark.task.maxFailures", "spark.ssl.keyPassword", "spark.ssl", ("is a secret",), fixed="spark.task.maxFailures"),
    "a setting of nobody": Mistake("spark.task.maxFailures", "task.maxFailures", "task.max", ("begin with 'spark.'",), fixed="spark.task.maxFailures"),
    "the clock": Mistake("sum(fare)", "max(now())", "now", ("reads the clock",), "transform.sql", "sum(fare)"),
    "a row order": Mistake("sum(fare)", "first(fare)", "first", ("use min, max, sum or count",), "transform.sql", "max(fare)"),
    "a filter": Mistake("GROUP BY", "WHERE fare > 0\nGROUP BY", "WHERE", ("put the condition into rows.sql",), "transform.sql", "GROUP BY"),
    "another window": Mistake("'1 hour'", "'2 hours'", "window(started_at", ("give both the same",), "transform.sql", "'1 hour'"),
    "a statement's end": Mistake(", station\n", ", station;\n", ";", ("remove it",), "transform.sql", ", station\n"),
    "no SELECT": Mistake("SELECT\n", "INSERT\n", "INSERT", ("is one SELECT",), "transform.sql", "SELECT\n"),
}  # fmt: skip


def refused(folder: Path) -> str:
    with pytest.raises(DefinitionError) as error:
        load_definition(folder)
    return str(error.value)


@pytest.mark.proves("definitions.md#how-the-dags-run")
@pytest.mark.parametrize("label", MISTAKES)
def test_a_mistake_has_a_place_and_a_remedy_that_works(tmp_path: Path, label: str) -> None:
    mistake = MISTAKES[label]
    files = {"pipeline.yaml": YAML, "transform.sql": SQL}
    folder = write_definition(tmp_path / "trips", files)
    assert load_definition(folder).name == "trips"
    assert files[mistake.file].count(mistake.right) == 1
    before, _, after = files[mistake.file].partition(mistake.right)
    text = before + mistake.wrong + after
    (folder / mistake.file).write_text(text)

    message = refused(folder)
    assert message.startswith(f"{folder / mistake.file}")
    found = re.search(r"line (\d+), column (\d+)", message)
    assert found is not None, message
    line, column = int(found[1]), int(found[2])
    is_inside = mistake.at in mistake.wrong
    start = text.index(mistake.at, len(before) if is_inside else max(0, len(before) - 40))
    assert (line, column) == (text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)), message
    for word in mistake.words:
        assert word in message

    fixed = before + mistake.fixed + after if mistake.fixed is not None else apply(text, message, line, column)
    (folder / mistake.file).write_text(fixed)
    assert load_definition(folder).name == "trips"


def apply(text: str, message: str, line: int, column: int) -> str:
    """Return a text with the word at a place replaced by the one that the message names."""
    meant = re.search(r"did you mean ([^?]+)\?", message)
    assert meant is not None, message
    lines = text.splitlines(keepends=True)
    row = lines[line - 1]
    lines[line - 1] = row[: column - 1] + re.sub(r"^[\w-]+", meant[1], row[column - 1 :])
    return "".join(lines)
