"""Whether a changed definition can continue from the state that the old one left, and which of its parts correspond. Pure.

A checkpoint contains no definition: Spark resumes a changed sum or window length over an old state, and corrupts the state
without an error. So the components that may change are listed. Any other component cannot be carried over, also a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rivertwice.definition.bundle import Bundle
from rivertwice.definition.fingerprint import DECODE, STATE, ChangedComponent
from rivertwice.definition.model import Definition
from rivertwice.definition.parts import SOURCE

# Whether rows of two definitions can be put beside each other, and so how a version of the second comes to serve. Pure, from the files.
#
# Each rule below is a change after which no comparison of served rows can ever pass, whatever was computed. So it is decided before
# the first step, and by the same function at every later one.


class WayKind:
    """How a version comes to serve."""

    COMPARED = "compared"
    ACCEPTED = "accepted"
    NEVER = "never"


@dataclass(frozen=True)
class Way:
    """How a version comes to serve in place of another one.

    Attributes:
        kind: `compared`: it serves if the parity gate passes. `accepted`: no comparison can pass, so it serves when a person accepts
            that its rows are others. `never`: no switch is possible.
        reasons: why it is not compared, one sentence each, without a full stop; empty if it is.
    """

    kind: str
    reasons: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The reasons in one sentence."""
        return "; ".join(self.reasons)

    def explain_accepted(self, version: str) -> str:
        """Return why a version is not compared, and the command by which a person lets it serve all the same. Pure."""
        return (
            f"{self.text}; so {version} is not compared, and serves when a person accepts that its rows are others: "
            f"`rivertwice version serve {version} --accept-different --reason TEXT`"
        )

    def explain_never(self, pipeline: str) -> str:
        """Return why no version of a changed definition can serve, and what to do instead. Pure.

        Args:
            pipeline: its name, without a version.
        """
        other = f"{pipeline}_2"
        return (
            f"no version of {pipeline} can be switched to: {self.text}; run the changed definition under another name: copy "
            f"pipelines/{pipeline} to pipelines/{other}, write `name: {other}` in its pipeline.yaml, put pipelines/{pipeline} back as it "
            f"was, then `rivertwice start {other}`"
        )


def decide_way(old: Definition, new: Definition, retyped: Mapping[str, tuple[str, str]] | None = None) -> Way:
    """Decide how a version of `new` comes to serve in place of `old`.

    Args:
        old: the definition that serves, under its version's name.
        retyped: column to its type in both results, where they differ, if Spark was asked. A fold's are known without.
    """
    never = tuple(dict.fromkeys(filter(None, (_find_updates(old), _find_updates(new)))))
    if never:
        return Way(WayKind.NEVER, never)
    found = (
        find_no_counterpart(old, new, {**_retyped_by_folds(old, new), **(retyped or {})}),
        _find_other_records(old, new),
        _find_unproved(old),
        _find_unproved(new),
    )
    reasons = tuple(reason for reason in found if reason is not None)
    return Way(WayKind.ACCEPTED, reasons) if reasons else Way(WayKind.COMPARED)


def find_no_counterpart(old: Definition, new: Definition, retyped: Mapping[str, tuple[str, str]]) -> str | None:
    """Return why no row of one definition has a counterpart in the other, or None.

    Args:
        retyped: column to its type in both results, where they differ.
    """
    if not old.window.is_same(new.window):
        return f"the windows changed from {old.window.text} to {new.window.text}, so a row of one has no counterpart in the other"
    if set(old.row_keys) != set(new.row_keys):
        return (
            f"the keys changed from {', '.join(old.row_keys) or 'none'} to {', '.join(new.row_keys) or 'none'}, so a row of one has no "
            "counterpart in the other"
        )
    for key in new.row_keys:
        if key in retyped:
            before, after = retyped[key]
            return f"the key {key} changed from {before} to {after}, so its values cannot be matched"
    return None


def _retyped_by_folds(old: Definition, new: Definition) -> dict[str, tuple[str, str]]:
    """Return the columns of two folds whose types differ: a fold's types are in its files, those of a query only Spark knows."""
    if old.fold_py is None or new.fold_py is None:
        return {}
    before, after = old.row_types, new.row_types
    return {name: (before[name], kind) for name, kind in after.items() if name in before and before[name] != kind}


def _find_other_records(old: Definition, new: Definition) -> str | None:
    """Return why the two do not count the same records, or None: then no rule says which of their rows should be equal."""
    unread = sorted(set(new.topics) - set(old.topics))
    if unread:
        return (
            f"{new.name} reads {', '.join(unread)}, which {old.name} does not read, so their rows count other records"
        )
    if SOURCE not in new.row_keys or SOURCE not in old.row_keys:
        return None
    before = {view: source.topic for view, source in old.sources.items()}
    renamed = sorted(view for view, source in new.sources.items() if before.get(view) != source.topic)
    if not renamed:
        return None
    return f"each row of the fold is named by its source, and the name {renamed[0]} is new or means another topic"


def _find_unproved(definition: Definition) -> str | None:
    if definition.compare:
        return None
    return f"{definition.name} says compare: false, so no reconcile proves what it serves"


def _find_updates(definition: Definition) -> str | None:
    if not definition.has_updates:
        return None
    return (
        f"{definition.name} has emit: updates, whose open windows are a separate table, and a switch cannot change both "
        "at once"
    )


class UpgradeKind:
    """What an upgrade comes to."""

    SAME = "same"
    RESUME = "resume"
    REFUSED = "refused"


CARRIED = frozenset({*DECODE, "rows", "watermark", "late_policy"}) - frozenset(STATE)
"""Components that decide which records reach the state, but not its form: from the fork on the new values apply."""

_PINNED = {
    "topic": "the checkpoint's offsets are those of the old topic",
    "emit": "open windows were emitted, or held back, in the old way: some would come twice, or never",
    "watermark_policy": "the checkpoint itself remembers how the watermarks of its sources become one, and Spark goes by that",
    "role": "a stream that becomes a table, or the other way round, has other state",
    "table_keys": "versions of the table were kept under the old keys",
}
_SHAPES_STATE = "it shapes the state: what the checkpoint holds would mean something else"


@dataclass(frozen=True)
class UpgradeDecision:
    """What a changed definition means for a stream.

    Attributes:
        way: `same` (no component changed: start it), `resume` (it can continue from the old state), or `refused`.
        obstacles: component to the reason why it cannot be carried over; empty unless refused.
        beside: how a version of the changed definition, which runs beside the old one, comes to serve.
    """

    way: str
    changes: tuple[ChangedComponent, ...]
    obstacles: Mapping[str, str]
    beside: Way


def decide_upgrade(old: Bundle, new: Bundle, recorded: Mapping[str, str]) -> UpgradeDecision:
    """Decide whether `new` can continue from the state that `old` left.

    Args:
        recorded: the fingerprint that the timeline recorded when it began.
    """
    hashes = old.fingerprint.hashes()
    drifted = [part for part in hashes if recorded.get(part) != hashes[part]]
    changes = tuple(old.fingerprint.changes_to(new.fingerprint))
    obstacles = {change.component: why for change in changes if (why := _obstacle(change, new)) is not None}
    if drifted:
        obstacles["release"] = (
            f"this release of rivertwice takes the old definition itself otherwise than the one that began the timeline (changed: "
            f"{', '.join(drifted)})"
        )
    beside = decide_way(old.definition, new.definition)
    if obstacles:
        return UpgradeDecision(UpgradeKind.REFUSED, changes, obstacles, beside)
    return UpgradeDecision(UpgradeKind.RESUME if changes else UpgradeKind.SAME, changes, {}, beside)


def _obstacle(change: ChangedComponent, new: Bundle) -> str | None:
    window = new.definition.window
    chooses_records = change.component in CARRIED - {"watermark", "late_policy"}
    obstacle = window.kind.find_upgrade_obstacle(chooses_records=chooses_records)
    if obstacle is not None:
        return obstacle
    if change.component == "watermark" and len(new.definition.streams) > 1:
        return "of several sources the running stream alone knows how far each of them is"
    if change.component in CARRIED:
        return None
    return _PINNED.get(change.component, _SHAPES_STATE)
