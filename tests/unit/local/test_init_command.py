"""`rivertwice init` from files, without Spark and Kafka: what it writes, what it leaves, and what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from boxes.compose_file import COMPOSE
from rivertwice.cli.main import cli
from rivertwice.core.settings import KAFKA_PATHS, KAFKA_TEXTS, PATHS, TEXTS, Settings, as_variables
from rivertwice.definition.definition import load_definition
from rivertwice.engine.case_files import load_cases
from rivertwice.quality.suites import lint_suites, read_suite
from streams.trips import json_lines, make_trips, value_of

TRIPS = make_trips(900)
FILES = {
    "pipelines/trips/pipeline.yaml", "pipelines/trips/transform.sql",
    "pipelines/trips/cases/records_of_one_window.yaml", "pipelines/trips/cases/a_record_that_is_late.yaml",
    "rivertwice.yaml", "README.md", "expectations/balance.json", "expectations/verdicts.json", "expectations/README.md",
    "expectations/trips/windows.json", "docker-compose.yml", ".github/workflows/rivertwice.yml", ".gitignore",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "own"


@pytest.fixture
def init(project: Path) -> Callable[..., Result]:
    def invoke(*arguments: str, output: str = "text") -> Result:
        return CliRunner().invoke(cli, ["--output", output, "--project", str(project), "init", *arguments])

    return invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trips.jsonl"
    path.write_text(json_lines(TRIPS))
    return path


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_first_suite_names_columns_of_the_definition(
    init: Callable[..., Result], project: Path, file: Path
) -> None:
    init("trips", "--from-file", str(file))
    definition = load_definition(project / "pipelines" / "trips")
    settings = Settings(project=project, home=project / ".rivertwice")
    (finding,) = lint_suites(settings, definition)
    assert finding.state == "holds", finding
    suite = read_suite(settings, "trips", "windows")
    assert suite is not None
    asked = {(str(each["type"]), each["severity"], each["kwargs"]["column"]) for each in suite.expectations}
    assert asked == {
        ("expect_column_values_to_not_be_null", "critical", "station"),
        ("expect_column_values_to_be_between", "critical", definition.count_column),
        ("expect_column_values_to_be_in_set", "warning", "station"),
    }


def test_a_project_is_written_whole_and_its_definition_loads(
    init: Callable[..., Result], project: Path, file: Path
) -> None:
    result = init("trips", "--from-file", str(file))
    assert result.exit_code == 0, result.output
    assert set(tree(project)) == FILES
    definition = load_definition(project / "pipelines" / "trips")
    assert (definition.keys, definition.source[1].event_time) == (["station"], "started_at")
    assert len(load_cases(project / "pipelines" / "trips")) == 2
    assert "next: rivertwice up; rivertwice start trips; rivertwice send trips " in result.output


def test_nothing_that_exists_is_changed_and_the_rest_is_written(
    init: Callable[..., Result], project: Path, file: Path
) -> None:
    init("trips", "--from-file", str(file))
    (project / "README.md").write_text("mine")
    (project / ".gitignore").unlink()
    (project / "pipelines/trips/transform.sql").unlink()
    before = tree(project)
    listed = json.loads(init("trips", "--from-file", str(file), output="json").stdout)["files"]
    states = {each["path"]: each["state"] for each in listed}
    assert tree(project).keys() - before.keys() == {".gitignore"}
    assert {path: text for path, text in tree(project).items() if path != ".gitignore"} == before
    assert states[".gitignore"] == "written"
    assert states["pipelines/trips/transform.sql"] == "left out", "it would belong to another guess"
    assert {states[path] for path in FILES - {".gitignore", "pipelines/trips/transform.sql"}} == {"exists"}


def test_a_second_pipeline_joins_the_project(init: Callable[..., Result], project: Path, file: Path) -> None:
    init("trips", "--from-file", str(file))
    listed = json.loads(init("rides", "--from-file", str(file), output="json").stdout)["files"]
    assert {each["path"] for each in listed if each["state"] == "written"} == {
        path.replace("trips", "rides") for path in FILES if "trips" in path
    }


def test_a_dry_run_prints_the_files_and_writes_none(init: Callable[..., Result], project: Path, file: Path) -> None:
    text = init("trips", "--from-file", str(file), "--dry-run").output
    assert "--- pipelines/trips/transform.sql\n-- One row per window and key." in text
    assert "nothing was written: --dry-run" in text
    value = json.loads(init("trips", "--from-file", str(file), "--dry-run", output="json").stdout)
    assert {each["path"] for each in value["files"] if each["text"]} == FILES
    assert {each["state"] for each in value["files"]} == {"would be written"}
    assert not project.exists()


def test_names_and_values_of_strangers_make_no_file_that_cannot_be_read(
    init: Callable[..., Result], project: Path, tmp_path: Path
) -> None:
    """Names with line breaks, halves of characters, words of YAML and SQL: as they come in records of a topic."""
    values = [
        {"y": number, "order": f"o{number % 3}", "at": trip["started_at"], "x": "\ud800" if number % 2 else "ok: #'\"", "deep": {"b\n\u2028keys: [x]\x00": 1}}
        for number, trip in enumerate(value_of(each) for each in TRIPS)
    ]  # fmt: skip
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    result = init("odd", "--from-file", str(path), "--key", "order", "--columns", "y:sum")
    assert result.exit_code == 0, result.output
    definition = load_definition(project / "pipelines" / "odd")
    assert list(definition.source[1].schema_) == ["y", "order", "at", "x", "is_heartbeat"]
    assert "  `order`,\n" in definition.transform_sql
    assert load_cases(project / "pipelines" / "odd")


def test_each_guess_comes_with_value_reason_and_place(init: Callable[..., Result], file: Path) -> None:
    guess = json.loads(init("trips", "--from-file", str(file), output="json").stdout)["guess"]
    for each in guess["findings"]:
        assert each.keys() == {"what", "value", "why", "sure", "where"}
        assert each["why"]
        assert each["where"]
        assert each["sure"] in ("certain", "likely", "a guess", "unknown")
    named = {each["what"] for each in guess["findings"]}
    assert {"event time", "keys", "window", "watermark", "max_future", "required", "partitions", "sample"} <= named


def test_without_a_time_files_are_written_with_the_gap_and_lint_names_it(
    init: Callable[..., Result], project: Path, tmp_path: Path
) -> None:
    (tmp_path / "trips.jsonl").write_text(json_lines(TRIPS, "no_time"))
    result = init("trips", "--from-file", str(tmp_path / "trips.jsonl"))
    assert result.exit_code == 0
    assert "not known: event_time" in result.output
    linted = CliRunner().invoke(
        cli, ["--output", "json", "--project", str(project), "lint", "trips", "--without-spark"]
    )
    assert linted.exit_code == 3
    path = project / "pipelines/trips/pipeline.yaml"
    number = next(at for at, line in enumerate(path.read_text().splitlines(), start=1) if "event_time: # TODO" in line)
    told = json.loads(linted.stdout)[0]["findings"][0]["told"]
    assert f"{path}: line {number}, column 5: sources.trips.event_time has no value" in told
    assert not (path.parent / "cases").exists()


def test_columns_of_a_csv_become_fields_and_a_zone_makes_times(
    init: Callable[..., Result], project: Path, tmp_path: Path
) -> None:
    rows = [value_of(trip, "local") for trip in TRIPS]
    lines = ["Ride Id,startStation,Fare,Started At,Rating"]
    lines += [f"{row['ride_id']},{row['station']},{row['fare']},{row['started_at']},{'' if row['rating'] is None else row['rating']}" for row in rows]  # fmt: skip
    path = tmp_path / "Bike Trips.csv"
    path.write_text("\n".join(lines) + "\n")
    without = json.loads(init("--from-file", str(path), "--dry-run", output="json").stdout)["guess"]
    assert without["gaps"] == ["event_time"]
    result = init("--from-file", str(path), "--zone", "America/New_York")
    assert result.exit_code == 0, result.output
    definition = load_definition(project / "pipelines" / "bike_trips")
    source = definition.source[1]
    assert source.schema_ == {
        "ride_id": "string", "start_station": "string", "fare": "decimal(18,2)", "started_at": "timestamp", "rating": "bigint",
        "is_heartbeat": "boolean",
    }  # fmt: skip
    assert source.event_time == "started_at"
    assert "rivertwice send bike_trips FILE --zone America/New_York" in (project / "README.md").read_text()


def test_parquet_gives_the_same_definition_as_json_lines(
    init: Callable[..., Result], project: Path, tmp_path: Path, file: Path
) -> None:
    table = pa.Table.from_pylist([value_of(trip) for trip in TRIPS])
    pq.write_table(table, tmp_path / "trips.parquet")
    init("trips", "--from-file", str(file))
    one = (project / "pipelines/trips/transform.sql").read_text()
    result = init("trips", "--dir", str(tmp_path / "other"), "--from-file", str(tmp_path / "trips.parquet"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "other/pipelines/trips/transform.sql").read_text() == one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trips"], ["--from-topic TOPIC or --from-file FILE"]),
        (["trips", "--from-file", "FILE", "--from-topic", "x"], ["give one of them"]),
        (["trips", "--from-file", "absent.jsonl"], ["absent.jsonl is not a file"]),
        (["trips", "--from-file", "notes.txt"], ["notes.txt has no records", "rows of CSV or Parquet"]),
        (["trips", "--from-file", "empty.jsonl"], ["has no record"]),
        (["trips", "--from-file", "broken.jsonl"], ["(lines 1, 2: not valid JSON)"]),
        (["trips", "--from-file", "no.parquet"], ["is not a Parquet file"]),
        (["trips", "--from-file", "twice.csv"], ["would both become the field 'a_b'"]),
        (["Trips!", "--from-file", "FILE"], ["cannot name a pipeline"]),
        (["trips", "--from-file", "FILE", "--window", "1 fortnight"], ["--window", "is not a valid duration"]),
        (["trips", "--from-file", "FILE", "--window", "0 s"], ["a window of no length"]),
        (["trips", "--from-file", "FILE", "--zone", "Europe/Berlim"], ["did you mean Europe/Berlin?"]),
        (["trips", "--from-topic", "x", "--zone", "Europe/Berlin"], ["--encoding and --zone are for a file"]),
        (["trips", "--from-file", "FILE", "--event-time", "start"], ["--event-time start", "started_at"]),
        (["trips", "--from-topic", "a topic"], ["cannot name a topic"]),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    init: Callable[..., Result], project: Path, file: Path, arguments: list[str], words: list[str]
) -> None:
    folder = file.parent
    (folder / "notes.txt").write_text("x")
    (folder / "empty.jsonl").write_text("\n")
    (folder / "broken.jsonl").write_text("{\n}\n")
    (folder / "no.parquet").write_text("x")
    (folder / "twice.csv").write_text("a b,A_B\n1,2\n")
    result = init(*(str(file) if each == "FILE" else str(folder / each) if "." in each else each for each in arguments))
    assert result.exit_code == 1, result.output
    for word in words:
        assert word in result.output
    assert not project.exists()


def test_without_a_source_only_the_project_s_files_are_written(init: Callable[..., Result], project: Path) -> None:
    assert init().exit_code == 0
    assert set(tree(project)) == {path for path in FILES if "trips" not in path}


def test_settings_are_comments_that_hold_when_they_are_uncommented(init: Callable[..., Result], project: Path) -> None:
    init()
    text = (project / "rivertwice.yaml").read_text()
    assert yaml.safe_load(text) is None
    settings = [line for line in text.splitlines() if re.match(r"#( ?  \w+| \w+):( |$)", line)]
    variables = as_variables(project / "rivertwice.yaml", yaml.safe_load("\n".join(line[2:] for line in settings)))
    assert set(variables) == {
        *(f"RIVERTWICE_{name.upper()}" for name in (*PATHS, *TEXTS)),
        *(f"RIVERTWICE_KAFKA_{name.upper()}" for name in (*KAFKA_PATHS, *KAFKA_TEXTS)),
    }


def test_the_broker_of_the_compose_file_is_that_of_the_repository(init: Callable[..., Result], project: Path) -> None:
    """The repository's own is run by the tests of its deployment; here only the address for clients differs."""
    init()
    own = yaml.safe_load((project / "docker-compose.yml").read_text())["services"]["kafka"]
    tried = yaml.safe_load(COMPOSE.read_text())["services"]["kafka"]
    assert own.pop("ports") == ["127.0.0.1:9092:9092"]
    assert own["environment"].pop("KAFKA_ADVERTISED_LISTENERS") == "PLAINTEXT://127.0.0.1:9092"
    assert own["environment"].pop("KAFKA_CONTROLLER_QUORUM_VOTERS") == "1@localhost:9093"
    for name in ("KAFKA_ADVERTISED_LISTENERS", "KAFKA_CONTROLLER_QUORUM_VOTERS"):
        del tried["environment"][name]
    assert own == tried


def test_the_commands_that_a_project_names_exist(init: Callable[..., Result], project: Path, file: Path) -> None:
    init("trips", "--from-file", str(file))
    texts = [(project / name).read_text() for name in ("README.md", ".github/workflows/rivertwice.yml")]
    named = set(re.findall(r"(?:^|run: )rivertwice (\w+)", "\n".join(texts), re.MULTILINE))
    assert named == {"setup", "lint", "test", "up", "send", "start", "reconcile", "show", "advise"}
    assert named <= set(cli.commands)
    steps = yaml.safe_load(texts[1])["jobs"]["definitions"]["steps"]
    assert [step["run"] for step in steps[-3:]] == ["rivertwice setup", "rivertwice lint", "rivertwice test"]


def test_the_sample_is_a_project_that_up_can_send(init: Callable[..., Result], project: Path) -> None:
    result = init("--sample")
    assert result.exit_code == 0, result.output
    assert "next: rivertwice up --sample; rivertwice start orders --wait; rivertwice reconcile orders" in result.output
    definition = load_definition(project / "pipelines" / "orders")
    assert definition.stream.max_offsets_per_trigger == 200
    assert len(load_cases(project / "pipelines" / "orders")) == 2
    assert "rivertwice up --sample" in (project / "README.md").read_text()
    before = tree(project)
    assert init("--sample").exit_code == 0
    assert tree(project) == before


@pytest.mark.parametrize(
    "more", [("trips",), ("--from-topic", "t"), ("--window", "1 hour"), ("--key", "shop"), ("--zone", "UTC")]
)
def test_the_sample_is_written_as_it_is(init: Callable[..., Result], project: Path, more: tuple[str, ...]) -> None:
    result = init("--sample", *more)
    assert (result.exit_code, "--sample writes one pipeline" in result.output) == (1, True), result.output
    assert not project.exists()


@pytest.mark.parametrize("number", ["1e400", "-1e99999", "1e999999", "1e999999999", "9" * 5_000])
def test_a_number_that_no_double_holds_is_a_skipped_record_with_its_reason(tmp_path: Path, number: str) -> None:
    lines = [f'{{"user": "u{n % 3}", "at": "2026-01-01T00:{n:02}:00Z", "amount": 1.5}}' for n in range(30)]
    (tmp_path / "s.jsonl").write_text("\n".join([*lines, lines[0].replace("1.5", number)]))
    words = ["--project", str(tmp_path), "init", "spent", "--from-file", str(tmp_path / "s.jsonl")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert "1 left out: line 31: a number larger than a double can hold" in " ".join(
        result.output.replace("init --records", " ").split()
    )
    assert "amount: decimal(18,2)" in (tmp_path / "pipelines" / "spent" / "pipeline.yaml").read_text()


def test_an_example_is_copied_with_its_cases_and_is_accepted(init: Callable[..., Result], project: Path) -> None:
    result = init("--example", "user_sessions")
    assert result.exit_code == 0, result.output
    assert "next: rivertwice test user_sessions; rivertwice up" in result.output
    definition = load_definition(project / "pipelines" / "user_sessions")
    assert len(load_cases(project / "pipelines" / "user_sessions")) == 3
    assert "$schema=../" not in (project / "pipelines/user_sessions/pipeline.yaml").read_text()
    shown = CliRunner().invoke(cli, ["--output", "json", "--project", str(project), "pipelines", "--examples"])
    examples = {each["name"]: each["description"] for each in json.loads(shown.stdout)}
    assert len(examples) > 40
    assert examples["user_sessions"] == definition.description
    for name in examples:
        assert init("--example", name).exit_code == 0
        load_definition(project / "pipelines" / name)
    wrong = init("--example", "user_sesions")
    assert (wrong.exit_code, "did you mean user_sessions?" in wrong.output) == (1, True)
    assert "leave out NAME" in init("own", "--example", "user_sessions").output
