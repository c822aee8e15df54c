"""The end of a log for the page: bounded, safe to show, and of other pipelines' lines nothing for who may not read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from homes.project import make_project
from rivertwice.core.errors import RequestError
from rivertwice.core.plain import to_plain
from rivertwice.core.settings import Settings
from rivertwice.read.logs import LONGEST, MOST, TAIL, describe_log, levelled, spark_ui
from rivertwice.storage.log_files import LogFile

NAME = "flights"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_project(tmp_path, {})


def write(settings: Settings, text: str, of: str = "driver") -> Path:
    path = settings.home / "agent" / "log" if of == "agent" else settings.pipeline(NAME).logs / f"{of}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    return path


def texts(answer: dict[str, object]) -> list[str]:
    lines = answer["lines"]
    assert isinstance(lines, list)
    return [line["text"] for line in lines]


def test_a_level_is_kept_over_the_lines_that_continue_it() -> None:
    lines = [
        "2026-11-27 03:00:00,000 INFO x: begins",
        "26/11/27 03:00:01 ERROR MicroBatchExecution: fails",
        "\tat a.b.C",
        "2026-11-27 03:00:02,000 WARNING y: hm",
        "==== rivertwice agent starts a driver ====",
    ]
    assert [line.level for line in levelled(lines)] == ["", "error", "error", "warning", ""]


def test_control_characters_and_endless_lines_are_not_shown_raw() -> None:
    (line, long) = levelled(["a\x1b[2Jb\u202ec", "x" * (LONGEST + 5)])
    assert line.text == "a\\x1b[2Jb\\u202ec"
    assert long.text.endswith("(5 more characters)")


def test_search_and_level_choose_lines(settings: Settings) -> None:
    write(
        settings,
        "2026-11-27 03:00:00,0 INFO a: Batch 1\n2026-11-27 03:00:00,0 ERROR a: batch 2\n2026-11-27 03:00:00,0 INFO a: end\n",
    )
    assert len(texts(to_plain(describe_log(settings, NAME, "driver", q="BATCH")))) == 2
    assert texts(to_plain(describe_log(settings, NAME, "driver", level="warning"))) == [
        "2026-11-27 03:00:00,0 ERROR a: batch 2"
    ]


def test_what_is_older_is_named_and_not_shown(settings: Settings) -> None:
    line = "2026-11-27 03:00:00,000 INFO a: batch {:07}\n"
    path = write(settings, "".join(line.format(number) for number in range(10_000)))
    answer = to_plain(describe_log(settings, NAME, "driver"))
    assert answer["cut"] == path.stat().st_size - TAIL
    assert len(texts(answer)) == MOST
    assert answer["left_out"] == answer["searched"] - MOST
    assert texts(answer)[-1].endswith("0009999")


def test_what_was_written_since_is_all_that_follows(settings: Settings) -> None:
    """A line that is written in two parts is shown once, when it is whole."""
    write(settings, "one\ntw")
    first = to_plain(describe_log(settings, NAME, "driver"))
    assert texts(first) == ["one"]
    write(settings, "o\nthree\n")
    second = to_plain(describe_log(settings, NAME, "driver", after=first["end"]))
    assert (texts(second), second["again"]) == (["two", "three"], False)
    assert texts(to_plain(describe_log(settings, NAME, "driver", after=second["end"]))) == []


def test_a_log_that_was_rotated_begins_again_and_says_so(settings: Settings) -> None:
    path = write(settings, "one\ntwo\n")
    first = to_plain(describe_log(settings, NAME, "driver"))
    assert LogFile(path).rotate(limit=1)
    write(settings, "three\n")
    answer = to_plain(describe_log(settings, NAME, "driver", after=first["end"]))
    assert answer["again"]
    assert texts(answer) == ["one", "two", "three"], "what was rotated last belongs to the tail"


def test_lines_of_others_in_the_agent_s_log_are_for_who_may_read_all(settings: Settings) -> None:
    lines = [
        "flights: start: wanted",
        "flights_of_hr: start: wanted",
        "flights@v2: start",
        "the disk is full",
        "served of flights could",
    ]
    write(settings, "".join(f"{line}\n" for line in lines), of="agent")
    assert texts(to_plain(describe_log(settings, NAME, "agent"))) == [
        "flights: start: wanted",
        "served of flights could",
    ]
    assert texts(to_plain(describe_log(settings, NAME, "agent", whole=True))) == lines


@pytest.mark.parametrize(
    "asked",
    [
        {"of": "../../etc/passwd"},
        {"of": "driver", "level": "loud"},
        {"of": "driver", "after": "x.y"},
        {"of": "driver", "after": "-1"},
    ],
)
def test_anything_but_a_known_log_is_refused(settings: Settings, asked: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"choose one of|leave it out"):
        describe_log(settings, NAME, **asked)


def test_a_log_that_is_not_there_is_said_to_be_missing(settings: Settings) -> None:
    answer = to_plain(describe_log(settings, NAME, "restore"))
    assert (answer["missing"], answer["lines"], answer["cut"]) == (True, [], 0)
    assert spark_ui(settings, NAME) is None
