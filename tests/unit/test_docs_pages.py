"""The docs name commands that there are, say what to do about all that is red, and are found by the words of a question."""

from __future__ import annotations

import re
import shlex
import zipfile
from collections import Counter
from pathlib import Path

import click
import pytest

from homes.project import REPOSITORY
from rivertwice.agent import KINDS, REACTIONS
from rivertwice.cli.docs import find_sections
from running.docs_commands import ANYWHERE, PAGES, VERB_ALONE, command_of, commands, pasted, run_all
from running.reader import build_wheel


def check(words: list[str]) -> str | None:
    """Return what the command line would not understand; None: nothing. Values and missing names are not looked at."""
    try:
        command, rest = command_of(words)
    except LookupError as unknown:
        return f"{unknown} is not a verb"
    params = command.get_params(click.Context(command))
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)} | {"--help", "--debug"}
    unknown = [word for word in rest if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return None if not set(unknown) - set(ANYWHERE) else f"{unknown} are not options of {' '.join(words[:3])}"


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


@pytest.mark.long
def test_every_command_that_needs_no_service_runs_from_the_wheel(tmp_path: Path) -> None:
    """The others are named by `python -m running.docs_commands`, each with its reason."""
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "wheel")
    outcomes = run_all(tmp_path / "wheel", tmp_path)
    assert [f"{shlex.join(each.run)}: {each.said[-500:]}" for each in outcomes if each.has_failed] == []
    copied = {tuple(words) for page in PAGES for words in pasted(page.read_text(encoding="utf-8"))}
    assert [each.words for each in outcomes if each.reason == VERB_ALONE and each.words in copied] == []
    reasons = Counter(each.reason for each in outcomes)
    assert reasons[None] > 80, reasons


def test_what_is_red_has_a_row_that_says_what_to_do() -> None:
    page = (REPOSITORY / "docs" / "howto-red.md").read_text(encoding="utf-8")
    named = {*map(str, REACTIONS), *KINDS} - {"test", "week"}
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
        ("upgrade Spark", "support", "Upgrade Spark"),
        ("savepoint proved", "howto-savepoints", "How to take, prove and restore savepoints"),
        ("dead letters", "howto-quality", "Dead letters"),
        ("alert PagerDuty", "howto-watch", "Send an alert to PagerDuty, Opsgenie or another service of alerts"),
        ("backfill last week", "howto-correct", "Backfill last week, or any range"),
        ("run without Airflow", "howto-airflow", "Run without Airflow"),
        ("S3", "howto-deploy", "S3 and more than one host"),
        ("OPEN mean", "howto-red", "What OPEN means, and what closes a window"),
        ("how do I add a field?", "howto-change", "Add a field"),
        ("what does OPEN mean", "howto-red", "What OPEN means, and what closes a window"),
        ("how do I use S3", "howto-deploy", "S3 and more than one host"),
        ("where are dead letters?", "howto-quality", "Dead letters"),
        ("rotate Kafka password", "howto-stream", "Rotate a Kafka password"),
        ("MWAA", "services", "Airflow: MWAA, Composer, Astronomer"),
        ("how large is the installation", "services", "How large the installation is"),
        ("migrate from flink", "migrate", "Migrate from Flink SQL"),
        ("dbt", "migrate", "Migrate from a dbt microbatch model"),
        ("foreachBatch", "migrate", "Migrate from Structured Streaming with foreachBatch to Delta"),
        ("spark-submit", "migrate", "Migrate from an Airflow DAG that runs spark-submit"),
    ],
)
def test_the_first_section_that_a_search_finds_answers_the_question(words: str, page: str, heading: str) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "docs").glob("*.md"))}
    assert find_sections(texts, words)[0][:2] == (page, heading)
