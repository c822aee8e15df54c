"""The table of verbs and idioms, docs/cli-idioms.md: `PYTHONPATH=tests python -m homes.idioms > docs/cli-idioms.md`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from rivertwice.cli.main import RootGroup, cli

HEAD = """# Verbs and idioms

Generated from the commands; a test compares this page with them. *asks*: shows first what it would
do, and asks, with `--yes`, `--dry-run` and `--reason` ([how](cli.md#what-asks-first)). Every verb
takes `--output json`, `--project`, `--home` and `--debug`.

- NAME is a pipeline or a version of it, and the first argument.
- `--from` and `--to` are a half-open range; `--last` is a span back from the end.
- `--limit` is a number of rows at most. `--timeout` is seconds to wait.
- `rivertwice replay flights` is the exception: its `--from` and `--to` are days in New York, both
  included.
"""
COLUMNS = ("verb", "NAME", "range", "rows", "waits", "reason", "asks", "changes")


@dataclass(frozen=True)
class Verb:
    """A command without verbs of its own.

    Attributes:
        path: its words after `rivertwice`.
        heading: the heading of the help that it is under.
    """

    path: tuple[str, ...]
    heading: str
    command: click.Command

    @property
    def title(self) -> str:
        """The words as they are typed."""
        return " ".join(self.path)

    @property
    def parameters(self) -> list[click.Parameter]:
        """Its arguments and options, with those that are made of an act's request."""
        return self.command.get_params(click.Context(self.command))

    @property
    def options(self) -> set[str]:
        """Names of the options that the help shows."""
        shown = [param for param in self.parameters if isinstance(param, click.Option) and not param.hidden]
        return {text for param in shown for text in (*param.opts, *param.secondary_opts)}

    @property
    def arguments(self) -> list[str]:
        """Names of the arguments, in order."""
        return [param.name or "" for param in self.parameters if isinstance(param, click.Argument)]

    @property
    def changes(self) -> str | None:
        """What it changes; None: it reads alone."""
        found: str | None = getattr(self.command.callback, "changes", None)
        return found

    @property
    def asks(self) -> bool:
        """Whether it asks first."""
        return bool(getattr(self.command.callback, "asks", False))

    def cells(self) -> list[str]:
        """Return the row of the table."""
        options, because = self.options, getattr(self.command.callback, "because", None)
        changes = "-" if self.changes is None else f"{self.changes}; {because}" if because else self.changes
        listed = [each for each in ("--from --to", "--last", "--at", "--since") if set(each.split()) <= options]
        waits = [
            each
            for each in (("--wait", "--until", "--timeout") if "--wait" in options else ("--timeout",))
            if each in options
        ]
        return [
            f"`{self.title}`",
            "NAME" if self.arguments[:1] == ["name"] else "-",
            ", ".join(f"`{each}`" for each in listed) or "-",
            "`--limit`" if "--limit" in options else "-",
            ", ".join(f"`{each}`" for each in waits) or "-",
            "`--reason`" if "--reason" in options else "-",
            "asks" if self.asks else "-",
            changes,
        ]


def verbs() -> Iterator[Verb]:
    """Yield every verb, in the order of the help."""
    assert isinstance(cli, RootGroup)
    for heading, names in cli.catalogue.sections():
        for name in names:
            yield from _leaves((name,), heading, cli.commands[name])


def _leaves(path: tuple[str, ...], heading: str, command: click.Command) -> Iterator[Verb]:
    if not isinstance(command, click.Group):
        yield Verb(path, heading, command)
        return
    if command.invoke_without_command:
        yield Verb(path, heading, command)
    for name in command.list_commands(click.Context(command)):
        yield from _leaves((*path, name), heading, command.commands[name])


def page() -> str:
    """Return the page."""
    parts, heading = [HEAD], ""
    for verb in verbs():
        if verb.heading != heading:
            heading = verb.heading
            parts.append(f"\n## {heading}\n\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
        parts.append(f"| {' | '.join(verb.cells())} |\n")
    return "".join(parts)


if __name__ == "__main__":
    click.echo(page(), nl=False)
