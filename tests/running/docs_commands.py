"""The commands that the pages of the docs name: which they are, which of them can be run over a prepared home, and what became of each.

    PYTHONPATH=tests:src python -m running.docs_commands

prints those that no test runs, with the reason. None may need Spark, Java or a broker, and none may change what is served.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from homes.cockpit import Past, make_past
from homes.project import REPOSITORY
from rivertwice.cli.main import cli

PAGES = sorted(path for path in (REPOSITORY / "docs").glob("*.md") if path.stem not in ("upgrade", "cli-idioms"))
"""All but the page that names commands of before, and the one that is made of the command line."""
ANYWHERE = ("--project", "--home", "-o", "--output")
_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SHELL = ("sh", "bash", "")
_INLINE = re.compile(r"`(rivertwice [^`]+)`")
_PLACEHOLDER = re.compile(r"\[|\]|\\|\.\.\.|\bVERB\b|^rivertwice samples 2$")  # the first line of a file

PIPELINES = ("flight_delays", "orders", "trips", "page_views")
FILES = {
    "trips.csv": "trip;station;minutes;started\n" + "".join(f"{n};S{n % 3};{n}.5;2026-01-05 {n % 24:02}:15:00\n" for n in range(1, 200)),
    "sales.csv": "shop;amount;sold at\n" + "".join(f"S{n % 4};{n},50;{n % 28 + 1:02}.01.2026 {n % 24:02}:30:00\n" for n in range(1, 200)),
    "orders.jsonl": "".join(f'{{"shop": "S{n % 3}", "amount": {n}, "at": "2026-01-05T{n % 24:02}:15:00Z"}}\n' for n in range(200)),
    "key.txt": "a person",
}  # fmt: skip
FILLED = {
    "NAME": "flight_delays",
    "FILE": "trips.csv",
    "D": "2 hours",
    "WINDOW": "2026-01-01T08:00:00Z",
    "KEY": '{"k": "k001"}',
}
HARMLESS = ("init", "quality", "show")
"""Verbs that are marked as changing, and write files in a folder of the test, or nothing without --accept."""
VERDICTS = ("AGREES", "LATE", "OPEN", "DEFECT")
LAB = ("faults", "replay")
CHANGES, PLACEHOLDER, OF_THE_LAB, VERB_ALONE = (
    "changes something",
    "has a placeholder",
    "is of the lab",
    "names a verb alone",
)
REFUSALS = {
    "needs Kafka": r"no Kafka address",
    "needs Spark": r"\bno Java\b",
    VERB_ALONE: r"Missing (argument|option|command)|requires an argument|: write a query|^Usage: rivertwice [\w ]+ \[OPTIONS\] COMMAND",
    "needs what its page made": (
        r"no (agent|driver) is running|there is no log|has no sinks|no proved savepoint|queues no windows|no dead letter of|"
        r"no row of orders is of a window|sp-t1-120-0a1b2c3d does not exist|not a version of|has no version|has no such version|has committed no batch|"
        r"gives the same results as|has no fast path|column \"?shop\"? |has no column 'origin'|has no timeline in|"
        r"no pipeline '|there is no backfill|File '[\w.-]+' does not exist|nothing was written to|are of a fold's keys|"
        r"none of its suites has run|began already|has no acceptance|interrupted, so there is nothing to abandon|by both delays, so there is nothing to compare|has a field user"
    ),
}
"""Why a command that was run is refused over the prepared home, as its message says."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that begins a line of a block, and of each that stands in a line of text."""
    yield from pasted(text)
    yield from _split(" ".join(found.split()) for found in _INLINE.findall(_FENCE.sub("", text)))


def pasted(text: str) -> Iterator[list[str]]:
    """Yield the words of each command that begins a line of a block: what a reader copies."""
    lines = [
        line
        for language, block in _FENCE.findall(text)
        if language in _SHELL
        for line in block.replace("\\\n", " ").splitlines()
    ]
    yield from _split(part.strip() for line in lines for part in re.split(r"&&|\|\||;", line))


def _split(texts: Iterable[str]) -> Iterator[list[str]]:
    for each in texts:
        if each.startswith("rivertwice ") and not _PLACEHOLDER.search(each):
            try:
                yield shlex.split(each, comments=True)
            except ValueError:  # a quoted text that continues in the next line
                continue


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that the words name, and the words after its name.

    Raises:
        LookupError: there is no such verb.
    """
    rest = [word for word in words[1:] if word not in (">", "|")]
    while rest and rest[0] in ANYWHERE:
        rest = rest[2:]
    command: click.Command = cli
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            if command.invoke_without_command:
                break
            raise LookupError(rest[0])
        command, rest = found, rest[1:]
    return command, rest


@dataclass(frozen=True)
class Outcome:
    """What became of a command: `reason` why it was not run, or why it was refused; None: it ran, or failed as `said`.

    Attributes:
        words: of the page. run: as it was run.
    """

    words: tuple[str, ...]
    run: tuple[str, ...]
    reason: str | None
    code: int | None = None
    said: str = ""

    @property
    def has_run(self) -> bool:
        """Whether it did what it is for; 3: a check found something."""
        return self.reason is None and self.code in (0, 3)

    @property
    def has_failed(self) -> bool:
        """Whether it was refused for a reason that nobody expects of it."""
        return self.reason is None and not self.has_run


def prepared(words: list[str]) -> tuple[list[str], str | None]:
    """Return a command as it is run over the prepared home, and why it is not; None: it is. Pure."""
    if len(words) > 1 and words[1] in LAB:
        return words, OF_THE_LAB
    words = [FILLED.get(word, word) for word in words]
    words = words[: words.index(">")] if ">" in words else words
    if any(re.fullmatch(r"[A-Z]{2,}(@v2)?", word) and word not in VERDICTS for word in words):
        return words, PLACEHOLDER
    command, rest = command_of(words)
    changes = getattr(command.callback, "changes", None)
    option = re.match(r"with (--[\w-]+) ", changes or "")
    is_only_if = option is not None and option[1] not in rest and command.name != "start"
    if changes is None or is_only_if or "--dry-run" in rest or (command.name in HARMLESS and "--accept" not in rest):
        return words, None
    if getattr(command.callback, "asks", False) and rest and command.name != "start":
        return [*(word for word in words if word != "--yes"), "--dry-run"], None
    return words, CHANGES


def run_all(package: Path, folder: Path) -> list[Outcome]:
    """Run each command of the docs once that can be run, in the order of the pages, with the package in a folder (a wheel's content).

    One process runs them all. There is no Java on its path and no broker, so what needs one is refused.
    """
    make_past(folder, Past(days=3, keys=3), PIPELINES)
    for name, text in FILES.items():
        (folder / "project" / name).write_text(text)
    for log in ("driver", "fast"):
        logs = folder / "home" / "pipelines" / "flight_delays" / "logs"
        logs.mkdir(exist_ok=True)
        (logs / f"{log}.log").write_text("a line\n")
    named = {
        shlex.join(words): words
        for page in [REPOSITORY / "README.md", *PAGES]
        for words in commands(page.read_text(encoding="utf-8"))
    }
    planned = [prepared(words) for words in named.values()]
    to_run = [words[1:] for words, reason in planned if reason is None]
    known = {name: value for name, value in os.environ.items() if not name.startswith(("RIVERTWICE_", "JAVA_HOME"))}
    (folder / "empty").mkdir()
    env = {
        "PYTHONPATH": str(package),
        "PATH": str(folder / "empty"),
        "RIVERTWICE_PROJECT": str(folder / "project"),
        "RIVERTWICE_HOME": str(folder / "home"),
        "RIVERTWICE_DOWNLOADS": str(folder / "empty"),
        "RIVERTWICE_ENGINE": "off",
    }
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER], input=json.dumps(to_run), cwd=folder / "project", env=known | env,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    ran_from, _, text = done.stdout.rpartition(" ANSWERS ")
    assert ran_from == str(package / "rivertwice"), ran_from
    answers = iter(json.loads(text))
    return [
        _outcome(words, run, reason, *(("", None) if reason else next(answers)))
        for words, (run, reason) in zip(named.values(), planned, strict=True)
    ]


def _outcome(words: list[str], run: list[str], reason: str | None, said: str, code: int | None) -> Outcome:
    if reason is None and code != 0:
        reason = next((why for why, pattern in REFUSALS.items() if re.search(pattern, said, re.MULTILINE)), None)
    return Outcome(tuple(words), tuple(run), reason, code, said)


_RUNNER = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
import rivertwice
from rivertwice.cli.main import cli
answers = []
for words in json.load(sys.stdin):
    done = CliRunner().invoke(cli, words, prog_name="rivertwice")
    answers.append((done.output, done.exit_code))
print(Path(rivertwice.__file__).parent, "ANSWERS", json.dumps(answers))
"""


def main() -> None:
    """Print what was not run, by its reason."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_all(REPOSITORY / "src", Path(folder))
    print(f"{sum(each.has_run for each in outcomes)} of {len(outcomes)} commands were run")  # noqa: T201
    for each in sorted(outcomes, key=lambda each: (each.reason or "", each.words)):
        if not each.has_run:
            failed = f"{each.code}: {each.said.strip()[-300:]}" if each.has_failed else each.reason
            print(f"{failed}: {shlex.join(each.run)}")  # noqa: T201


if __name__ == "__main__":
    main()
