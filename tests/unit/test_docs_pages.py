"""The docs name commands that there are, say what to do about all that is red, and are found by the words of a question."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from homes.project import REPOSITORY
from rivertwice.agent import KINDS, REACTIONS
from rivertwice.cli.docs import find_sections
from rivertwice.cli.main import cli

PAGES = sorted(path for path in (REPOSITORY / "docs").glob("*.md") if path.stem not in ("upgrade", "cli-idioms"))
"""All but the page that names commands of before, and the one that is made of the command line."""
_FENCE = re.compile(r"^ *```(?:sh|bash|)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(rivertwice [^`]+)`")
_ANYWHERE = ("--project", "--home", "-o", "--output")
_PLACEHOLDER = re.compile(r"\[|\]|\\|\.\.\.|\bVERB\b|^rivertwice samples 1$")  # the first line of a file


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that begins a line of a block, and of each that stands in a line of text."""
    lines = [line for block in _FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    parts = [part.strip() for line in lines for part in re.split(r"&&|\|\||;", line)]
    inline = [" ".join(found.split()) for found in _INLINE.findall(_FENCE.sub("", text))]
    for each in [*parts, *inline]:
        if each.startswith("rivertwice ") and not _PLACEHOLDER.search(each):
            try:
                yield shlex.split(each, comments=True)
            except ValueError:  # a quoted text that continues in the next line
                continue


def check(words: list[str]) -> str | None:
    """Return what the command line would not understand; None: nothing. Values and missing names are not looked at."""
    rest = [word for word in words[1:] if word not in (">", "|")]
    while rest and rest[0] in _ANYWHERE:
        rest = rest[2:]
    command: click.Command = cli
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            return None if command.invoke_without_command else f"{rest[0]} is not a verb"
        command, rest = found, rest[1:]
    params = command.get_params(click.Context(command))
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)} | {"--help", "--debug"}
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return None if not set(unknown) - set(_ANYWHERE) else f"{unknown} are not options of {' '.join(words[:3])}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_of_a_page_have_verbs_and_options_that_there_are(page: Path) -> None:
    wrong = [found for words in commands(page.read_text(encoding="utf-8")) if (found := check(words)) is not None]
    assert wrong == []


def test_a_wrong_verb_and_a_wrong_option_are_found() -> None:
    text = "`rivertwice fixx orders`\n```sh\nrivertwice stop orders --now && rivertwice down  # all\n```\n"
    assert [check(words) for words in commands(text)] == [
        "['--now'] are not options of rivertwice stop orders",
        None,
        "fixx is not a verb",
    ]


def test_what_is_red_has_a_row_that_says_what_to_do() -> None:
    page = (REPOSITORY / "docs" / "howto-red.md").read_text(encoding="utf-8")
    named = {*map(str, REACTIONS), *KINDS} - {"test"}
    assert sorted(word for word in named if f"`{word}`" not in page) == []


@pytest.mark.parametrize(
    ("words", "page", "heading"),
    [
        ("add field", "howto-change", "Add a field"),
        ("change window", "howto-change", "Change the window"),
        ("stream red", "howto-red", "The stream is red or down: what now"),
        ("stream down what now", "howto-red", "The stream is red or down: what now"),
        ("records late what now", "howto-red", "Records are late, or the data are red or yellow: what now"),
        ("how much memory", "howto-deploy", "How much memory, for how many records a second"),
        ("EMR", "services", "Spark: EMR, Dataproc, Databricks, Kubernetes"),
        ("MSK", "services", "Kafka: MSK, Confluent Cloud and others"),
        ("Databricks", "services", "Spark: EMR, Dataproc, Databricks, Kubernetes"),
        ("query from Trino", "howto-results", "Trino, Snowflake, BigQuery, DuckDB, pandas: read from other tools"),
        ("delete person data", "howto-privacy", "Erase a person: delete what is stored about somebody"),
        ("remove pipeline", "howto-deploy", "Clean up: remove a pipeline, or everything"),
        ("upgrade Spark", "support", "One version of Spark, and how to upgrade it"),
        ("savepoint proved", "howto-savepoints", "How to take, prove and restore savepoints"),
        ("dead letters", "howto-dead-letters", "Dead letters"),
        ("alert PagerDuty", "howto-watch", "Send an alert to PagerDuty, Opsgenie or another service of alerts"),
        ("backfill last week", "howto-correct", "Backfill last week, or any range"),
        ("run without Airflow", "howto-airflow", "Run without Airflow"),
        ("S3", "howto-deploy", "S3 and more than one host"),
        ("OPEN mean", "howto-red", "What OPEN means, and what closes a window"),
        ("how do I add a field?", "howto-change", "Add a field"),
        ("what does OPEN mean", "howto-red", "What OPEN means, and what closes a window"),
        ("how do I use S3", "howto-deploy", "S3 and more than one host"),
        ("where are dead letters?", "howto-dead-letters", "Dead letters"),
        ("rotate Kafka password", "howto-stream", "Rotate a Kafka password"),
        ("MWAA", "services", "Airflow: MWAA, Composer, Astronomer"),
        ("how large is the installation", "support", "How large the installation is"),
        ("migrate from flink", "migrate", "Migrate from Flink SQL"),
        ("dbt", "migrate", "Migrate from a dbt microbatch model"),
        ("foreachBatch", "migrate", "Migrate from Structured Streaming with foreachBatch to Delta"),
        ("spark-submit", "migrate", "Migrate from an Airflow DAG that runs spark-submit"),
    ],
)
def test_the_first_section_that_a_search_finds_answers_the_question(words: str, page: str, heading: str) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md"))}
    assert find_sections(texts, words)[0][:2] == (page, heading)
