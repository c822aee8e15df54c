"""The guides of `docs/migrate.md`, from end to end: the code of the page runs as it stands there, and so do the commands.

The old side is a real one: Spark with Delta, Flink, dbt, Airflow. Flink and dbt are no dependencies of this project: a test installs
them from the package index. All sides read the same records, and `compare.py` of the page has to name each cell that differs, with the
values and the reason that plain additions over the list of records say.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path

import pytest
from deltalake import DeltaTable

from homes.project import REPOSITORY
from lab.faults.events import Event
from rivertwice.core.errors import ServiceError
from rivertwice.core.instants import to_ms
from rivertwice.core.settings import Settings
from rivertwice.engine.java import java_env
from rivertwice.local.broker import BrokerInfo
from rivertwice.local.install import fetch_jars
from rivertwice.local.sample import orders_text
from rivertwice.log.kafka import ensure_topic
from rivertwice.log.send import send_records
from running.reader import UV, Reader
from running.waiting import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.faults]
PAGE = (REPOSITORY / "docs" / "migrate.md").read_text(encoding="utf-8")
TOPIC, HOUR = "shop-orders", timedelta(hours=1)
BROKEN = 3
ENGINES = REPOSITORY / ".build" / "migrate"
"""What the old sides need beside this project's own packages: kept, because it is large."""
FLINK_CONNECTOR = (
    "org.apache.flink",
    "flink-sql-connector-kafka",
    "5.0.0-2.2",
    "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616",
)
Cell = tuple[datetime, str]
Sums = tuple[int, Decimal]
Difference = tuple[list[Sums], list[Sums], str]
"""The rows of the old side, those of ours, and why they differ."""


@dataclass(frozen=True)
class Order:
    """An order: what it says, and when it came."""

    text: str
    shop: str
    amount: Decimal
    at: datetime
    came: datetime

    @property
    def cell(self) -> Cell:
        """Hour and shop."""
        return self.at.replace(minute=0, second=0), self.shop

    @property
    def is_late(self) -> bool:
        """Whether it came hours too late; all others come within two minutes."""
        return self.came - self.at > HOUR


def make_orders() -> list[Order]:
    """Return the tutorial's orders with the time of their arrival; one of them has its time with another zone's text."""
    orders: list[Order] = []
    for text in orders_text().replace("+00:00", "Z").splitlines():
        values = json.loads(text, parse_float=Decimal)
        at = datetime.fromisoformat(values["placed_at"])
        came = max(at, orders[-1].came) if orders else at
        is_other = len(orders) == 1_200
        written = text.replace('Z"', '+00:00"') if is_other else text
        orders.append(Order(written, values["shop"], Decimal(values["amount"]), at, came))
    return orders


def sums(orders: Iterable[Order]) -> dict[Cell, Sums]:
    """Return hour and shop to number of orders and their amount."""
    counts: dict[Cell, int] = defaultdict(int)
    amounts: dict[Cell, Decimal] = defaultdict(Decimal)
    for each in orders:
        counts[each.cell] += 1
        amounts[each.cell] += each.amount
    return {cell: (counts[cell], amounts[cell]) for cell in counts}


ORDERS = make_orders()
CLOSED = {cell: values for cell, values in sums(ORDERS).items() if cell[0].hour < 17}
"""What ours has to serve: the last hour is open."""
IN_TIME = {cell: values for cell, values in sums(o for o in ORDERS if not o.is_late).items() if cell[0].hour < 17}
(OTHER_ZONE,) = (each for each in ORDERS if '+00:00"' in each.text)


def blocks(section: str, language: str) -> list[str]:
    """Return the blocks of a language in the section whose heading begins so."""
    (text,) = (each for each in re.split(r"^## ", PAGE, flags=re.MULTILINE) if each.startswith(section))
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for name, code in fences if name == language]


@dataclass(frozen=True)
class Beside:
    """Ours, which has read the topic and is fixed, and a folder for the old side.

    Attributes:
        reader: runs commands in our project.
        bootstrap: of the broker.
        printed: what the commands of the page printed.
        old: takes the place of `/srv/shop`.
    """

    reader: Reader
    bootstrap: str
    printed: str
    old: Path

    def placed(self, text: str) -> str:
        """Return text of the page with the broker and the folder of this test."""
        return text.replace("broker-1:9092", self.bootstrap).replace("/srv/shop", str(self.old))

    def write(self, section: str, *languages: str) -> None:
        """Write the section's files into the old side's folder, each under the name in its first line."""
        for language in languages:
            for text in blocks(section, language):
                name = re.match(r"(?:#|--) (\S+\.(?:py|sql|yml))\n", text)
                assert name is not None, text
                path = self.old / name[1]
                path.parent.mkdir(exist_ok=True)
                path.write_text(self.placed(text))

    def env(self, **more: str) -> dict[str, str]:
        """Return the environment of an old side: Spark is configured as a host's administrator would."""
        own = {"JAVA_HOME": java_env()["JAVA_HOME"], "SPARK_CONF_DIR": str(self.reader.folder.parent / "conf")}
        return {**self.reader.env, **own, **more}

    def compare(self, section: str) -> tuple[int, dict[Cell, Difference]]:
        """Run the section's comparison; return the number of equal rows, and the others."""
        (command,) = (text for text in blocks(section, "sh") if "compare.py" in text)
        lines = self.reader.run(self.placed(command)).splitlines()
        differ = dict(map(difference, lines[:-1]))
        found = re.fullmatch(r"(\d+) rows are equal, (\d+) differ", lines[-1])
        assert found is not None
        assert int(found[2]) == len(differ)
        return int(found[1]), differ


def difference(line: str) -> tuple[Cell, Difference]:
    """Return what a line of `compare.py` says."""
    at, shop, *sides, why = line.split(" | ")
    old, ours = ([(int(count), Decimal(str(amount))) for count, amount in json.loads(side)] for side in sides)
    return (datetime.fromisoformat(at), shop), (old, ours, why)


def late_records(cell: Cell) -> str:
    """Return the addresses of the late orders of a cell, as `compare.py` names them."""
    places = [
        number + (BROKEN if number >= 1_000 else 0)
        for number, each in enumerate(ORDERS)
        if each.cell == cell and each.is_late
    ]
    return " ".join(sorted(f"{TOPIC}/0@{place}" for place in places))


def lacks(cell: Cell, old: Sums) -> str:
    """Return what `compare.py` has to say of a row that lacks records."""
    late, records = late_records(cell), CLOSED[cell][0]
    return f"lacks {records - old[0]} of {records} records, {len(late.split())} late here {late}".strip()


def installed(name: str, *packages: str) -> Path:
    """Return the Python of an environment that has these packages."""
    folder = ENGINES / f"{name}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([str(UV), "venv", "-q", "--python", sys.executable, str(folder)], check=True)
        command = [str(UV), "pip", "install", "-q", "--python", str(python), *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be installed here: {done.stderr[-500:]}")
        (folder / "complete").touch()
    return python


@pytest.fixture(scope="module")
def ours(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """Ours beside whatever ran before: the commands of the page, once for all guides."""
    folder = tmp_path_factory.mktemp("migrate")
    settings = Settings(project=REPOSITORY, home=folder / "none", bootstrap=broker.bootstrap)
    ensure_topic(settings, TOPIC, 1)
    events = [Event(0, each.shop.encode(), each.text.encode(), to_ms(each.came)) for each in ORDERS]
    events[1_000:1_000] = [Event(0, None, b'{"order_id": 7,', events[999].timestamp_ms)] * BROKEN
    send_records(settings, TOPIC, events)
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(
        f"spark.master local[2]\nspark.sql.shuffle.partitions 2\nspark.ui.enabled false\nspark.jars.ivy {ENGINES / 'ivy'}\n"
    )
    reader = Reader(folder)
    reader.env |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "src"),
        "PYSPARK_PYTHON": sys.executable,
        "RIVERTWICE_SPARK_MASTER": "local[2]",
        "RIVERTWICE_BOOTSTRAP": broker.bootstrap,
    }
    try:
        (compare,) = blocks("The steps", "python")
        (reader.folder / "compare.py").write_text(compare)
        commands, _ = blocks("The steps", "sh")
        yield Beside(reader, broker.bootstrap, reader.run(commands.replace("broker-1:9092", broker.bootstrap)), folder)
    finally:
        reader.run("rivertwice down")


@pytest.fixture
def beside(ours: Beside, tmp_path: Path) -> Beside:
    """Ours, and a folder of this test for the old side."""
    return Beside(ours.reader, ours.bootstrap, ours.printed, tmp_path)


@pytest.fixture
def until(beside: Beside) -> Iterator[Callable[[list[str], Callable[[], bool]], str]]:
    """Run a program that has no end until something is true or it ends; return its output."""
    running: list[subprocess.Popen[bytes]] = []

    def run(command: list[str], is_done: Callable[[], bool]) -> str:
        output = beside.old / f"output-{len(running)}"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command,
                cwd=beside.old,
                env=beside.env(),
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running.append(process)
        try:
            wait_for(command[0], lambda: is_done() or process.poll() is not None, 240, every=0.5)
        finally:
            end(process)
        return output.read_text(errors="replace")

    yield run
    for process in running:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.proves("migrate.md#the-steps-the-same-for-each-job")
def test_the_steps_end_with_the_verdicts_that_the_page_shows(beside: Beside) -> None:
    (shown,) = (text for text in blocks("The steps", "") if "AGREES" in text)
    printed = [line.split() for line in beside.printed.splitlines()]
    assert [line for line in shown.splitlines() if line.split() not in printed] == []
    _, query = blocks("The steps", "sh")
    head, _, *rows = [line.split() for line in beside.reader.run(query).splitlines()]
    assert head == ["start", "shop", "records", "amount"]
    assert {
        (datetime.fromisoformat(at), shop): (int(count), Decimal(amount))
        for at, shop, count, amount in rows[: len(CLOSED)]
    } == CLOSED
    assert rows[-1] == [str(len(CLOSED)), "rows"]


@pytest.mark.proves("migrate.md#migrate-from-structured-streaming-with-foreachbatch-to-delta")
def test_a_job_with_foreachbatch_lacks_what_came_late_and_has_a_batch_twice(
    beside: Beside, until: Callable[[list[str], Callable[[], bool]], str]
) -> None:
    section = "Migrate from Structured Streaming"
    beside.write(section, "python")
    (beside.old / "killed.py").write_text(KILLED_AFTER_ITS_THIRD_WRITE)
    (command,) = blocks(section, "text")
    checkpoint = beside.old / "checkpoint"

    def has_read_all() -> bool:
        offsets = sorted(checkpoint.glob("offsets/[0-9]*"), key=lambda path: int(path.name))
        if not offsets or not (checkpoint / "commits" / offsets[-1].name).exists():
            return False
        return json.loads(offsets[-1].read_text().splitlines()[-1])[TOPIC]["0"] == len(ORDERS) + BROKEN

    until(command.replace("hours_to_delta.py", "killed.py").split(), lambda: False)
    assert not (checkpoint / "commits" / "2").exists()
    said = until(command.split(), has_read_all)
    again = twice(beside.old / "hours")

    equal, differ = beside.compare(section)
    late = {cell for cell in CLOSED if CLOSED[cell] != IN_TIME[cell]}
    assert len(again) == 3
    assert again.isdisjoint(late)
    assert differ == {
        cell: (
            [IN_TIME[cell]] * (2 if cell in again else 1),
            [CLOSED[cell]],
            "2 times in the old result" if cell in again else lacks(cell, IN_TIME[cell]),
        )
        for cell in late | again
    }
    assert equal == len(CLOSED) - len(differ)
    (shown,) = (text for text in blocks("The steps", "") if "late here" in text)
    assert dict(map(difference, shown.splitlines())).items() <= differ.items()
    dropped = sum(map(int, re.findall(r'"numRowsDroppedByWatermark" : (\d+)', said)))
    assert dropped == 3


def twice(table: Path) -> set[Cell]:
    """Return what is in a Delta table more than once."""
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    cells = [(row["start"].astimezone(UTC), row["shop"]) for row in rows]
    return {cell for cell in cells if cells.count(cell) > 1}


KILLED_AFTER_ITS_THIRD_WRITE = """
import os, runpy
from pyspark.sql import DataFrameWriter

save, writes = DataFrameWriter.save, []

def save_and_die(self, *arguments, **options):
    save(self, *arguments, **options)
    writes.append(1)
    if len(writes) == 3:
        os.kill(os.getpid(), 9)

DataFrameWriter.save = save_and_die
runpy.run_path("hours_to_delta.py", run_name="__main__")
"""


@pytest.mark.proves("migrate.md#migrate-from-flink-sql")
def test_a_flink_job_lacks_what_came_late_and_what_it_could_not_read(
    beside: Beside, until: Callable[[list[str], Callable[[], bool]], str]
) -> None:
    section = "Migrate from Flink SQL"
    python = installed("flink", "apache-flink==2.2.1")
    group, artifact, release, sha256 = FLINK_CONNECTOR
    (beside.old / "connector.json").write_text(
        json.dumps([{"g": group, "a": artifact, "v": release, "sha256": sha256}])
    )
    try:
        fetch_jars(beside.old / "connector.json", ENGINES / "jars", java_env(), cache=ENGINES / "ivy")
    except ServiceError as error:
        pytest.skip(f"Flink's connector cannot be had here: {error}")
    beside.write(section, "sql")
    (beside.old / "run.py").write_text(FLINK)

    def rows() -> int:
        return sum(len(path.read_text().splitlines()) for path in beside.old.glob("hours/part-*"))

    jar = ENGINES / "jars" / f"{artifact}-{release}.jar"
    said = until([str(python), "run.py", str(jar)], lambda: rows() >= len(CLOSED))
    assert rows() == len(CLOSED), said[-3000:]
    equal, differ = beside.compare(section)
    old = sums(each for each in ORDERS if not each.is_late and each is not OTHER_ZONE)
    assert differ == {
        cell: ([old[cell]], [CLOSED[cell]], lacks(cell, old[cell])) for cell in CLOSED if CLOSED[cell] != old[cell]
    }
    assert OTHER_ZONE.cell in differ
    assert equal == len(CLOSED) - len(differ)

    def checkpoints() -> list[Path]:
        return sorted(beside.old.glob("checkpoints/*/chk-*/_metadata"), key=lambda path: path.stat().st_mtime)

    last = checkpoints()[-1].parent
    until([str(python), "run.py", str(jar), last.as_uri()], lambda: checkpoints()[-1].parent.parent != last.parent)
    assert rows() == len(CLOSED)


FLINK = """
import sys
from pathlib import Path
from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

options = Configuration()
options.set_string("pipeline.jars", Path(sys.argv[1]).as_uri())
options.set_string("table.local-time-zone", "UTC")
options.set_string("parallelism.default", "1")
options.set_string("execution.checkpointing.interval", "1 s")
options.set_string("execution.checkpointing.dir", Path("checkpoints").absolute().as_uri())
if sys.argv[2:]:
    options.set_string("execution.state-recovery.path", sys.argv[2])
settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(options).build()
tables = TableEnvironment.create(settings)
statements = [text for text in Path("hours.sql").read_text().split(";") if text.strip()]
[tables.execute_sql(text) for text in statements][-1].wait()
"""


@pytest.mark.proves("migrate.md#migrate-from-a-dbt-microbatch-model")
def test_a_dbt_model_lacks_what_its_lookback_does_not_reach_and_has_an_hour_that_is_open(beside: Beside) -> None:
    section = "Migrate from a dbt"
    python = installed("dbt", "dbt-core==1.11.16", "dbt-duckdb==1.11.1")
    beside.write(section, "sql", "yaml")
    (beside.old / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    database = "{type: duckdb, path: shop.duckdb, threads: 1, settings: {TimeZone: UTC}}"
    (beside.old / "profiles.yml").write_text(f"shop: {{target: dev, outputs: {{dev: {database}}}}}\n")
    (beside.old / "run.py").write_text(DBT)
    loaded = [
        (number, each.shop, str(each.amount), each.at.isoformat(), each.came.isoformat())
        for number, each in enumerate(ORDERS)
    ]
    (beside.old / "loaded.json").write_text(json.dumps(loaded))
    done = subprocess.run(
        [str(python), "run.py"], cwd=beside.old, env={**beside.env(), "PYTHONPATH": ""}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [3, 17]

    equal, differ = beside.compare(section)
    old = sums(each for each in ORDERS if each.came <= each.cell[0] + HOUR + timedelta(minutes=5))
    late = {cell for cell in CLOSED if CLOSED[cell] != old[cell]}
    still_open = {cell for cell in old if cell[0].hour == 17}
    assert differ == {cell: ([old[cell]], [CLOSED[cell]], lacks(cell, old[cell])) for cell in late} | {
        cell: ([old[cell]], [], "open here") for cell in still_open
    }
    assert late == {cell for cell in CLOSED if CLOSED[cell] != IN_TIME[cell]}
    assert equal == len(CLOSED) - len(late)


DBT = """
import json
from datetime import datetime, timedelta
import duckdb
from dbt.cli.main import dbtRunner

orders = json.load(open("loaded.json"))
with duckdb.connect("shop.duckdb") as database:
    database.execute("CREATE TABLE orders (order_id BIGINT, shop VARCHAR, amount DECIMAL(18,2), placed_at TIMESTAMPTZ, loaded_at TIMESTAMPTZ)")
dbt, at, hour, seen = dbtRunner(), datetime.fromisoformat("2026-01-05T08:05:00+00:00"), timedelta(hours=1), 0
first = None
while at.hour < 19:
    until = sum(datetime.fromisoformat(each[4]) <= at for each in orders)
    with duckdb.connect("shop.duckdb") as database:
        database.execute("SET TimeZone = 'UTC'")
        database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", orders[seen:until])
    seen = until
    hours = [(at.replace(minute=0) + shift).strftime("%Y-%m-%dT%H:%M:%S") for shift in (-hour, hour)]
    # what a run at this time takes with `lookback=1`
    done = dbt.invoke(["run", "--quiet", "--profiles-dir", ".", "--event-time-start", hours[0], "--event-time-end", hours[1]])
    assert done.success, done.exception
    with duckdb.connect("shop.duckdb") as database:
        first = first or database.execute("SELECT count(*), sum(records)::BIGINT FROM hours").fetchone()
    at += hour
print(json.dumps(first))
"""


@pytest.mark.airflow
@pytest.mark.proves("migrate.md#migrate-from-an-airflow-dag-that-runs-spark-submit")
def test_an_hourly_dag_lacks_what_came_after_its_hour_and_has_an_hour_twice(beside: Beside) -> None:
    section = "Migrate from an Airflow DAG"
    beside.write(section, "python")
    home, tools = beside.old / "airflow", beside.old / "tools"
    (home / "dags").mkdir(parents=True)
    (beside.old / "hours_dag.py").rename(home / "dags" / "hours_dag.py")
    tools.mkdir()
    real = Path(sys.executable).parent / "spark-submit"
    (tools / "spark-submit").write_text(
        f'#!/bin/bash\n"{real}" "$@" || exit\n[ -e {home}/killed ] || {{ touch {home}/killed; kill -9 $$; }}\n'
    )
    (tools / "spark-submit").chmod(0o755)
    env = beside.env(
        PATH=f"{tools}:{beside.reader.env['PATH']}",
        PYTHONPATH="",
        AIRFLOW_HOME=str(home),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__CORE__DAGS_FOLDER=str(home / "dags"),
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{home}/airflow.db",
    )
    airflow = str(Path(sys.executable).parent / "airflow")
    commands = [["dags", "test", "hours", f"2026-01-05T{hour}:00:00+00:00"] for hour in (10, 11)]
    migrated = REPOSITORY / ".build" / "airflow-database" / version("apache-airflow")
    if (migrated / "schema.json").exists():  # `servers.airflow` has made it, and writes it last
        shutil.copyfile(migrated / "airflow.db", home / "airflow.db")
    else:
        commands.insert(0, ["db", "migrate"])
    for words in commands:
        done = subprocess.run([airflow, *words], env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    equal, differ = beside.compare(section)
    hours = {cell for cell in CLOSED if cell[0].hour in (9, 10)}
    old = sums(each for each in ORDERS if each.came < each.cell[0] + HOUR)
    twice = {cell for cell in hours if cell[0].hour == 9}
    lost = {cell for cell in hours if CLOSED[cell] != old[cell]}
    assert {late_records(cell) for cell in lost} > {""}
    assert differ == {
        cell: (
            [old[cell]] * (2 if cell in twice else 1),
            [CLOSED[cell]],
            "; ".join(["2 times in the old result"] * (cell in twice) + [lacks(cell, old[cell])] * (cell in lost)),
        )
        for cell in twice | lost
    } | {cell: ([], [CLOSED[cell]], "absent in the old result") for cell in set(CLOSED) - hours}
    assert equal == len(hours - twice - lost)
