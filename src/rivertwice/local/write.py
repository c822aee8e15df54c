"""The files of a project: their texts, which there are, and writing those that are absent."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivertwice import __version__
from rivertwice.core import RequestError, did_you_mean, find_shipped
from rivertwice.definition import MOST_EXACT, decimal_digits, format_duration
from rivertwice.local.changes import render_fold, render_table
from rivertwice.local.first_case import make_cases
from rivertwice.local.guess import HEARTBEAT, YAML, Guess, GuessReason, Overrides, make_guess
from rivertwice.local.produce import SAMPLE_FILE
from rivertwice.local.sample import BATCH, TOPIC, orders_sample, orders_text

# The texts of a guessed definition: `pipeline.yaml` and `transform.sql`. Pure.

GAP = "TODO"
_WIDTH = 110
_WORDS = frozenset({
    "all", "and", "any", "as", "between", "both", "by", "case", "cast", "check", "collate", "column", "create",
    "cross", "current", "date", "day", "delete", "desc", "describe", "distinct", "else", "end", "escape", "except",
    "exists", "extract", "false", "fetch", "filter", "for", "foreign", "from", "full", "function", "grant", "group",
    "grouping", "having", "hour", "in", "index", "inner", "insert", "intersect", "interval", "into", "is", "join",
    "leading", "left", "like", "limit", "minute", "month", "natural", "not", "null", "of", "offset", "on", "only",
    "or", "order", "outer", "over", "overlaps", "partition", "position", "primary", "range", "references", "right",
    "row", "rows", "second", "select", "session", "some", "start", "table", "then", "time", "timestamp", "to",
    "trailing", "true", "type", "union", "unique", "unknown", "update", "user", "using", "values", "view", "when",
    "where", "window", "with", "year",
})  # fmt: skip


def quoted(name: str) -> str:
    """Return a column as SQL writes it: in backticks if SQL has a word like it."""
    return f"`{name}`" if name in _WORDS else name


def _comment(text: str, indent: str = "") -> list[str]:
    """Return a text as comment lines of YAML. A name in it may hold anything: what YAML would not read becomes a question mark."""
    lines, line = [], ""
    for word in "".join(each if each.isprintable() or each.isspace() else "?" for each in text).split():
        if line and len(indent) + 2 + len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [f"{indent}# {each}" for each in (*lines, line)]


def _reason(guess: Guess, what: str) -> str:
    found = next((each for each in guess.findings if each.what == what), None)
    return "" if found is None else f"{found.sure}: {found.why}"


def render_yaml(guess: Guess) -> str:
    """Return the text of `pipeline.yaml`, with the reason of each guess as a comment."""
    sample, view = guess.sample, guess.view
    if guess.table is not None:
        head = _comment(
            f"Guessed by `rivertwice init` from {len(sample.records)} change events of {sample.origin}. Check each part against the table: a guess "
            "sees a sample only. `rivertwice docs howto-cdc` explains what comes out."
        )
        return "\n".join([*head, *render_table(guess.table, guess.name, view)]) + "\n"
    lines = [
        *_comment(
            f"Guessed by `rivertwice init` from {len(sample.records)} records of {sample.origin}. Check each part against what you know: "
            "a guess sees a sample only. `rivertwice docs definitions` explains every field."
        ),
        f"name: {guess.name}",
        f"description: {json.dumps(_description(guess), ensure_ascii=False)}",
        "",
        "sources:",
        f"  {view}: # what transform.sql calls the topic",
        f"    topic: {json.dumps(sample.topic)}",
        f"    partitions: {sample.partitions}",
        *_format_lines(guess),
        "    schema:",
        *_schema_lines(guess),
        *_epoch_lines(guess),
        *_path_lines(guess),
        *_decimal_lines(guess),
        *_comment(_reason(guess, "required"), "    "),
        f"    required: [{', '.join(guess.required)}]",
        *_comment(_reason(guess, "event time"), "    "),
        _event_line(guess),
        *_comment(_reason(guess, "watermark"), "    "),
        f"    watermark: {format_duration(guess.watermark)}",
        *_comment(_reason(guess, "max_future"), "    "),
        f"    max_future: {format_duration(guess.max_future)}",
        *(
            [
                f"    heartbeat: {{{HEARTBEAT}: true}} # closes the last windows, counted nowhere: `rivertwice send {guess.name} --close`"
            ]
            if guess.has_heartbeat
            else []
        ),
        "",
        *_comment(_reason(guess, "window")),
        f"window: {{size: {format_duration(guess.window)}}}",
        "",
        *_comment(_reason(guess, "keys")),
        f"keys: [{', '.join(guess.keys)}]",
        f"count_column: {guess.count_column}",
        "columns:",
        f"  {guess.count_column}: {{compare: exact}}",
        *(f"  {each.column}: {{compare: exact}}" for each in guess.measures),
        "",
        "emit: final # a window's rows come once, when the watermark has passed its end",
        "late: {policy: drop} # or side_output, or correct: `rivertwice docs howto-correct`",
    ]
    return "\n".join(lines) + "\n"


def _description(guess: Guess) -> str:
    by = f" per {', '.join(guess.keys)} and" if guess.keys else " per"
    figures = "".join(f", {each.text}" for each in guess.measures)
    return f"Records{figures}{by} {format_duration(guess.window)} of {guess.sample.topic}."


def _format_lines(guess: Guess) -> list[str]:
    encoding = guess.sample.encoding
    lines = [] if encoding.format == "json" else [f"    format: {encoding.format} # by the schemas pinned in schemas/"]
    lines += ["    framing: confluent # a schema id stands before each value"] if encoding.framed else []
    return lines + ([f"    subject: {json.dumps(encoding.subject)}"] if encoding.subject else [])


def _schema_lines(guess: Guess) -> list[str]:
    lines = []
    for each in guess.fields:
        if each.kind is None:
            lines += _comment(f"not taken: {each.name}: {each.why}", "      ")
            continue
        absent = "" if each.complete else f", absent in {each.total - each.seen} of {each.total}"
        example = each.example if each.example.isprintable() else "..."
        key = (
            f'"{each.name}"'
            if each.name in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
            else each.name
        )
        lines.append(f"      {key}: {each.kind} # for instance {example}{absent}")
    if guess.has_heartbeat:
        lines.append(f"      {HEARTBEAT}: boolean # of heartbeats alone")
    return lines or ["      {}"]


def _epoch_lines(guess: Guess) -> list[str]:
    units = {each.name: each.unit for each in guess.declared if each.unit is not None}
    if not units:
        return []
    inner = ", ".join(f"{name}: {unit}" for name, unit in units.items())
    return [f"    epochs: {{{inner}}} # numbers since 1970-01-01T00:00Z"]


def _path_lines(guess: Guess) -> list[str]:
    paths = {each.name: guess.sample.paths[each.name] for each in guess.declared if each.name in guess.sample.paths}
    if not paths:
        return []
    return [
        "    paths: # where the records have these fields",
        *(f"      {name}: {path}" for name, path in paths.items()),
    ]


def _decimal_lines(guess: Guess) -> list[str]:
    decimals = [each.kind for each in guess.declared if each.kind is not None and each.kind.startswith("decimal")]
    has_room = all(decimal_digits(kind)[0] <= MOST_EXACT for kind in decimals)
    if guess.sample.encoding.format != "json" or not decimals or not has_room:
        return []
    return [
        "    decimals: exact # a number with more digits after the point than its type is a dead letter, not rounded"
    ]


def _event_line(guess: Guess) -> str:
    if guess.event_time is None:
        return f"    event_time: # {GAP}: name the timestamp field of the schema here, and in window() of transform.sql"
    return f"    event_time: {guess.event_time.name}"


def render_sql(guess: Guess) -> str:
    """Return the text of `transform.sql`."""
    event = quoted(guess.event_time.name) if guess.event_time is not None else "event_time"
    columns = [
        "window.start AS window_start",
        "window.end AS window_end",
        *(quoted(key) for key in guess.keys),
        f"count(*) AS {guess.count_column}",
        *(f"{each.expression(quoted(each.field))} AS {each.column}" for each in guess.measures),
    ]
    keys = "".join(f", {quoted(key)}" for key in guess.keys)
    has_sums = any(each.function in ("sum", "mean") for each in guess.measures)
    lines = [
        "-- One row per window and key. The stream runs this text, and so does every recompute.",
        *(
            []
            if guess.event_time is not None
            else [f"-- {GAP}: write the field of event_time into window(), as pipeline.yaml names it."]
        ),
        *(["-- Sums are decimals: the same digits whatever the order of the rows."] if has_sums else []),
        "SELECT",
        ",\n".join(f"  {column}" for column in columns),
        f"FROM {guess.view}",
        f"GROUP BY window({event}, '{format_duration(guess.window)}'){keys}",
    ]
    return "\n".join(lines) + "\n"


def finding_rows(findings: Sequence[GuessReason]) -> list[tuple[str, str, str, str, str]]:
    """Return the rows of the table that shows the guess."""
    return [(each.what, each.value or "?", each.sure, each.why, each.where) for each in findings]


# The files around a definition: settings, suites' page, compose, CI, `README.md`. Pure.

KAFKA_IMAGE = "apache/kafka:4.3.1"
SETTINGS = """\
# Settings of this project. Each is also a variable of the environment, RIVERTWICE_ and the name in capitals, which wins.
# No secret belongs into this file: the password of Kafka comes from RIVERTWICE_KAFKA_PASSWORD, or from a file named below.

# Kafka. Without it commands use the embedded broker that `rivertwice up` starts; `docker compose up -d` starts one at this address.
# bootstrap: 127.0.0.1:9092

# kafka:
#   protocol: SASL_SSL # or PLAINTEXT, SSL, SASL_PLAINTEXT
#   mechanism: SCRAM-SHA-512 # or PLAIN, SCRAM-SHA-256, OAUTHBEARER, AWS_MSK_IAM
#   username: streams # with OAUTHBEARER the client's id
#   password_file: /run/secrets/kafka # with OAUTHBEARER the client's secret
#   token_endpoint: https://login.example.com/oauth2/token # of OAUTHBEARER
#   scope: kafka # of OAUTHBEARER
#   extensions: logicalCluster=lkc-1,identityPoolId=pool-1 # of OAUTHBEARER
#   region: eu-central-1 # of AWS_MSK_IAM
#   ca: certificates/ca.pem
#   certificate: certificates/client.pem

# kafka_conn_id: kafka_prod # Airflow's connection that tasks of DAGs read Kafka's address and login from, in place of the above
# aws_conn_id: lake # the same for S3
# spark_master: local[*] # or spark://HOST:7077
# spark_remote: sc://spark:15002 # archive, reconcile, backfill and try run there
# home: .rivertwice # folder of all state
# shared: s3://BUCKET/PREFIX # place of all data that outlives a host
# savepoints: s3://BUCKET/PREFIX
# leases: s3://BUCKET/PREFIX # place of the leases of streams, if it is another one
# verdicts_kept: 90 days
# metrics: 127.0.0.1:9464 # where the agent serves its figures for Prometheus
# listen: 127.0.0.1:8443 # where the agent answers Airflow's workers on other hosts
# listen_certificate: server.pem # its key and certificates; needed unless the address is of this machine alone
# page: https://airflow.example.com # where people open Airflow; links in alerts begin with it
# airflow: {dags: [reconcile, backfill, operate], paused: true} # how DAGs run, of pipelines that do not say it themselves
# downloads: .build # folder of Java and of jars that `rivertwice setup` downloads; default: a cache of the user
# alerts: alerts.yaml # routes of alerts
"""
EXPECTATIONS = """\
# What these suites gate

`rivertwice reconcile` judges its results by them (Great Expectations, JSON). They are copies of those that rivertwice brings along,
and count instead of them: change them for this project, or delete both to use those of the installed version.

| file | judges | gates |
|---|---|---|
| `verdicts.json` | for each window, how many rows have each verdict | a `critical` expectation that fails makes the reconcile fail (exit 3): a DEFECT, or a difference without a cause |
| `balance.json` | for each partition: read = emitted + open + late + dead + excluded | likewise; a late share above `late.alert_share` is a `warning`, which is reported and does not fail |
| `NAME/windows.json` | what the windows of pipeline NAME serve, your own expectations of the data | `critical` fails the reconcile, `warning` is reported, `info` is recorded |
| `NAME/corrections.json` | what a backfill of NAME would publish | `critical` keeps it from being published |

`rivertwice lint NAME` checks the last two, `rivertwice quality NAME` shows what they found. `rivertwice docs howto-quality` has all of it.
"""
GITIGNORE = """\
.rivertwice/
.build/
.venv/
metastore_db/
derby.log
spark-warehouse/
__pycache__/
"""
COMPOSE = f"""\
# An own broker for this project, on loopback: `docker compose up -d`, then write `bootstrap: 127.0.0.1:9092` into rivertwice.yaml.
# `rivertwice up` starts an embedded broker instead, without Docker. Agent and Airflow run from the installed package.
services:
  kafka:
    image: {KAFKA_IMAGE}
    restart: unless-stopped
    ports: ["127.0.0.1:9092:9092"]
    environment:
      KAFKA_NODE_ID: "1"
      KAFKA_PROCESS_ROLES: broker,controller
      KAFKA_CONTROLLER_QUORUM_VOTERS: 1@localhost:9093
      KAFKA_LISTENERS: PLAINTEXT://:9092,CONTROLLER://:9093
      KAFKA_ADVERTISED_LISTENERS: PLAINTEXT://127.0.0.1:9092
      KAFKA_CONTROLLER_LISTENER_NAMES: CONTROLLER
      KAFKA_LISTENER_SECURITY_PROTOCOL_MAP: PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
      KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR: "1"
      KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR: "1"
      KAFKA_TRANSACTION_STATE_LOG_MIN_ISR: "1"
      KAFKA_AUTO_CREATE_TOPICS_ENABLE: "false"
      KAFKA_LOG_RETENTION_MS: "-1" # records are kept: a recompute reads them again
      KAFKA_LOG_DIRS: /var/lib/kafka/data
    volumes:
      - kafka:/var/lib/kafka/data
    healthcheck:
      test: ["CMD", "bash", "-c", "</dev/tcp/localhost/9092"]
      interval: 10s
      timeout: 10s
      retries: 12

volumes:
  kafka:
"""
CI = f"""\
# Definitions are checked and their cases run on every change: no Kafka is needed.
name: rivertwice
on: [push, pull_request]

jobs:
  definitions:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {{python-version: "3.11"}}
      - run: pip install uv && uv pip install --system "rivertwice[spark,quality]=={__version__}"
      - run: rivertwice setup
      - run: rivertwice lint
      - run: rivertwice test
"""


def render_readme(guess: Guess | None, *, has_sample: bool = False) -> str:
    """Return the text of `README.md`: the next commands."""
    if guess is None:
        return (
            "# A project of rivertwice\n\nIt has no pipeline yet. Guess one from a topic or a file of sample records, or take generated ones:\n\n"
            "```sh\nrivertwice init NAME --from-topic TOPIC\nrivertwice init NAME --from-file FILE\nrivertwice init --sample\n```\n"
        )
    name, gaps = guess.name, guess.gaps
    first = [f"pipelines/{name}/pipeline.yaml: write {', '.join(gaps)} (marked TODO), then:", ""] if gaps else []
    up = ["rivertwice up # Java and jars (once), broker (unless rivertwice.yaml names one), topics, agent"]
    if has_sample:
        up = ["rivertwice up --sample # Java and jars (once), broker, topics, agent; sends sample.jsonl"]
    elif guess.sample.is_file:
        up += [
            f"rivertwice send {name} FILE{''.join(f' {shlex.quote(word)}' for word in guess.sample.said)} # send the records of a file to the topic {guess.sample.topic}"
        ]
    lines = [
        "# A project of rivertwice",
        "",
        f"`pipelines/{name}/` was guessed from {guess.sample.origin}. The comments in `pipeline.yaml` say why each part is as it is.",
        "",
        *first,
        "```sh",
        *up,
        f"rivertwice start {name} --wait # until the stream has read what is in the log now",
        *([f"rivertwice send {name} --close # close the file's last windows"] if guess.has_heartbeat else []),
        f"rivertwice reconcile {name} # recompute, and name the cause of every row that differs",
        f"rivertwice show {name}{' --by-key # the table' if guess.table else ' # the rows that are served'}",
        f"rivertwice lint {name} # is the definition accepted, and what does it promise?",
        f"rivertwice test {name} # its cases, as a stream and as a batch",
        *([] if guess.table else [f"rivertwice advise {name} # what other watermark delays would have done"]),
        "```",
        "",
        "| file | what it is |",
        "|---|---|",
        f"| `pipelines/{name}/pipeline.yaml`, `{'fold.py' if guess.table else 'transform.sql'}` | the definition |",
        *([] if guess.table else [f"| `pipelines/{name}/cases/` | tests: records in, rows out |"]),
        "| `rivertwice.yaml` | settings |",
        "| `expectations/` | the gate of a reconcile |",
        *(
            []
            if guess.table
            else [f"| `expectations/{name}/windows.json` | what you expect of the data: checked with each reconcile |"]
        ),
        "| `docker-compose.yml` | a broker, if you have none |",
        "| `.github/workflows/rivertwice.yml` | lint and test on every change |",
        "",
    ]
    return "\n".join(lines)


# A first suite of data quality for a guessed pipeline: what its sample says of the rows. Pure.

MOST_VALUES = 20
"""The maximum number of values of a key for an expectation that names them."""


def suite_path(name: str) -> str:
    """Return where the suite of a pipeline lies, below the project."""
    return f"expectations/{name}/windows.json"


def make_suite(guess: Guess) -> str:
    """Return the text of `windows.json`, as Great Expectations writes a suite: one expectation a line."""
    entries = [
        *(
            _entry("expect_column_values_to_not_be_null", "critical", f"every row has its {key}", column=key)
            for key in guess.keys
        ),
        _entry(
            "expect_column_values_to_be_between",
            "critical",
            "a row counts at least one record",
            column=guess.count_column,
            min_value=1,
        ),
        *(
            _entry(
                "expect_column_values_to_be_in_set",
                "warning",
                f"CHECK: the values of {key} in the sample; add those that it lacks",
                column=key,
                value_set=values,
            )
            for key in guess.keys
            if (values := _values(guess, key))
        ),
    ]
    lines = ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in entries)
    return f'{{\n  "name": "{guess.name} windows",\n  "expectations": [\n{lines}\n  ]\n}}\n'


def _values(guess: Guess, key: str) -> list[str]:
    """Return the texts that a key has in the sample, sorted; none if it is not a text, or has many."""
    kind = next((each.kind for each in guess.declared if each.name == key), None)
    seen = [value for record in guess.sample.records if (value := record.value.get(key)) is not None]
    if kind != "string" or not all(isinstance(value, str) for value in seen):
        return []
    values = sorted(set(seen))
    return values if 1 < len(values) <= MOST_VALUES else []


def _entry(kind: str, severity: str, because: str, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "severity": severity, "kwargs": kwargs, "meta": {"because": because}}


SUITES = ("expectations/balance.json", "expectations/verdicts.json")


@dataclass(frozen=True)
class WrittenFile:
    """One file of a project.

    Attributes:
        path: below the project.
        text: what is written, or would be.
        state: `written`, `would be written`, `exists` (it was left as it is), or `left out` (its pipeline exists without it).
    """

    path: str
    text: str
    state: str


def pipeline_files(guess: Guess) -> dict[str, str]:
    """Return the files of a guessed pipeline: path below the project to text."""
    folder = f"pipelines/{guess.name}"
    if guess.table is not None:
        return {f"{folder}/pipeline.yaml": render_yaml(guess), f"{folder}/fold.py": render_fold(guess.table)}
    return {
        f"{folder}/pipeline.yaml": render_yaml(guess),
        f"{folder}/transform.sql": render_sql(guess),
        **{f"{folder}/{path}": text for path, text in guess.sample.encoding.files.items()},
        **{f"{folder}/cases/{name}": text for name, text in make_cases(guess).items()},
        suite_path(guess.name): make_suite(guess),
    }


def example_files(project: Path, name: str) -> dict[str, str]:
    """Return the files of an example: path below the project to text.

    Raises:
        RequestError: there is no such example.
    """
    examples = find_shipped(project, "pipelines/examples")
    folder = examples / name
    if name not in {path.parent.name for path in examples.glob(f"*/{YAML}")}:
        known = [path.parent.name for path in examples.glob(f"*/{YAML}")]
        message = (
            f"there is no example {name}; {did_you_mean(name, known)} (`rivertwice pipelines --examples` lists them)"
        )
        raise RequestError(message)
    texts = {
        path.relative_to(folder): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    # the schema of a clone's editor lies nowhere near a project
    return {
        f"pipelines/{name}/{path}": re.sub(r"\A# yaml-language-server.*\n", "", text) for path, text in texts.items()
    }


def sample_files() -> tuple[Guess, dict[str, str]]:
    """Return the guess of the generated sample and the files of its pipeline, with the records that `rivertwice up --sample` sends."""
    text = orders_text()
    guess = make_guess(TOPIC, orders_sample(text), Overrides())
    files = pipeline_files(guess)
    folder = f"pipelines/{guess.name}"
    files[f"{folder}/{YAML}"] += (
        "\n# Small batches, so that the sample has several: a record is late by the watermark of the batch before its own.\n"
        f"stream: {{max_offsets_per_trigger: {BATCH}}}\n"
    )
    return guess, files | {f"{folder}/{SAMPLE_FILE}": text}


def project_files(guess: Guess | None, project: Path, *, has_sample: bool = False) -> dict[str, str]:
    """Return the files around the pipelines: path below the project to text."""
    return {
        "rivertwice.yaml": SETTINGS,
        "README.md": render_readme(guess, has_sample=has_sample),
        **{name: find_shipped(project, name).read_text(encoding="utf-8") for name in SUITES},
        "expectations/README.md": EXPECTATIONS,
        "docker-compose.yml": COMPOSE,
        ".github/workflows/rivertwice.yml": CI,
        ".gitignore": GITIGNORE,
    }


def write_project(
    project: Path, files: Mapping[str, str], guess: Guess | None, *, has_sample: bool, dry_run: bool
) -> list[WrittenFile]:
    """Write the files of a pipeline and those around it that are absent, and return all of them. No file that exists is changed.

    A pipeline whose `pipeline.yaml` exists is left as it is: what it lacks would belong to another guess.
    """
    files = {**files, **project_files(guess, project, has_sample=has_sample)}
    kept = {path.removesuffix(YAML) for path in files if path.endswith(f"/{YAML}") and (project / path).exists()}
    kept |= {suite_path(Path(folder).name) for folder in kept}
    # pipeline.yaml comes last: a run that is interrupted before it is completed by the next one.
    ordered = sorted(files.items(), key=lambda item: item[0].endswith(f"/{YAML}"))
    written = []
    for path, text in ordered:
        target = project / path
        if target.exists():
            state = "exists"
        elif any(path.startswith(folder) for folder in kept):
            state = "left out"
        else:
            state = "would be written" if dry_run else _write(target, text)
        written.append(WrittenFile(path, text, state))
    return written


def _write(target: Path, text: str) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return "exists"
    return "written"
