"""From records of the log to a case: nothing of a record is lost, and what is expected is what was computed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from homes.backfill import SQL, YAML, make_home
from homes.project import FLIGHTS
from rivertwice.cli.main import cli
from rivertwice.core.errors import RequestError
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition, parse_files
from rivertwice.engine.case_files import load_case, record_headers, record_value
from rivertwice.log.addresses import Part
from rivertwice.versions.case_from_log import (
    RawRecord,
    Results,
    case_text,
    expect,
    group_by_batch,
    make_events,
    parse_address,
    require_few,
)

DEFINITION = parse_files({"pipeline.yaml": YAML.encode(), "transform.sql": SQL.encode()}, "test")
AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(offset: int, value: bytes | None = b'{"k": "a"}', partition: int = 0, **fields: Any) -> RawRecord:
    return RawRecord(Part("flights", partition), offset, AT, fields.get("key", b"a"), value, fields.get("headers", {}))


@pytest.mark.parametrize("text", ["flights/0", "flights/0@-1", "flights/x@1", "", "a b/0@1", "flights/0@1@2"])
def test_what_is_no_address_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(RequestError, match="write TOPIC/PARTITION@OFFSET"):
        parse_address(text, ["flights"])


@pytest.mark.parametrize("text", ["my.topic-1/3@118", "3@118", "my.topic-1/3/118"])
def test_an_address_is_taken_as_other_commands_print_it(text: str) -> None:
    assert parse_address(text, ["my.topic-1"]) == (Part("my.topic-1", 3), 118)


def test_of_several_topics_one_that_is_read_must_be_named() -> None:
    with pytest.raises(RequestError, match="write TOPIC/PARTITION@OFFSET"):
        parse_address("3@118", ["a", "b"])
    with pytest.raises(RequestError, match="the pipeline reads a, b"):
        parse_address("c/3@118", ["a", "b"])


def test_records_keep_the_micro_batches_that_read_them() -> None:
    first, second, unread = record(3), record(12, partition=1), record(99)
    batches = [
        {Part("flights", 0): (0, 3)},
        {Part("flights", 0): (3, 9), Part("flights", 1): (0, 12)},
        {Part("flights", 1): (12, 13)},
    ]
    assert group_by_batch([unread, second, first], batches) == [[first], [second], [unread]]
    assert group_by_batch([first], batches) == [[first]]


def test_every_byte_of_a_value_is_in_the_file(tmp_path: Path) -> None:
    values = [b'{"k": "\xc3\xa4", "n": 1.50}', b'{\n\t"k": "b: - #"}', b"\xff\x00", b"", None, "{\u2028}".encode()]
    records = [record(number, value) for number, value in enumerate(values)]
    file = tmp_path / "cut.yaml"
    file.write_text(case_text("cut", ["one", "two"], make_events(DEFINITION, [records]), {"batch": [], "stream": []}))
    case = load_case(file)
    assert [record_value(case, event, DEFINITION) for event in case.events] == values
    assert [(event.id, event.at, event.key) for event in case.events[:2]] == [("0-0", AT, "a"), ("0-1", AT, "a")]
    assert file.read_text().startswith("# one\n# two\n")


@pytest.mark.parametrize("headers", [{}, {"schema-id": b"flights-1"}, {"schema-id": b"other", "trace": b"\xff"}])
def test_the_schema_id_of_a_record_is_kept_and_no_other_is_invented(headers: dict[str, bytes], tmp_path: Path) -> None:
    flights = load_definition(FLIGHTS)
    file = tmp_path / "cut.yaml"
    events = make_events(flights, [[record(1, headers=headers)]])
    file.write_text(case_text("cut", [], events, {"batch": [], "stream": []}))
    (event,) = load_case(file).events
    wanted = [{"key": "schema-id", "value": headers["schema-id"]}] if "schema-id" in headers else []
    assert record_headers(event, flights) == wanted


def test_what_is_expected_is_what_was_computed() -> None:
    row: dict[str, Any] = {
        "window_start": AT,
        "k": "2026-01-01T00:00:00Z",
        "n": 3,
        "mean": Decimal("8.6667"),
        "whole": Decimal("12.00"),
        "long": Decimal("0.12345678901234567890123"),
        "none": None,
        "flag": True,
    }
    expected = expect(DEFINITION, Results([row], [], ["0-1"], {"0-2": "json"}))
    (read,) = yaml.safe_load(yaml.safe_dump(expected))["batch"]
    assert read == {
        "window_start": "2026-01-01T00:00:00Z",
        "k": "2026-01-01T00:00:00Z",
        "n": 3,
        "mean": 8.6667,
        "whole": 12,
        "none": None,
        "flag": True,
    }
    assert (expected["late"], expected["dead"]) == (["0-1"], {"0-2": "json"})


@pytest.mark.parametrize(("count", "words"), [(0, "there is no case to cut"), (501, "too many for a case")])
def test_nothing_and_too_much_are_refused(count: int, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        require_few(count, "p")
    require_few(500, "p")


def run(settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["test", "p", *arguments], env=settings.to_env())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--as", "x"), "a case is made by NAME --from-log"),
        (("--key", "{}"), "a case is made by NAME --from-log"),
        (("--from-log", "flights/0@1", "--examples"), "and not --examples"),
        (("--from-log", "1970-01-01T01:00:00Z", "--from-log", "flights/0@1"), "takes one window, or one record after"),
        (("--from-log", "flights/0@1", "--key", "{}"), "leave --key out"),
        (("--from-log", "flights"), "or a record as TOPIC/PARTITION@OFFSET"),
        (("--from-log", "flights@1"), "write TOPIC/PARTITION@OFFSET"),
        (("--from-log", "flights/0@1", "--as", "../x"), "cannot be the name of a case"),
        (("--from-log", "flights/0@1", "--as", "known"), "known.yaml exists already, and nothing was written"),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    settings, _, _ = make_home(tmp_path)
    known = settings.definitions / "p" / "cases" / "known.yaml"
    known.parent.mkdir()
    known.write_text("kept")
    result = run(settings, *arguments)
    assert (result.exit_code, words in result.stderr) == (1, True), result.output
    assert [path.read_text() for path in known.parent.iterdir()] == ["kept"]
