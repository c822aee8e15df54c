"""Whoever starts, upgrades, tests or lints a definition meets the checks: refused by name, file, line and column, before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from homes.ledger import ledger_row
from homes.project import write_definition
from homes.savepoint import commit_batches
from rivertwice.agent.backoff import REACTIONS, Response, classify_exit
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.definition.bundle import Bundle, build_bundle
from rivertwice.engine import checks
from rivertwice.stream import driver
from rivertwice.stream.lease import Lease
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import last_seq, move_head

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
YAML = """
name: NAME
description: test
sources:
  events:
    topic: NAME
    partitions: 1
    schema: {k: string, at: timestamp, v: bigint, x: double}
    required: [k]
    event_time: at
    watermark: 1 minute
    max_future: 1 hour
window: {size: 1 minute}
keys: [k]
count_column: n
columns: {n: {}, total: {}}
"""
INTERVALS = YAML.replace("window: {size: 1 minute}", "window: {every: 1 minute, lookback: 1 minute, at: at}").replace(
    "keys: [k]\ncount_column: n\ncolumns: {n: {}, total: {}}", "keys: [k, at]\ncolumns: {v: {}}"
)
SQL = """SELECT window.start AS window_start, window.end AS window_end, k,
  count(*) AS n,
  sum(v) AS total
FROM events
GROUP BY window(at, '1 minute'), k
"""
JOIN = """SELECT a.window_start, a.window_end, a.k, a.at, b.v
FROM events a
JOIN events b ON a.k = b.k
"""
BROKEN = {
    "sum_of_doubles": (YAML, SQL.replace("sum(v)", "sum(x)"), "line 3, column 3: column 'total' adds floating-point numbers"),
    "join_across_windows": (INTERVALS, JOIN, "line 3, column 1: a JOIN does not demand that window_start is the same"),
    "group_beyond_keys": (YAML, SQL.replace("'), k", "'), k, v"), "it groups by [3] expressions, but window and keys are 2"),
    "no_sql": (YAML, SQL.replace("n,", "n FROM,"), "line 2, column 21: Spark refuses the SQL: [PARSE_SYNTAX_ERROR]"),
    "no_column": (YAML, SQL.replace("sum(v)", "sum(w)"), "line 3, column 7: Spark refuses the SQL: [UNRESOLVED_COLUMN"),
    "no_view": (YAML, SQL.replace("events", "orders"), "line 4, column 6: Spark refuses the SQL: [TABLE_OR_VIEW_NOT_FOUND]"),
    "no_function": (YAML, SQL.replace("sum(v)", "add(v)"), "line 3, column 3: Spark refuses the SQL: [UNRESOLVED_ROUTINE]"),
    "no_key": (YAML.replace("keys: [k]", "keys: [q]"), SQL, "the definition's key 'q' is not a column of the result"),
    "no_yaml": ("name: [", SQL, "is not YAML"),
}  # fmt: skip
CASE = """
description: two events
batches:
  - - {id: a, at: "2026-01-01T00:00:10Z", value: {k: a, at: "2026-01-01T00:00:10Z", v: 1}}
    - {id: b, at: "2026-01-01T00:00:20Z", value: {k: a, at: "2026-01-01T00:00:20Z", v: 2}}
expect:
  batch: [{window_start: "2026-01-01T00:00:00Z", k: a, n: 2, total: 3}]
  stream: []
"""


def write(project: Path, name: str, yaml: str = YAML, sql: str = SQL, **files: str) -> Path:
    others = {key.replace("__", "."): text for key, text in files.items()}
    definition = {"pipeline.yaml": yaml.replace("NAME", name), "transform.sql": sql, **others}
    return write_definition(project / "pipelines" / name, definition)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A project of the test's own, with one definition that holds, as the environment says it."""
    write(tmp_path, "fine")
    monkeypatch.setenv("RIVERTWICE_PROJECT", str(tmp_path))
    monkeypatch.setenv("RIVERTWICE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RIVERTWICE_BOOTSTRAP", raising=False)
    return Settings.from_env()


@pytest.fixture
def run(settings: Settings) -> Callable[..., Result]:
    def invoke(*arguments: str, output: str = "text") -> Result:
        return CliRunner().invoke(cli, ["--output", output, *arguments])

    return invoke


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let every further check fail: what was judged already must not be judged again."""

    def refuse(*_: Any) -> NoReturn:
        message = "checked again"
        raise AssertionError(message)

    return lambda: monkeypatch.setattr(checks, "examine_definition", refuse)


def drive(monkeypatch: pytest.MonkeyPatch, name: str) -> int:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    # The next driver would end the shared session's JVM.
    monkeypatch.setattr(Lease, "record_jvm", lambda *_: None)
    return driver.main(["--pipeline", name])


@pytest.mark.proves(
    "architecture.md#intervals", "howto-stream.md#how-to-run-a-stream-and-what-the-agent-does-when-it-fails"
)
@pytest.mark.parametrize("name", ["sum_of_doubles", "join_across_windows", "group_beyond_keys"])
def test_a_driver_refuses_it_before_it_stores_anything_and_the_agent_stops(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    forbid: Callable[[], None],
    run: Callable[..., Result],
    name: str,
) -> None:
    yaml, sql, words = BROKEN[name]
    folder, home = write(settings.project, name, yaml, sql), settings.pipeline(name)
    assert drive(monkeypatch, name) == 1
    ended = Exit.load(home)
    assert ended is not None
    assert f"{folder}/transform.sql: {words}" in ended.message
    assert REACTIONS[classify_exit(ended.failure, "", 1)].response is Response.STOP
    assert [path for path in (home.bundles, home.timelines, home.tables.root) if Path(str(path)).exists()] == []
    forbid()
    assert drive(monkeypatch, name) == 1  # the verdict is kept: a second start pays nothing
    asked = run("start", name)
    assert (asked.exit_code, words in asked.stderr, home.intent.exists()) == (1, True, False)


def test_a_driver_takes_what_was_judged_before(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, forbid: Callable[[], None], run: Callable[..., Result]
) -> None:
    assert run("lint", "fine").exit_code == 0
    forbid()
    assert drive(monkeypatch, "fine") == 1
    ended = Exit.load(settings.pipeline("fine"))
    assert ended is not None
    assert "no Kafka address" in ended.message  # past the checks


def test_only_what_ran_before_the_checks_may_go_on_without_them(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    yaml, sql, _ = BROKEN["sum_of_doubles"]
    bundle = build_bundle(write(settings.project, "p", yaml, sql))
    begin(settings, bundle)
    monkeypatch.setattr("rivertwice.stream.begin.is_first_run", lambda *_: False)
    assert drive(monkeypatch, "p") == 1
    ended = Exit.load(settings.pipeline("p"))
    assert ended is not None
    assert "no Kafka address" in ended.message


def begin(settings: Settings, bundle: Bundle) -> None:
    """Let the pipeline have a timeline that this bundle began."""
    name = bundle.definition.name
    home = settings.pipeline(name)
    bundle.save(home.bundles)
    line = Timeline(
        pipeline=name,
        timeline="t1",
        parent=None,
        first_batch=0,
        genesis={name: {"0": 0}},
        bundle=bundle.id,
        fingerprint=bundle.fingerprint.hashes(),
        cluster_id="c",
        topic_ids={name: "x"},
        created_at=utc_now(),
    )
    create_timeline(home, line)
    move_head(home, "t1", reason="first start", expected_seq=last_seq(home), now=utc_now())


def test_an_upgrade_to_what_the_checks_refuse_is_refused_first(settings: Settings, run: Callable[..., Result]) -> None:
    bundle = build_bundle(settings.definitions / "fine")
    begin(settings, bundle)
    # A stream without a batch has no state to continue from: its start takes the changed definition.
    commit_batches(settings.pipeline("fine"), [ledger_row(0, pipeline="fine", bundle=bundle.id)])
    folder = write(settings.project, "fine", rows__sql="SELECT * FROM events\nWHERE w > 1\n")
    shown, done = run("upgrade", "fine", output="json"), run("upgrade", "fine", "--yes")
    words = f"{folder}/rows.sql: line 2, column 7: Spark refuses the SQL: [UNRESOLVED_COLUMN"
    assert (shown.exit_code, words in json.loads(shown.stdout)["refusal"]) == (1, True)
    assert (done.exit_code, words in done.stderr) == (1, True)
    assert len(list(Path(str(settings.pipeline("fine").bundles)).iterdir())) == 1


@pytest.mark.core
@pytest.mark.proves(
    "definitions.md#intervals-joins-rolling-figures-first-sightings-patterns", "lab/docs/scenarios.md#scenarios"
)
def test_lint_names_every_broken_part_of_every_definition_and_exits_3(
    settings: Settings, run: Callable[..., Result]
) -> None:
    for name, (yaml, sql, _) in BROKEN.items():
        write(settings.project, name, yaml, sql)
    result = run("lint", output="json")
    assert result.exit_code == 3
    found = {one["pipeline"]: one["findings"] for one in json.loads(result.stdout)}
    assert list(found) == sorted([*BROKEN, "fine"])
    for name, (_, _, words) in BROKEN.items():
        broken = [one for one in found[name] if one["state"] == "broken"]
        assert broken, name
        assert words in broken[0]["told"], (name, broken)
    states = {one["check"]: one["state"] for one in found["fine"]}
    assert "broken" not in states.values()
    held = ("definition", "global order assumed", "processing-time windows", "wrong repartition key", "unbounded state")
    assert {states[check] for check in held} == {"holds"}


def test_what_lint_did_not_look_at_is_not_called_safe(
    run: Callable[..., Result], forbid: Callable[[], None], settings: Settings
) -> None:
    def states(*arguments: str) -> dict[str, str]:
        result = run("lint", "fine", *arguments, output="json")
        assert result.exit_code == 0
        (one,) = json.loads(result.stdout)
        return {found["check"]: found["state"] for found in one["findings"]}

    by_plan = ("definition", "global order assumed", "processing-time windows", "wrong repartition key")
    assert {states("--without-spark")[check] for check in by_plan} == {"not checked"}
    assert states()["definition"] == "holds"
    forbid()
    assert {states("--without-spark")[check] for check in by_plan} == {"holds"}
    (settings.definitions / "fine" / "transform.sql").write_text(f"{SQL}-- changed\n")
    assert states("--without-spark")["definition"] == "not checked"


@pytest.mark.parametrize(
    ("key", "why"), [("'x'", "the same value in every row"), ("at", "the event time itself")], ids=["constant", "time"]
)
def test_a_key_that_does_not_divide_the_records_is_broken(
    settings: Settings, run: Callable[..., Result], key: str, why: str
) -> None:
    sql = SQL.replace("window_end, k,", f"window_end, {key} AS k,").replace("'), k", f"'), {key}")
    write(settings.project, "p", sql=sql)
    result = run("lint", "p", output="json")
    (broken,) = [one for one in json.loads(result.stdout)[0]["findings"] if one["state"] == "broken"]
    assert (result.exit_code, broken["check"], why in broken["told"]) == (3, "wrong repartition key", True)


def test_the_test_command_runs_all_that_can_be_run_and_names_what_cannot(
    settings: Settings, run: Callable[..., Result]
) -> None:
    yaml, sql, words = BROKEN["no_column"]
    broken = write(settings.project, "a_broken", yaml, sql)
    cases = settings.definitions / "fine" / "cases"
    cases.mkdir()
    (cases / "holds.yaml").write_text(CASE)
    (cases / "is_no_case.yaml").write_text("description: x\nbatches: []\nexpect: {batch: [], stream: []}\n")
    (cases / "lacks_a_key.yaml").write_text(CASE.replace(", k: a, n: 2", ", n: 2"))
    divided = write(settings.project, "throws", sql=SQL.replace("sum(v)", "sum(100 div (v - 2))"))
    (divided / "cases").mkdir()
    (divided / "cases" / "zero.yaml").write_text(CASE)
    result = run("test", output="json")
    assert result.exit_code == 3
    cases_of = {(one["pipeline"], one["case"]): one["differences"] for one in json.loads(result.stdout)["cases"]}
    assert f"{broken}/transform.sql: {words}" in cases_of["a_broken", "(definition)"][0]
    assert cases_of["fine", "(definition)"] == cases_of["fine", "holds"] == []
    assert f"{cases / 'is_no_case.yaml'}: line 2, column 1: batches" in cases_of["fine", "is_no_case"][0]
    assert f"{cases / 'lacks_a_key.yaml'}: expected row" in cases_of["fine", "lacks_a_key"][0]
    assert cases_of["throws", "zero"][-1] == "dead: event 'b' is transform, expected not dead"


def test_up_reports_every_definition_and_starts_what_holds(
    settings: Settings, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, forbid: Callable[[], None]
) -> None:
    from types import SimpleNamespace

    topics: list[str] = []
    broker = SimpleNamespace(bootstrap="b", pid=1, cluster_id="c")
    monkeypatch.setattr("rivertwice.local.broker.start_broker", lambda *_: broker)
    monkeypatch.setattr("rivertwice.definition.topics.ensure_topic", lambda _settings, topic, *_: topics.append(topic))
    monkeypatch.setattr("rivertwice.agent.launch.start_agent", lambda *_: SimpleNamespace(pid=2))
    for name in ("no_yaml", "sum_of_doubles"):
        write(settings.project, name, *BROKEN[name][:2])
    result = run("up", output="json")
    assert result.exit_code == 3, (result.output, result.exception)
    found = json.loads(result.stdout)["definitions"]
    assert {name: one["verdict"] for name, one in found.items()} == {
        "fine": "holds",
        "no_yaml": "broken",
        "sum_of_doubles": "broken",
    }
    assert BROKEN["sum_of_doubles"][2] in found["sum_of_doubles"]["found"][0]
    assert topics == ["fine"]
    forbid()
    again = run("up")
    told = " ".join(again.stdout.split())  # a table folds a long text, and a path may make it long
    assert (again.exit_code, BROKEN["sum_of_doubles"][2] in told) == (3, True)


def test_the_shared_session_outlives_commands_that_borrow_it(run: Callable[..., Result], spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.adaptive.enabled")
    assert run("test", "fine").exit_code == 0
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.adaptive.enabled") == before
