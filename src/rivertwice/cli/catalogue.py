"""Which commands there are, under which headings; each is imported when it is run, completed or listed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from rivertwice.cli.anywhere import accept_anywhere
from rivertwice.core import ServiceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COMMAND_GROUP = "rivertwice.commands"
ADDED = "Added by packages"
SECTIONS: dict[str, dict[str, str]] = {
    "Begin": {
        "demo": "demo:demo",
        "look": "init:look",
        "init": "init:init",
        "setup": "demo:setup",
        "doctor": "doctor:doctor",
        "docs": "docs:docs",
        "up": "services:up",
        "status": "services:status",
        "down": "services:down",
    },
    "Definitions": {
        "pipelines": "definitions:pipelines",
        "lint": "definitions:lint",
        "test": "cases:test_cases",
        "try": "cases:try_",
        "advise": "cases:advise",
    },
    "Streams": {
        "send": "files:send",
        "start": "streams:start",
        "stop": "streams:stop",
        "deliver": "delivery:deliver",
    },
    "Results": {
        "show": "results:show",
        "explain": "results:explain",
        "query": "results:query",
    },
    "Checks": {
        "reconcile": "checks:reconcile",
        "verdicts": "checks:verdicts",
        "quality": "quality:quality",
    },
    "Repair": {
        "fix": "backfills:fix",
        "backfill": "backfills:backfill",
        "dead": "deadletters:dead",
    },
    "Savepoints and versions": {
        "savepoint": "savepoints:savepoint",
        "upgrade": "operations:upgrade",
        "version": "versions:version",
    },
    "Operations": {
        "agent": "agents:agent",
        "alerts": "alerts:alerts",
        "logs": "logs:logs",
        "mcp": "assistant:mcp",
        "admin": "admin:admin",
    },
}
"""Heading, verb, and the module and variable in `rivertwice.cli` that is its command."""


@dataclass(frozen=True)
class Moved:
    """Where the work of a verb of before went.

    Attributes:
        now: what it is now, for people; its first words before NAME are what is typed.
        below: the verb of a group of before, which is no longer typed.
        options: options of before to what they are called now.
        without: if one of these is given, the option in `now` is not added.
        alone: options of before that have no value, if the word after NAME is now the value of the option in `now`.
    """

    now: str
    below: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()

    def words(self, given: Sequence[str]) -> list[str]:
        """Return the words that do what the verb of before did with these words after it. Pure."""
        verb, _, option = self.now.partition(" NAME")
        rest = [word.partition("=") for word in (given[1:] if given[:1] == [self.below] else given)]
        added = [] if self.without & {name for name, _, _ in rest} else option.split()[:1]
        typed = [f"{self.options.get(name, name)}{sign}{value}" for name, sign, value in rest]
        place = self._place_of_value(typed) if self.alone else len(typed)
        return [*verb.split(), *typed[:place], *added, *typed[place:]]

    def _place_of_value(self, typed: Sequence[str]) -> int:
        """Return where the second word is that is neither an option nor the value of one. Pure."""

        def takes_next(word: str) -> bool:
            is_whole = word.startswith("--") or len(word) == 2
            return word.startswith("-") and is_whole and "=" not in word and word not in self.alone

        pairs = zip(["", *typed], typed, strict=False)
        plain = [at for at, (before, word) in enumerate(pairs) if word[:1] != "-" and not takes_next(before)]
        return plain[1] if len(plain) > 1 else len(typed)


MOVED: dict[str, Moved] = {
    "acknowledge": Moved(
        "verdicts NAME --accept", options={"--list": "--accepted"}, without=frozenset({"--list", "--end"})
    ),
    "archive": Moved("admin archive"),
    "case": Moved(
        "test NAME --from-log WINDOW|RECORD",
        "from-log",
        {"--window": "--from-log", "--record": "--from-log", "--name": "--as"},
        frozenset({"--window", "--record"}),
    ),
    "catch-up": Moved("backfill catch-up"),
    "completion": Moved("admin completion"),
    "diagnose": Moved("status NAME --why"),
    "export": Moved(
        "show NAME --write TARGET", alone=frozenset({"--overwrite", "--require-current", "--debug", "-h", "--help"})
    ),
    "late": Moved("show NAME --late", "list"),
    "late queue": Moved("backfill queue", "queue"),
    "metrics": Moved("agent metrics"),
    "privacy": Moved("admin privacy"),
    "repair": Moved("admin repair"),
    "retention": Moved("admin retention"),
    "schema": Moved("admin schema"),
    "served": Moved("admin rebuild", "rebuild"),
    "topics": Moved("admin topics", "create"),
    "upkeep": Moved("admin upkeep"),
    "view": Moved("show NAME --by-key", without=frozenset({"--at", "--history"})),
}
"""Verb of before, or two words of one, to where its work went; it is not understood any more, and says so."""


class CommandCatalogue(MutableMapping[str, click.Command]):
    """The commands of the root group by name, each imported at its first use.

    What not every user needs (the example data, the fault lab) adds its commands by entry points of the group
    `rivertwice.commands`; any installed package can add commands in the same way.
    """

    def __init__(self) -> None:
        self._places = {verb: place for verbs in SECTIONS.values() for verb, place in verbs.items()}
        self._loaded: dict[str, click.Command] = {}
        self._added: dict[str, EntryPoint] | None = None

    def __getitem__(self, name: str) -> click.Command:
        """Return the command, imported now if it was not yet."""
        if name not in self._loaded:
            place = self._places.get(name)
            (command,) = added_commands([self.added[name]]) if place is None else (_imported(place),)
            self._loaded[name] = accept_anywhere(command)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add a command that is imported already."""
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        """Forget an added command."""
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the headings."""
        yield from dict.fromkeys((*self._places, *self.added, *self._loaded))

    def __len__(self) -> int:
        """Return how many commands there are."""
        return len(list(iter(self)))

    @property
    def added(self) -> dict[str, EntryPoint]:
        """The entry points of other packages, by the name of their command."""
        if self._added is None:
            from importlib.metadata import entry_points  # and with it the parser of mails

            entries = entry_points(group=COMMAND_GROUP)
            self._added = {entry.name: entry for entry in entries if entry.name not in self._places}
        return self._added

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each heading with its verbs."""
        for heading, verbs in SECTIONS.items():
            yield heading, list(verbs)
        if others := [name for name in self if name not in self._places]:
            yield ADDED, others


def _imported(place: str) -> click.Command:
    module, _, variable = place.partition(":")
    command = getattr(importlib.import_module(f"rivertwice.cli.{module}"), variable)
    if not isinstance(command, click.Command):
        message = f"{place} is not a command; SECTIONS names it, so the verb cannot run"
        raise TypeError(message)
    return command


def added_commands(entries: Iterable[EntryPoint]) -> Iterator[click.Command]:
    """Return the command that each entry point names; for one that cannot be imported, a command that explains why."""
    for entry in entries:
        try:
            command = entry.load()
        except Exception as error:
            command = _broken_command(entry, error)
        yield command


def _broken_command(entry: EntryPoint, error: Exception) -> click.Command:
    owner = "rivertwice" if entry.dist is None else entry.dist.name
    message = (
        f"the command {entry.name} of the package {owner} cannot be imported ({type(error).__name__}: {error}), so it cannot "
        f"run; install {owner} again with all that it needs"
    )

    def refuse() -> None:
        raise ServiceError(message)

    any_arguments = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(entry.name, context_settings=any_arguments, callback=refuse, help=f"Not usable: {message}.")
