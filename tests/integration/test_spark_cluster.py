"""S42, S44: a stream on a real Spark cluster: two slots, then three workers of two; a worker is lost; the oracle judges."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.faults.lab import Lab
from rivertwice.cli.main import cli
from rivertwice.core.instants import utc_now
from rivertwice.core.settings import Settings
from rivertwice.timeline.intent import write_intent
from running.waiting import wait_for
from servers.spark_cluster import SparkCluster, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.faults]
PARTITIONS = 6
DEFAULTS = "spark.executor.memory 512m\nspark.cores.max {cores}\nspark.executor.cores 2\n"


def slots(cluster: SparkCluster) -> dict[str, int]:
    """Return the cores in use on each worker that lives."""
    return {one["id"]: one["coresused"] for one in cluster.state()["workers"] if one["state"] == "ALIVE"}


def test_from_two_slots_to_six_and_a_lost_worker(tmp_path: Path, kafka_settings: Settings) -> None:
    lab = Lab(kafka_settings, tmp_path / "lab", 44, pins={"shuffle_partitions": PARTITIONS}, partitions=PARTITIONS)
    with spark_cluster(tmp_path / "cluster", workers=3, cores=2) as cluster:
        lab.settings = replace(lab.settings, spark_master=cluster.url)
        try:
            lab.produce()
            # Spark's own file is where a cluster's sizes stand.
            env = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(tmp_path)}
            (tmp_path / "spark-defaults.conf").write_text(DEFAULTS.format(cores=2))
            driver = lab.start_driver(env=env)
            lab.until(lambda: lab.committed(1), description="the second batch on two slots")
            assert sorted(slots(cluster).values()) == [0, 0, 2]
            assert lab.kill_when(driver, lambda: True)
            (tmp_path / "spark-defaults.conf").write_text(DEFAULTS.format(cores=6))
            driver = lab.start_driver(env=env)
            lab.until(lambda: sorted(slots(cluster).values()) == [2, 2, 2], description="six slots")
            lab.produce()
            batch = lab.steps().last_planned() + 1
            lab.until(lambda: lab.committed(batch), description="a batch on six slots")
            cluster.kill_worker(0)
            lab.produce()
            batch = lab.steps().last_planned() + 1
            lab.until(lambda: lab.committed(batch), description="a batch without the lost worker")
            assert driver.poll() is None
            assert lab.kill_when(driver, lambda: True, sig=signal.SIGTERM)
            lab.wait(driver)
            lab.run_to_end(env)
            judged = lab.judge()
            assert (judged.lost, judged.duplicated, judged.wrong, judged.unexplained) == (0, 0, 0, 0), judged.findings
            assert judged.rows > 0
        finally:
            lab.close()


@pytest.mark.proves("howto-deploy.md#when-no-executor-starts")
def test_a_stream_for_which_no_worker_is_large_enough_says_so(tmp_path: Path, kafka_settings: Settings) -> None:
    lab = Lab(kafka_settings, tmp_path / "lab", 45, pins={"shuffle_partitions": 2}, partitions=2)

    def said() -> str:
        options = ["--project", str(lab.settings.project), "--home", str(lab.settings.home)]
        return CliRunner().invoke(cli, [*options, "status", lab.home.root.name]).output

    with spark_cluster(tmp_path / "cluster", workers=1, cores=2) as cluster:
        lab.settings = replace(lab.settings, spark_master=cluster.url)
        try:
            lab.produce()
            lab.home.root.mkdir(parents=True, exist_ok=True)
            write_intent(lab.home, "running", "test", utc_now())
            env = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(tmp_path)}
            (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 900g\n")
            driver = lab.start_driver(env=env)
            wait_for(
                "the reason",
                lambda: "no worker that is large enough" in " ".join(said().split()),
                400,
                every=2,
                seen=said,
            )
            assert not lab.committed(0)
            assert lab.kill_when(driver, lambda: True)
        finally:
            lab.close()
