"""F21, F22, F23 and a lost host: a store that answers wrongly or refuses, a full disk, a machine that is gone."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from lab.faults.azure_server import azure_server
from lab.faults.cases import LabError, case, require
from lab.faults.gcs_server import gcs_server
from lab.faults.lab import PIPELINE, Lab
from lab.faults.s3_proxy import Fault, Kind, S3Proxy, s3_proxy
from lab.faults.s3_server import s3_server
from lab.faults.savepoint_runs import prove_listed, run_command
from rivertwice.core.errors import RivertwiceError
from rivertwice.core.instants import utc_now
from rivertwice.savepoint.catalogue import list_savepoints
from rivertwice.savepoint.take import take_savepoint
from rivertwice.storage.places import open_store
from rivertwice.timeline.intent import Exit
from rivertwice.timeline.sequence import head

BUCKET = "rivertwice"
_WRONG: tuple[Kind, ...] = ("error_500", "slow_down", "reset_request", "drop_after", "reset_answer")


class StoreServer(Protocol):
    """A server of an object store on loopback, and how the product finds it."""

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        ...

    def env(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables by which clients find it, or a proxy in front of it at `endpoint`."""
        ...

    def address(self, bucket: str, path: str) -> str:
        """Return the address of a place there."""
        ...

    def create_bucket(self, name: str) -> None:
        """Create a bucket."""
        ...


STORES: dict[str, Callable[[Path, Path], AbstractContextManager[StoreServer]]] = {
    "s3": s3_server,
    "azure": azure_server,
    "gcs": gcs_server,
}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and the processes it starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def on_store(lab: Lab, name: str = "s3") -> Iterator[S3Proxy]:
    """Keep all that outlives a host on a store behind the proxy, until the end of the block.

    The oracle reads the objects in a folder: there versitygw keeps them, and the other servers' are copied at the end of the block.

    Args:
        name: one of `STORES`.
    """
    folder = lab.folder / "store"
    build = Path(os.environ.get("RIVERTWICE_PROJECT") or Path.cwd()) / ".build"
    with STORES[name](build, folder) as server, s3_proxy(server.endpoint) as proxy:
        server.create_bucket(BUCKET)
        place = server.address(BUCKET, "shared")
        objects = folder / "objects" / BUCKET / "shared"
        lab.settings = replace(lab.settings, shared=place)
        lab.tables_at = objects / "pipelines" / PIPELINE
        with environment(server.env(proxy.endpoint)):
            yield proxy
        if not objects.exists():
            with environment(server.env()):
                _copy(place, objects)


def _copy(place: str, folder: Path) -> None:
    store = open_store(place)
    for key in store.list():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(key, path)


@contextmanager
def now_and_then(proxy: S3Proxy, seed: int, every_s: float) -> Iterator[None]:
    """Break one request again and again, of kinds that the seed chooses; at most one fault waits for its request.

    Faults that piled up between requests would all meet the first requests of the next start. That would be an outage, and not
    a store that answers wrongly now and then.
    """
    rng = random.Random(seed)  # noqa: S311 (test data, not a secret)
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(rng.uniform(0, 2 * every_s)):
            proxy.heal()
            proxy.fail(Fault(rng.choice(_WRONG), rng.choice(["GET", "PUT", "HEAD", None])))

    thread = threading.Thread(target=run, name="faults", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)
        proxy.heal()


def take_whole(lab: Lab) -> None:
    """Take a savepoint and require that every listed one is whole."""
    take_savepoint(lab.settings, PIPELINE, now=utc_now(), reason="fault lab")
    savepoints = list_savepoints(lab.home)
    require(bool(savepoints), "a savepoint that was taken is not listed")
    for savepoint in savepoints:
        savepoint.verify_files()
    lab.fact("savepoints", len(savepoints))


def _answers_wrongly(lab: Lab, store: str) -> None:
    """Server errors, slow-downs, resets and lost answers in between: the driver may fail and start again, no more."""
    with on_store(lab, store) as proxy:
        lab.produce()
        steps = lab.steps()
        with now_and_then(proxy, lab.seed, 0.3):
            driver = lab.start_driver()
            batch = lab.random.randrange(2, 5)
            struck = lab.kill_when(driver, lambda: steps.finished(batch))
            lab.fact("killed", struck)
            starts = 0
            while lab.wait(lab.start_driver(until_end=True)) != 0:
                starts += 1
                record = Exit.load(lab.home)
                require(
                    record is not None and record.failure in ("store", "lease_lost"),
                    f"a driver on a faulty store ended as {record}",
                )
                require(starts < 8, f"the driver does not get on through faults; {lab.log_end()}")
        lab.fact("starts_that_failed", starts)
        lab.fact("faults_met", len(proxy.met()))
        lab.run_to_end()
        with now_and_then(proxy, lab.seed + 1, 0.1):
            try:
                take_savepoint(lab.settings, PIPELINE, now=utc_now(), reason="through faults")
            except RivertwiceError as error:
                lab.fact("savepoint_failed", str(error)[:120])
        for savepoint in list_savepoints(lab.home):
            savepoint.verify_files()
        take_whole(lab)


@case("F21", "tables, savepoints and the lease on an S3 that answers wrongly all the time", kills=1)
def s3_answers_wrongly(lab: Lab) -> None:
    """See `_answers_wrongly`."""
    _answers_wrongly(lab, "s3")


@case("F21/azure", "the same on an Azure store", kills=1)
def azure_answers_wrongly(lab: Lab) -> None:
    """See `_answers_wrongly`."""
    _answers_wrongly(lab, "azure")


@case("F21/gcs", "the same on a Google store", kills=1)
def gcs_answers_wrongly(lab: Lab) -> None:
    """See `_answers_wrongly`."""
    _answers_wrongly(lab, "gcs")


def _refuses(lab: Lab, store: str, kinds: Sequence[Kind]) -> None:
    """The driver stops with a message that names what is refused; nothing is committed meanwhile; then it continues."""
    with on_store(lab, store) as proxy:
        lab.produce()
        kind = lab.random.choice(kinds)
        batch = lab.random.randrange(1, 5)
        driver, steps = lab.start_driver(), lab.steps()
        lab.until(lambda: steps.finished(batch), 120, f"batch {batch}")
        proxy.fail(Fault(kind, "PUT", "/tables/changelog/", times=None))
        code = lab.wait(driver, 180)
        record = Exit.load(lab.home)
        require(code == 1 and record is not None, f"a driver that may not write ended with {code} and {record}")
        if record is not None:
            require(
                record.failure == "store", f"a refused write is classified as {record.failure}: {record.message[:300]}"
            )
            require("credentials" in record.message, f"the message names no remedy: {record.message[:300]}")
        refused = len(proxy.met(kind))
        lab.fact("requests_refused", refused)
        require(refused < 60, f"{refused} requests were sent although each was refused")
        proxy.heal()
        lab.run_to_end()


@case(
    "F22",
    "credentials refused on the tables' prefix in the middle of the stream, then allowed again",
    proves=("failure-modes.md#a-write-to-s3",),
)
def s3_refuses(lab: Lab) -> None:
    """See `_refuses`."""
    _refuses(lab, "s3", ["forbidden", "expired"])


@case("F22/azure", "the same on an Azure store", proves=("failure-modes.md#a-write-to-s3",))
def azure_refuses(lab: Lab) -> None:
    """See `_refuses`."""
    _refuses(lab, "azure", ["forbidden", "unauthenticated"])


@case("F22/gcs", "the same on a Google store", proves=("failure-modes.md#a-write-to-s3",))
def gcs_refuses(lab: Lab) -> None:
    """See `_refuses`."""
    _refuses(lab, "gcs", ["forbidden", "unauthenticated"])


@contextmanager
def small_disk(folder: Path, megabytes: int = 64) -> Iterator[Path]:
    """Mount a small file system at `folder`.

    Raises:
        LabError: this user may not mount.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mount, umount = shutil.which("mount") or "mount", shutil.which("umount") or "umount"
    words = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        message = f"a full disk needs a file system of its own, and mounting one is refused: {done.stderr.strip()}"
        raise LabError(message)
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", str(folder)], check=False, capture_output=True)


def fill(folder: Path, left: int) -> Path:
    """Fill the file system of `folder` up to `left` bytes; return the file that fills it.

    Other processes may write between the measurement and the filling, which makes that too much: so it is measured again.
    """
    path = folder / ".filler"
    with path.open("wb") as file:
        for tries_left in reversed(range(20)):
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(folder).free - left))
                break
            except OSError as error:
                if not tries_left or error.errno != errno.ENOSPC:
                    raise
    return path


def _full(lab: Lab, folder: Path, left: int) -> None:
    disk = small_disk(folder)
    disk.__enter__()
    lab.at_end(lambda: disk.__exit__(None, None, None))
    lab.produce()
    driver, batch = lab.start_driver(), lab.random.randrange(2, 6)
    lab.until(lambda: lab.steps().finished(batch), 120, f"batch {batch}")
    filler = fill(folder, left)
    code = lab.wait(driver, 180)
    record = Exit.load(lab.home)
    lab.fact("ended_as", None if record is None else f"{record.failure}: {record.message[:80]}")
    require(code != 0, f"a driver with a full disk ended with {code}; {lab.log_end()}")
    if folder != lab.home.root:  # where the home itself is full, the agent reads the cause from the log
        require(record is not None and record.failure == "disk", f"a full disk is classified as {record}")
    if folder == lab.home.root:
        try:
            take_savepoint(lab.settings, PIPELINE, now=utc_now(), reason="on a full disk")
        except (OSError, RivertwiceError) as error:
            lab.fact("savepoint_refused", str(error)[:100])
        for savepoint in list_savepoints(lab.home):
            savepoint.verify_files()
    filler.unlink()
    lab.run_to_end()
    take_whole(lab)


@case("F23/checkpoint", "the disk of the checkpoints full, then freed")
def checkpoint_disk_full(lab: Lab) -> None:
    """State and offsets cannot be written: the batch is not committed; freed, it is replayed."""
    _full(lab, lab.home.timelines, lab.random.randrange(0, 60_000))


@case("F23/tables", "the disk of the tables full, then freed")
def table_disk_full(lab: Lab) -> None:
    """The commit fails or holds: nothing in between is read."""
    tables = lab.home.tables.root
    require(isinstance(tables, Path), "the tables lie in no folder")
    _full(lab, Path(tables), lab.random.randrange(0, 30_000))


@case("F23/home", "the disk of the whole home full, staging of savepoints included, then freed")
def home_disk_full(lab: Lab) -> None:
    """Not even a record of the failure can be written; no half savepoint is listed."""
    _full(lab, lab.home.root, lab.random.randrange(0, 60_000))


@case(
    "F24/lost-host",
    "the machine of a driver is gone; another host continues from the shared place",
    kills=2,
    proves=("failure-modes.md#a-lost-host", "howto-deploy.md#a-host-is-lost"),
)
def host_lost(lab: Lab) -> None:
    """The shared place is a folder that both mount."""
    lab.settings = replace(lab.settings, shared=lab.folder / "shared")
    _host_lost(lab)


@case("F24/lost-host-azure", "the same with an Azure store as the shared place", kills=2)
def host_lost_azure(lab: Lab) -> None:
    """See `_host_lost`."""
    with on_store(lab, "azure"):
        _host_lost(lab)


@case("F24/lost-host-gcs", "the same with a Google store as the shared place", kills=2)
def host_lost_gcs(lab: Lab) -> None:
    """See `_host_lost`."""
    with on_store(lab, "gcs"):
        _host_lost(lab)


def _host_lost(lab: Lab) -> None:
    """Two folders as two hosts: the second has no checkpoint, waits for the lease, and restores the proved savepoint."""
    lab.settings = replace(lab.settings, home=lab.folder / "host-a")
    lab.produce()
    driver, batch = lab.start_driver(), lab.random.randrange(4, 7)
    struck = lab.kill_when(driver, lambda: lab.steps().finished(batch))
    require(struck, lab.log_end())
    take_whole(lab)
    driver = lab.start_driver()
    lab.until(lambda: lab.steps().finished(batch + 3), 120, "batches after the savepoint")
    prove_listed(lab)
    require(lab.kill_when(driver, lambda: lab.steps().planned(batch + 4)), lab.log_end())
    before = head(lab.home)
    shutil.rmtree(lab.settings.home)  # the machine is gone
    lab.settings = replace(lab.settings, home=lab.folder / "host-b")
    code = lab.wait(lab.start_driver(until_end=True))
    record = Exit.load(lab.home)
    require(
        code == 1 and record is not None and record.failure == "checkpoint",
        f"a host without the checkpoint ended with {code} as {record}",
    )
    run_command(lab, "savepoint", "restore", PIPELINE, "--yes")
    require(head(lab.home) != before, "the restore moved no head")
    lab.fact("head", head(lab.home))
    lab.run_to_end()
