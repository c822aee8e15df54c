"""How far a first load by batch is: for `status`, the page, the metrics, and a start of the stream meanwhile.

What is recorded decides: the load, the head, the stream's watermark and the publications. Before the load is recorded, there is only
an archive. So its command notes the step in `first_load/step.json` of this host, which nothing else depends on. While the command
runs, it holds the lock beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from rivertwice.backfill.ranges import HalfOpenRange, length
from rivertwice.core import LostRaceError, PipelineHome, holder, is_locked, iso_of_ms, lock_or_refuse
from rivertwice.definition import load_bundle_definition
from rivertwice.storage import read_json, replace_json
from rivertwice.timeline import FirstLoad, head, head_path, newest_batch, path_semantics, read_sequence

FORMAT = 1
ARCHIVE, LOOK, BEGIN, CLOSE, PUBLISH = range(1, 6)
STEPS = {
    ARCHIVE: "the log is archived",
    LOOK: "the log's event times are read",
    BEGIN: "it is recorded, and the stream's timeline is to serve",
    CLOSE: "the stream has to close the windows to load",
    PUBLISH: "backfills publish the windows",
}
_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class LoadProgress:
    """How far a first load is, for programs: see `UnfinishedLoad`."""

    load: str | None
    process: str | None
    step: int
    steps: int
    windows: int | None
    windows_left: int | None
    command: str
    message: str


@dataclass(frozen=True)
class UnfinishedLoad:
    """A first load that is not done.

    Attributes:
        step: its number in `STEPS`.
        process: who works on it on this host (`process 4711`); None if none does.
        load: its id; None before it is recorded.
        windows: to load; left: those of them that no backfill has published. None before it is recorded.
        detail: how far the step is, if that is known; else empty.
    """

    pipeline: str
    step: int
    process: str | None
    load: str | None = None
    windows: int | None = None
    left: int | None = None
    detail: str = ""

    @property
    def command(self) -> str:
        """The command that continues it."""
        return f"rivertwice start {self.pipeline} --from-batch"

    @property
    def text(self) -> str:
        """What is to be known of it, in a sentence: which step, who works on it, what continues it."""
        name = "a first load by batch" if self.load is None else f"first load {self.load}"
        where = f"step {self.step} of {len(STEPS)}: {STEPS[self.step]}{f' ({self.detail})' if self.detail else ''}"
        if self.process is not None:
            return f"{name} is under way ({self.process}), {where}; if it is interrupted, `{self.command}` continues it"
        return f"{name} is not finished and no process of this host works on it, {where}; `{self.command}` continues it"

    @property
    def progress(self) -> LoadProgress:
        """How far it is, for programs."""
        done = (self.load, self.process, self.step, len(STEPS), self.windows, self.left)
        return LoadProgress(*done, self.command, self.text)


def has_closed(home: PipelineHome, load: FirstLoad) -> bool:
    """Say whether the stream has closed all windows of a load, so that backfills may publish them."""
    path = head_path(home)
    last = newest_batch(home, path) if path else None
    if last is None:
        return False
    window = load_bundle_definition(home.bundles, load.bundle).window
    return load.before_ms - window.step // _MS + window.length // _MS <= window.closed_ms(last.batch_watermark_ms)


def unloaded_windows(home: PipelineHome, load: FirstLoad) -> tuple[HalfOpenRange, ...]:
    """Return the windows that no backfill has published yet, by their start (epoch ms)."""
    from rivertwice.backfill.load_plan import find_unloaded  # only few pipelines ever had a first load
    from rivertwice.timeline import publications_of

    return find_unloaded(load, publications_of(read_sequence(home)), path_semantics(home, head_path(home)))


def find_unfinished_load(home: PipelineHome) -> UnfinishedLoad | None:
    """Return the first load of a pipeline that is not done; None if there is none, or all its windows are published.

    Raises:
        DamagedFileError: its record is not what was written.
    """
    pipeline, load = home.root.name, FirstLoad.load(home)
    if load is None:
        noted = read_json(_step_file(home)) if head(home) is None else None
        return None if noted is None else UnfinishedLoad(pipeline, int(noted["step"]), _process(home))
    unloaded = unloaded_windows(home, load)
    if not unloaded:
        return None
    step_ms = load_bundle_definition(home.bundles, load.bundle).window.step // _MS
    windows, left = (load.before_ms - load.since_ms) // step_ms, length(unloaded) // step_ms
    step, detail = _step_of(home, load)
    published = f"{windows - left} of {windows} are published" if step == PUBLISH else ""
    return UnfinishedLoad(pipeline, step, _process(home), load.id, windows, left, detail or published)


@contextmanager
def hold_load(home: PipelineHome) -> Iterator[None]:
    """Let one command of this host load a pipeline.

    Raises:
        LostRaceError: another one does.
    """

    def refuse(name: str) -> LostRaceError:
        pipeline = home.root.name
        message = (
            f"{name} does a first load of {pipeline} already; `rivertwice status` shows its step; when it has "
            f"ended, `rivertwice start {pipeline} --from-batch` continues what is left"
        )
        return LostRaceError(message)

    with lock_or_refuse(_lock_file(home), refuse):
        yield


def note_step(home: PipelineHome, step: int) -> None:
    """Note which step of a load begins that is not recorded yet."""
    replace_json(_step_file(home), {"format": FORMAT, "step": step})


def forget_step(home: PipelineHome) -> None:
    """Remove what was noted: the load is recorded, or there is nothing to load."""
    _step_file(home).unlink(missing_ok=True)


def _step_of(home: PipelineHome, load: FirstLoad) -> tuple[int, str]:
    """Return the step of a recorded load that is not done, and how far the stream's watermark is."""
    path = head_path(home)
    if not path:
        return BEGIN, ""
    if has_closed(home, load):
        return PUBLISH, ""
    last = newest_batch(home, path)
    reached = "it has committed no batch" if last is None else f"its watermark is {iso_of_ms(last.batch_watermark_ms)}"
    return CLOSE, f"{reached}, they are closed at {iso_of_ms(load.closed_ms)}"


def _process(home: PipelineHome) -> str | None:
    file = _lock_file(home)
    return holder(file) if is_locked(file) else None


def _lock_file(home: PipelineHome) -> Path:
    return home.root / "first_load" / "lock"


def _step_file(home: PipelineHome) -> Path:
    return home.root / "first_load" / "step.json"
