"""Places: folders and addresses in object stores, and the locations of one pipeline's data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rivertwice.core.errors import ConfigError
from rivertwice.core.installed import base_of

# Names that are safe in paths, and places: folders or addresses in object stores.

NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}\Z")
PIPELINE = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}(@v([2-9]|[1-9][0-9]{1,3}))?\Z")
"""Names of pipelines: a name, or `NAME@v2` for the second version of a pipeline's definition (`core.installed`)."""
TOPIC = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,248}\Z")
"""Names that Kafka allows for a topic, except with a leading dot or hyphen: so it is a safe part of a path, and no option."""

_TOPIC_PATTERN = re.compile(r"^[A-Za-z0-9_*][A-Za-z0-9._*-]{0,248}\Z")
"""Patterns of topics: such names, in which `*` stands for any characters."""

_ODD = re.compile(r"[%*?\[\]{}\\^|]")
"""Characters that Spark takes for a pattern of names, or that Delta cannot write into an address; each was tried."""

Place = Path | str
"""A local folder, or an address in an object store as text (`ADDRESSES`)."""
ADDRESSES = "s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix or az://container/prefix"
_ADDRESS = re.compile(r"(s3|gs|az)://[^/@\s]+(/.*)?|abfss://[^/@\s]+@[^/@\s.]+\.[^/@\s]+(/.*)?", re.DOTALL)


def is_remote(place: Place) -> bool:
    """Say whether a place is an address in an object store, not a folder."""
    return str(place).startswith(("s3://", "gs://", "abfss://", "az://"))


def below(place: Place, *parts: str) -> Place:
    """Return the place of `parts` under `place`."""
    return place.joinpath(*parts) if isinstance(place, Path) else "/".join([place.rstrip("/"), *parts])


def parse_place(text: str, setting: str = "the place") -> Place:
    """Return the place that a setting names: an address in an object store, or a folder.

    Args:
        setting: its variable, as messages name it.

    Raises:
        ConfigError: it is an address of another kind, or the name of the folder is not allowed.
    """
    if _ADDRESS.fullmatch(text):
        return text.rstrip("/")
    if "://" in text:
        message = f"{setting} is {text!r}, which is not a place; write a folder, {ADDRESSES}"
        raise ConfigError(message)
    return require_folder(Path(text).resolve())


_WRITTEN_AS_ADDRESS = re.compile(r"(^|/)(s3[an]?|gs|gcs|az|abfss?|adls?|wasbs?|hdfs|dbfs|https?|file):/")


def local_path(text: str, setting: str) -> Path:
    """Return the file or folder of this host that a setting names; pathlib would make a local folder `gs:` of an address.

    Raises:
        ConfigError: it is an address.
    """
    if _WRITTEN_AS_ADDRESS.search(text):
        message = f"{setting} is {text!r}, which is an address; it must be on this host: write a path, and put the address into RIVERTWICE_SHARED"
        raise ConfigError(message)
    return Path(text).resolve()


def require_folder(path: Path) -> Path:
    """Return `path` if it can hold tables.

    Raises:
        ConfigError: Spark or Delta would read its name as another one.
    """
    odd = sorted(set(_ODD.findall(str(path))))
    if odd:
        message = (
            f"state cannot be stored in {str(path)!r}: Spark or Delta would misread {' '.join(odd)} in it, and not find "
            "their files; choose a folder without it (RIVERTWICE_HOME, --home)"
        )
        raise ConfigError(message)
    return path


_OWN_TOPICS = re.compile(r"(__|rivertwice[-.])")
"""How topics begin that no pattern reads: Kafka's own, and this product's (replays, positions)."""


@dataclass(frozen=True)
class TopicName:
    """What a source reads: a topic, or a pattern of topics, in which `*` stands for any characters, none included."""

    text: str

    @property
    def is_pattern(self) -> bool:
        """Whether it is a pattern: Kafka allows no `*` in a name."""
        return "*" in self.text

    @property
    def folder(self) -> str:
        """The name of its files and folders: no topic has `~` in its name, and no path may have `*`.

        Raises:
            ConfigError: it is neither a topic's name nor a pattern.
        """
        return require_topic(self.text).replace("*", "~")

    def reads(self, topic: str) -> bool:
        """Say whether it reads a topic."""
        if not self.is_pattern:
            return topic == self.text
        regex = ".*".join(re.escape(piece) for piece in self.text.split("*"))
        return not _OWN_TOPICS.match(topic) and re.fullmatch(regex, topic) is not None

    def may_share(self, other: TopicName) -> bool:
        """Say whether both may read a topic; of two patterns that is so unless they begin differently."""
        if not self.is_pattern or not other.is_pattern:
            return self.reads(other.text) or other.reads(self.text)
        begins = self.text.partition("*")[0], other.text.partition("*")[0]
        return begins[0].startswith(begins[1]) or begins[1].startswith(begins[0])


def require_topic(value: str) -> str:
    """Return `value` if it is a topic's name (`TOPIC`) or a pattern of such names.

    Raises:
        ConfigError: it is neither.
    """
    if not _TOPIC_PATTERN.match(value):
        message = (
            f"{value[:80]!r} cannot name a topic; names start with a letter, a digit or _ and hold at most 249 of A-Z, a-z, 0-9, "
            "'.', _ and -; in a pattern * stands for any characters"
        )
        raise ConfigError(message)
    return value


def require_name(value: str, what: str) -> str:
    """Return `value` if it is a safe opaque name (`^[a-z0-9][a-z0-9_-]{0,63}$`).

    Raises:
        ConfigError: the value could leave its folder or reach a shell or an expression.
    """
    if not NAME.match(value):
        message = (
            f"{value[:80]!r} cannot name a {what}; names start with a lower-case letter or digit and hold at most "
            "64 of a-z, 0-9, _ and -"
        )
        raise ConfigError(message)
    return value


def require_pipeline(value: str) -> str:
    """Return `value` if it is the name of a pipeline, or of a version of one (`PIPELINE`).

    Raises:
        ConfigError: it is not such a name.
    """
    if not PIPELINE.match(value):
        require_name(value, "pipeline")
    return value


@dataclass(frozen=True)
class Tables:
    """Places of one pipeline's Delta tables: folders, or addresses in an object store.

    Attributes:
        root: of all of them but, where a pipeline has versions, `served` (`PipelineHome.tables`).
        served_at: place of `served`, if it is not under `root`.
    """

    root: Place
    served_at: Place | None = None

    @property
    def changelog(self) -> Place:
        """Append-only rows that the stream emitted, each stamped (_timeline, _batch)."""
        return below(self.root, "changelog")

    @property
    def ledger(self) -> Place:
        """One row per micro-batch."""
        return below(self.root, "ledger")

    @property
    def dead_letters(self) -> Place:
        """Records that could not be accepted, with reason and address."""
        return below(self.root, "dead_letters")

    @property
    def late_rows(self) -> Place:
        """Records that arrived after one of their windows had closed, if the late policy keeps them."""
        return below(self.root, "late_rows")

    @property
    def amendments(self) -> Place:
        """Decisions about dead letters, one row each, in one sequence."""
        return below(self.root, "amendments")

    @property
    def sequence(self) -> Place:
        """Head moves and publications, one row each, in one sequence."""
        return below(self.root, "sequence")

    def versions(self, view: str) -> Place:
        """Versions of the rows of a table that a pipeline joins with, stamped (_timeline, _batch)."""
        return below(self.root, f"versions/{view}")

    @property
    def corrections(self) -> Place:
        """Rows that backfills computed, stamped (_backfill, _chunk)."""
        return below(self.root, "corrections")

    @property
    def served(self) -> Place:
        """The rows that each closed window serves now."""
        return below(self.root, "served") if self.served_at is None else self.served_at

    @property
    def provisional(self) -> Place:
        """The newest rows of windows that are open (emit: updates)."""
        return below(self.root, "provisional")

    @property
    def verdicts(self) -> Place:
        """One row per (reconcile run, pair, window, key)."""
        return below(self.root, "verdicts")

    @property
    def causes(self) -> Place:
        """One row per named cause of a difference."""
        return below(self.root, "causes")

    @property
    def reconciles(self) -> Place:
        """One row per reconcile run: counts, balance, gate."""
        return below(self.root, "reconciles")

    @property
    def seals(self) -> Place:
        """One row per reconcile that passed: up to where the past is proved."""
        return below(self.root, "seals")

    @property
    def quality(self) -> Place:
        """One row per run of a user's suite and expectation, and one per acceptance."""
        return below(self.root, "quality")


@dataclass(frozen=True)
class PipelineHome:
    """Everything that one pipeline stores: data of this host, and data that outlives the host.

    `root` (`HOME/pipelines/NAME`) has the data that only this host needs: live checkpoints, the lock, intent, heartbeat,
    logs, scratch. `place` has the data with which a second host can continue (tables, records of timelines, bundles,
    savepoints, the lease). It is the same as `root` unless a shared place is set.

    Attributes:
        root: the pipeline's folder on this host.
        savepoint_url: place of the savepoints, if it is not under `root`.
        shared: `SHARED/pipelines/NAME`, or None.
        leases: separate place of this pipeline's lease, or None.
    """

    root: Path
    savepoint_url: str | None = None
    shared: Place | None = None
    leases: Place | None = None

    @property
    def place(self) -> Place:
        """Place of the data that outlives this host."""
        return self.root if self.shared is None else self.shared

    @property
    def lease_place(self) -> Place | None:
        """Place where epochs are claimed; None: in this home, because no other host runs the pipeline."""
        if self.leases is not None:
            return self.leases
        return None if self.shared is None else below(self.shared, "lease")

    @property
    def tables(self) -> Tables:
        """Places of the Delta tables. Of a pipeline's versions, the one that serves writes the table `served` of the first one."""
        return Tables(below(self.place, "tables"), self.served_while(self.serving_version))

    def served_while(self, serving: str) -> Place:
        """Return the table `served` that this version writes while a version serves. Pure."""
        return self.public_served if serving == self.root.name else self.own_served

    @property
    def own_served(self) -> Place:
        """The table in which a version keeps what it would serve, while another one serves."""
        return below(self.place, "tables", "served_beside" if self.is_first_version else "served")

    @property
    def is_first_version(self) -> bool:
        """Whether this is the home of the pipeline's own definition, not of a later version."""
        return self.root.name == base_of(self.root.name)

    @property
    def public_served(self) -> Place:
        """The table `served` of the pipeline, whichever of its versions serves: what consumers read."""
        base = base_of(self.root.name)
        if isinstance(self.place, Path):
            return self.place.with_name(base) / "tables" / "served"
        return below(self.place.rpartition("/")[0], base, "tables", "served")

    @property
    def serving_note(self) -> Path:
        """File of this host with the name of the version that serves; absent: the first one. It follows the table's stamp."""
        return self.root.with_name(base_of(self.root.name)) / "serves"

    @property
    def serves(self) -> bool:
        """Whether what this version makes is what consumers read, as far as this host has seen."""
        return self.serving_version == self.root.name

    @property
    def serving_version(self) -> str:
        """Name of the version that serves, as far as this host has seen."""
        try:
            return self.serving_note.read_text().strip()
        except FileNotFoundError:
            return base_of(self.root.name)

    @property
    def intent(self) -> Path:
        """The desired state: running or stopped."""
        return self.root / "intent.json"

    @property
    def asked_run(self) -> Path:
        """The newest request for a run of a stream by schedule."""
        return self.root / "asked_run.json"

    @property
    def heartbeat(self) -> Path:
        """The driver's last report about itself."""
        return self.root / "heartbeat.json"

    @property
    def exit(self) -> Path:
        """Why the last driver ended."""
        return self.root / "exit.json"

    @property
    def checked(self) -> Path:
        """The findings for the last checked definition."""
        return self.root / "checked.json"

    @property
    def accepted(self) -> Path:
        """The expectations of the pipeline's suites that Great Expectations accepted."""
        return self.root / "accepted.json"

    @property
    def lease(self) -> Path:
        """Folder of the lease on this host: lock, epochs, owner."""
        return self.root / "lease"

    @property
    def drain(self) -> Path:
        """Marker file: the driver drains at the next batch boundary while it exists."""
        return self.root / "drain"

    @property
    def bundles(self) -> Place:
        """Definitions as they ran, content-addressed."""
        return below(self.place, "bundles")

    @property
    def timeline_records(self) -> Place:
        """One `NAME/timeline.json` per timeline."""
        return below(self.place, "timelines")

    @property
    def timelines(self) -> Path:
        """One folder per timeline that ran on this host, with checkpoint/."""
        return self.root / "timelines"

    def timeline(self, timeline: str) -> Path:
        """Folder of one timeline."""
        return self.timelines / require_name(timeline, "timeline")

    def checkpoint(self, timeline: str) -> Path:
        """Live Spark checkpoint of one timeline."""
        return self.timeline(timeline) / "checkpoint"

    def unplaced(self, timeline: str) -> Path:
        """Marker file: the batch that it names was planned by Spark, no part of it ran, and its ends are not placed yet."""
        return self.timeline(timeline) / "unplaced.json"

    @property
    def savepoints(self) -> Path:
        """One folder per savepoint, with checkpoint/ and manifest.json."""
        return self.root / "savepoints"

    @property
    def backfills(self) -> Path:
        """One folder per backfill, with plan.json and its progress; on this host if the shared place is in an object store."""
        return (self.place if isinstance(self.place, Path) else self.root) / "backfills"

    @property
    def repairs(self) -> Path:
        """The outcome of proposed repairs."""
        return self.root / "repairs.json"

    @property
    def operations(self) -> Path:
        """Write-ahead records of multi-step operations (restores)."""
        return self.root / "operations"

    @property
    def scratch(self) -> Path:
        """Temporary space of proofs; may be deleted when no proof runs."""
        return self.root / "scratch"

    @property
    def logs(self) -> Path:
        """Logs of drivers and jobs of this pipeline."""
        return self.root / "logs"
