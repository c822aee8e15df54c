"""The one way in which a command that changes what is served, deletes, or moves a head, asks before it does so.

It shows what it would do, and asks at a terminal. `--yes` does it without a question; `--dry-run` shows it and ends. Without a
terminal and without `--yes`, and with `--output json`, it changes nothing and exits 1 with the command that would.
"""

from __future__ import annotations

import functools
import getpass
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from rivertwice.cli.frame import OK, REFUSED, Frame, say
from rivertwice.core import RequestError

WORDS = "rivertwice.words"
"""Where the root context keeps the words of this call."""


@dataclass(frozen=True)
class Preview:
    """What a command would do.

    Attributes:
        value: for programs.
        text: for people.
        refused: whether it cannot be done; the text says why.
        code: exit code if nothing is done because of `--dry-run`, or without a yes.
    """

    value: Any
    text: str | Callable[[], str]
    refused: bool = False
    nothing: bool = False
    code: int = OK


@dataclass(frozen=True)
class Consent:
    """Whether a person, or a program by `--yes`, wants what a command does.

    Attributes:
        reason: why, for the agent's events; None if it is not given.
        words: the words of this call, after the program's name.
    """

    frame: Frame
    command: str
    yes: bool
    dry_run: bool
    reason: str | None
    words: tuple[str, ...] = ()
    by: str = field(default_factory=getpass.getuser)

    def given(
        self, name: str, question: str, preview: Callable[[], Preview], *, again: str | None = None, noted: bool = False
    ) -> bool:
        """Show what would be done and return whether to do it; what is to be done is noted in the agent's events.

        Args:
            question: for people, without `[y/N]`.
            preview: computes what would be done; not called with `--yes`.
            again: the command that does it; None: this one with `--yes`.
            noted: whether the command itself records who and why, in its own register.

        Raises:
            RequestError: there is no terminal to ask on.
            SystemExit: it cannot be done, or the answer was no.
        """
        if not self.yes:
            shown = preview()
            self.frame.emit(shown.value, shown.text)
            if self.dry_run or shown.nothing or shown.refused:
                code = REFUSED if shown.refused else shown.code
                if code != OK:
                    raise SystemExit(code)
                return False
            if self.frame.output == "json" or not is_terminal():
                self._refuse(again, shown.code)
            elif not click.confirm(question, err=True):
                say("nothing was changed", err=True)
                raise SystemExit(REFUSED)
        if not noted:
            self._note(name)
        return True

    def _refuse(self, again: str | None, code: int) -> None:
        again = again or shlex.join(["rivertwice", *self.words, "--yes"])
        message = f"nothing was changed: it needs a yes, and there is no terminal to ask on; to do it: {again}"
        if code != OK:  # what was shown has its own exit code, which says more
            say(f"rivertwice: {message}", err=True)
            raise SystemExit(code)
        raise RequestError(message)

    def _note(self, name: str) -> None:
        from rivertwice.agent import record_event
        from rivertwice.core import utc_now

        why = "" if self.reason is None else f": {self.reason}"
        text = f"{self.command} by {self.by}{why}"
        record_event(self.frame.settings, "command", name, text, utc_now(), by=self.by, reason=self.reason)


def is_terminal() -> bool:
    """Say whether somebody can be asked: the question goes to stderr, the answer comes from stdin."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asks_first(changes: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--yes`, `--dry-run` and `--reason`; the command gets `consent` for them.

    Args:
        changes: what the command changes, for the table of verbs.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def asked(*args: Any, yes: bool, dry_run: bool, reason: str | None, **values: Any) -> Any:
            if yes and dry_run:
                message = "--yes does it and --dry-run does nothing; leave one out"
                raise click.UsageError(message)
            ctx = click.get_current_context()
            words = tuple(ctx.find_root().meta.get(WORDS, ()))
            name = ctx.command_path.partition(" ")[2]
            frame = ctx.find_object(Frame)
            if frame is None:
                message = f"{name} was called without the root command, so it has no settings"
                raise RuntimeError(message)
            return command(*args, consent=Consent(frame, name, yes, dry_run, reason, words), **values)

        asked.__dict__.update(changes=changes, asks=True)
        options: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
            click.option("--yes", is_flag=True, help="Do it without a question."),
            click.option("--dry-run", is_flag=True, help="Show what would be done; do nothing."),
            click.option("--reason", metavar="TEXT", help="Why; kept with your name in the agent's events."),
        ]
        made: Callable[..., Any] = asked
        for option in reversed(options):
            made = option(made)
        return made

    return decorate


def changes_unasked(changes: str, *, because: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a command that writes and does not ask.

    Args:
        changes: what it changes, for the table of verbs.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command.__dict__.update(changes=changes, asks=False, because=because)
        return command

    return decorate
