"""What more than one folder of tests shares: one broker per run, a topic and a home per test, one stream over two days."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from pyspark.sql import SparkSession

from homes.project import REPOSITORY
from rivertwice.core.ports import held_ports
from rivertwice.core.settings import Settings
from rivertwice.local.broker import BrokerInfo, start_broker, stop_broker
from running.shared import alone, joined, shared_folder
from running.tiers import file_of, is_quick, longest_files_first, share_of, stored_durations
from running.warm_spark import own_session, stop_warm_session, warm_session
from servers.secure_kafka import SecureListeners, make_files
from streams.flights import StreamedRun, settings_of, stream_days

# A JVM of a test lives for minutes: compiled by C1 only it spends a quarter less CPU (a warm test of five backfills: 161 s, not 224 s).
# C1 alone would have 48 MB for all code, and sweep it all the time. The fault lab says the same, and more, by `campaign.QUICK_JVM`.
# One collecting thread, and no helper process between the JVM and each `readlink` and `chmod` by which Hadoop looks at files
# (some thirty for a micro-batch): another seventh of the CPU of histories (ran: 42.6, 36.7 s).
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:-UsePerfData "
    "-Djdk.lang.Process.launchMechanism=VFORK",
)

# Verbs of a test start no process that outlives it; the tests of the engine turn it on.
os.environ.setdefault("RIVERTWICE_ENGINE", "off")

# No test cuts the power: what is brought onto the disk at once is proved in tests/unit/storage, which turn it on again.
os.environ.setdefault("RIVERTWICE_DURABLE", "off")

IN_CI = bool(os.environ.get("CI"))
hypothesis_settings.register_profile("untimed", deadline=None)  # tests assert no times
hypothesis_settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis_settings.load_profile("ci" if IN_CI else "untimed")

SLOW_TEST_S = 3_600
MUST_BE_THERE = ("no PostgreSQL", "no Redis", "no Chromium", "no Go", "no Prometheus", "Kafka Connect", "versitygw")
"""What a skip for want of it says; in CI all of it is there, or the run fails."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of a share."""
    parser.addoption("--share", type=int, metavar="LANDING", help="of what is chosen, the share that this landing runs")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark the tests of `make test` as `quick`, before `-m` chooses; give a slow one its hour; take a share, and order it."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if is_quick(marks):
            item.add_marker(pytest.mark.quick)
        if "faults" in marks:
            item.add_marker(pytest.mark.timeout(SLOW_TEST_S))
    yield
    files = longest_files_first([item.nodeid for item in items], stored_durations())
    landing = config.getoption("--share")
    taken = files if landing is None else share_of(files, landing)
    config.hook.pytest_deselected(items=[item for item in items if file_of(item.nodeid) not in taken])
    place = {name: number for number, name in enumerate(files)}
    items[:] = [item for item in items if file_of(item.nodeid) in taken]
    items.sort(key=lambda item: place[file_of(item.nodeid)])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, fail a test that is skipped for want of something that CI must have."""
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if IN_CI and report.skipped and any(word in reason for word in MUST_BE_THERE):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} must not be skipped in CI: {reason}"
    return report


def pytest_unconfigure() -> None:
    """End this process's Spark after its last test."""
    stop_warm_session()


@pytest.fixture(autouse=True)
def _warm(request: pytest.FixtureRequest) -> None:
    """Start the process's Spark before a test that needs one, so that the product finds it there and cannot stop it."""
    if request.node.get_closest_marker("spark"):
        warm_session()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session of the file's own over this process's one Spark: what a file sets does not reach the next one."""
    with own_session() as session:
        yield session


@pytest.fixture(scope="session")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureListeners]:
    """The shared broker's listeners that ask for a login; who made them holds their ports, for a broker starts later."""
    folder = shared_folder(tmp_path_factory, "listeners")
    made = folder / "listeners.json"
    with ExitStack() as held:
        with alone(folder):
            if not made.exists():
                make_files(folder / "tls")
                made.write_text(json.dumps(held.enter_context(held_ports(2))))
        sasl, tls = json.loads(made.read_text())
        yield SecureListeners(sasl, tls, folder / "tls")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, listeners: SecureListeners) -> Iterator[BrokerInfo]:
    """The run's broker; every test uses topics of its own."""
    folder = shared_folder(tmp_path_factory, "broker")
    settings = Settings(project=REPOSITORY, home=folder / "home")
    start = functools.partial(start_broker, settings, extra=listeners.properties())
    with joined(folder, start, lambda: stop_broker(settings)) as info:
        yield info


@pytest.fixture(scope="session")
def streamed_two_days(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> StreamedRun:
    """30 June and 1 July 2013 (1,884 flights), streamed in 40 batches. Do not change it: use `copy_run`."""
    folder = shared_folder(tmp_path_factory, "two-days")
    made = folder / "made"
    with alone(folder):
        if not made.exists():
            run = stream_days(
                folder / "run", bootstrap=broker.bootstrap, topic="two-days", pins={"max_offsets_per_trigger": 48}
            )
            made.write_text(str(run.records))
    return StreamedRun(settings_of(folder / "run", broker.bootstrap), "two-days", int(made.read_text()))


@pytest.fixture(scope="session")
def project() -> Path:
    """The repository."""
    return REPOSITORY


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a home of the test's own and no broker."""
    return Settings(project=REPOSITORY, home=tmp_path / "home", spark_master="local[2]")


@pytest.fixture
def kafka_settings(settings: Settings, broker: BrokerInfo) -> Settings:
    """Settings with a home of the test's own and the shared broker."""
    return replace(settings, bootstrap=broker.bootstrap)


@pytest.fixture
def topic() -> str:
    """A topic name nobody else uses; the test creates the topic."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def make_topic(kafka_settings: Settings, topic: str) -> Callable[[int], str]:
    """Create the test's topic with so many partitions and return its name."""
    from rivertwice.log.kafka import ensure_topic

    def make(partitions: int = 4) -> str:
        ensure_topic(kafka_settings, topic, partitions)
        return topic

    return make
