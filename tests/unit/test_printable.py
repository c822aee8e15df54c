"""No control character of a record reaches the terminal of whoever looks at it; JSON says it exactly."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import rivertwice
from homes.ledger import NOW, ledger_row
from rivertwice.agent.act import record_event
from rivertwice.cli.main import cli
from rivertwice.core.errors import ConfigError
from rivertwice.core.instants import utc_now
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.core.text import log_to_stdout, printable, printable_json, printable_line
from rivertwice.storage.table import Table
from rivertwice.timeline.intent import write_intent
from rivertwice.timeline.ledger import append_ledger
from rivertwice.timeline.lineage import Timeline, create_timeline
from rivertwice.timeline.sequence import move_head

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\x7f\rc"
SHOWN = r"a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\x7f\rc"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A pipeline with a dead letter and an event whose texts a terminal would obey."""
    found = Settings(project=tmp_path, home=tmp_path / "home")
    home = found.pipeline("p")
    create_timeline(home, Timeline("p", "t1", None, 0, {"flights": {"0": 0}}, "b", {}, "c", {"flights": "id"}, NOW))
    move_head(home, "t1", reason="first start", expected_seq=0, now=NOW)
    append_ledger(home, [ledger_row(0)])
    letter: dict[str, Any] = {
        "_format": 1, "_timeline": "t1", "_batch": 0, "reason": "json", "detail": HOSTILE, "cluster_id": "c",
        "topic_id": "id", "topic": "flights", "partition": 0, "offset": 3, "record_time": NOW, "key": HOSTILE.encode(),
        "value": HOSTILE.encode(), "headers": [{"key": HOSTILE, "value": HOSTILE.encode()}],
    }  # fmt: skip
    Table(home.tables.dead_letters).append(pa.Table.from_pylist([letter]))
    write_intent(home, "running", "test", utc_now())
    record_event(found, "exit", "p", f"a fold failed on {HOSTILE}\nstate  running", NOW + timedelta(seconds=1))
    return found


def run(settings: Settings, *words: str, output: str = "text") -> Result:
    places = ["--project", str(settings.project), "--home", str(settings.home)]
    return CliRunner().invoke(cli, ["--output", output, *places, *words], color=True)  # colour: click strips nothing


def texts(value: Any) -> list[str]:
    """Return every text within a JSON value."""
    if isinstance(value, dict | list):
        return [text for item in (value.values() if isinstance(value, dict) else value) for text in texts(item)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("words", [("dead", "list", "p"), ("dead", "show", "p", "0@3"), ("agent", "events")])
def test_what_records_hold_is_shown_and_not_obeyed(settings: Settings, words: tuple[str, ...]) -> None:
    found = run(settings, *words)
    assert found.exit_code == 0, found.output
    assert not set(found.output) & set("\x1b\x07\x9b\u202e\x7f\r")
    assert SHOWN in found.output.replace("\n", "") or r"\x1b]0;owned" in found.output.replace("\n", "")


@pytest.mark.parametrize("words", [("dead", "list", "p"), ("agent", "events")])
def test_json_is_exact_and_has_no_raw_control_character(settings: Settings, words: tuple[str, ...]) -> None:
    found = run(settings, *words, output="json")
    assert not set(found.output) & set("\x1b\x07\x9b\u202e\x7f\r")
    assert any(HOSTILE in text for text in texts(json.loads(found.output)))


def test_a_value_of_two_lines_makes_no_line_of_its_own(settings: Settings) -> None:
    assert "\nstate  running" not in run(settings, "agent", "events").output


def test_a_refusal_that_names_a_record_is_shown_and_not_obeyed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError(HOSTILE)

    monkeypatch.setattr("rivertwice.agent.launch.agent_status", refuse)
    for debug in ((), ("--debug",)):
        found = CliRunner().invoke(cli, [*debug, "--home", str(settings.home), "agent", "status"], color=True)
        assert found.exit_code == 1
        assert not set(found.output) & set("\x1b\x07\x9b\u202e\x7f\r")


def test_plain_text_in_any_language_is_left_as_it_is() -> None:
    plain = "Zürich 東京 مرحبا 🙂\n\ttab"
    assert printable(plain) == plain
    assert printable_line("a\n\tb") == r"a\n\tb"
    assert json.loads(printable_json(json.dumps({"a": HOSTILE}, ensure_ascii=False))) == {"a": HOSTILE}


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Give the process its logging back."""
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    before = (root.handlers[:], root.level, py4j.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    py4j.setLevel(before[2])


@pytest.mark.usefixtures("own_logging")
def test_lines_that_a_service_logs_to_stdout_hold_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stdout()
    logging.getLogger("rivertwice.stream").info("refused %s", HOSTILE)
    logging.getLogger("py4j").info("a call")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith(f"INFO rivertwice.stream: refused {SHOWN}")


@pytest.mark.parametrize(
    "module", ["stream/driver.py", "deliver/fast_job.py", "savepoint/keep_up.py", "savepoint/operations/fall_back.py"]
)
def test_every_long_running_process_logs_by_that_function(module: str) -> None:
    text = (Path(rivertwice.__file__).parent / module).read_text()
    assert (text.endswith("    run_process(main)\n"), "basicConfig" in text) == (True, False)


@pytest.mark.proves("cli.md#options-of-every-command")
def test_what_is_printed_as_json_is_json_whatever_a_number_is() -> None:
    value = to_plain({"ratio": math.inf, "others": [math.nan, -math.inf, 1.5]})
    assert value == {"ratio": "Infinity", "others": ["NaN", "-Infinity", 1.5]}
    assert "Infinity" in json.dumps(value, allow_nan=False)
