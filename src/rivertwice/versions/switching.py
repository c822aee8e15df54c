"""Which version shall serve next, and whether that needs a comparison first. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rivertwice.backfill import find_unfinished_load
from rivertwice.core import RequestError, Settings, base_of
from rivertwice.reconcile import newest_reconcile
from rivertwice.timeline import follow_stamp, read_versions
from rivertwice.versions.accept import standing_of
from rivertwice.versions.begin import require_version, way_of
from rivertwice.versions.serve import definition_of, require_switchable, served_before


@dataclass(frozen=True)
class Choice:
    """A version that shall serve.

    Attributes:
        version: its name; serving: the version that serves now.
        compares: whether the two are compared first; a version that served before is not, nor one whose rows have no counterpart.
        different: why its rows cannot be compared, so that a person must accept the switch; else empty.
    """

    version: str
    serving: str
    compares: bool
    different: Sequence[str] = ()

    def unproved(self, settings: Settings) -> list[str]:
        """Return the versions of the two that a switch needs a reconcile of, in this order.

        There is none if the one to serve has served before, or its first load is not done: then no reconcile lets it serve.

        Where no row is compared, it is enough that one of the serving version ran: it says how far that has read.
        """
        if not (self.compares or self.different):
            return []
        old, new = (settings.pipeline(name) for name in (self.serving, self.version))
        if find_unfinished_load(new) is not None:
            return []
        unproved = [home.root.name for home in (old, new) if standing_of(home, definition_of(home)).lacks]
        ran = self.different and newest_reconcile(old) is not None
        return [name for name in unproved if name != self.serving or not ran]


def choose_version(settings: Settings, pipeline: str, asked: str = "") -> Choice:
    """Return the version that shall serve.

    Args:
        pipeline: its name, without a version.
        asked: name of the version; empty: the newest open one that does not serve.

    Raises:
        RequestError: there is no such version, it serves already, or what it emits cannot be switched.
    """
    home = settings.pipeline(pipeline)
    serving = follow_stamp(home)
    if asked and base_of(asked) != pipeline:
        message = f"{asked} is not a version of {pipeline}; `rivertwice version list {pipeline}` shows them"
        raise RequestError(message)
    if asked == serving:
        message = f"{asked} serves already; nothing was switched"
        raise RequestError(message)
    return choice_of(settings, asked or _newest_open(settings, pipeline, serving))


def choice_of(settings: Settings, version: str) -> Choice:
    """Return what it takes for a version to serve.

    Raises:
        RequestError: there is no such version, it never ran, or what it emits cannot be switched.
    """
    serving = follow_stamp(settings.pipeline(version))  # this host may not have seen the last switch
    require_switchable(settings, version)
    different: tuple[str, ...] = ()
    compares = not served_before(settings.pipeline(version))
    if compares:
        different = way_of(settings, require_version(settings, version), serving).reasons
        compares = not different
    return Choice(version, serving, compares, different)


def _newest_open(settings: Settings, pipeline: str, serving: str) -> str:
    names = [each.name for each in read_versions(settings.pipeline(pipeline)) if each.is_open and each.name != serving]
    if names:
        return names[-1]
    back = "" if serving == pipeline else f"; to go back, name {pipeline}"
    message = (
        f"{pipeline} has no version besides {serving}, which serves; `rivertwice upgrade {pipeline} "
        f"--new-version` begins one{back}"
    )
    raise RequestError(message)
