"""S42, S44: a cluster whose workers share no disk with the driver but the live checkpoint's; tables, archive, savepoints are on a store.

Each worker has a mount namespace of its own, with its own folder for temporary files and without the driver's project, cache
and jars. So a path on the driver's disk that is handed to an executor fails the test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from lab.faults.azure_server import azurite_program
from lab.faults.cases_backfill import closed_ms, plan_range, published, require_truth
from lab.faults.cases_store import STORES, environment, on_store
from lab.faults.events import BEGIN_MS
from lab.faults.gcs_server import PROGRAM
from lab.faults.lab import PIPELINE, Lab
from lab.faults.processes import start_process
from lab.faults.s3_server import why_not
from lab.faults.savepoint_runs import command_log, prove_listed, run_command, take
from rivertwice.core.settings import Settings
from rivertwice.log import kafka
from rivertwice.reconcile.results import newest_reconcile
from rivertwice.timeline.served import rebuild_served
from servers.spark_cluster import Disks, SparkCluster, disks_missing, spark_cluster

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.faults,
    pytest.mark.skipif(disks_missing() is not None, reason=str(disks_missing())),
]
DEFAULTS = "spark.executor.memory 512m\nspark.cores.max 2\nspark.executor.cores 1\n"
JUDGED_BY_EXECUTORS = """
from rivertwice.reconcile import observe
observe.MOST_ROWS = -1
from rivertwice.cli.main import main
main()
"""


@contextmanager
def cluster_of_own_disks(lab: Lab, folder: Path) -> Iterator[SparkCluster]:
    """Run two workers that see the pipelines' homes, where checkpoints are, and nothing else of the lab."""
    pipelines = lab.settings.home / "pipelines"
    pipelines.mkdir(parents=True)
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text(DEFAULTS)
    disks = Disks([pipelines], [lab.folder, folder, lab.settings.spark_jars.resolve()])
    with spark_cluster(folder / "cluster", workers=2, cores=1, disks=disks) as cluster:
        for number in range(2):
            assert cluster.sees(number, pipelines)
            for path in (lab.settings.project, lab.folder / "store", folder / "spark-defaults.conf"):
                assert path.exists()
                assert not cluster.sees(number, path)
        lab.settings = replace(lab.settings, spark_master=cluster.url)
        with environment({"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder)}):
            yield cluster


def why_no_server(store: str, folder: Path) -> str | None:
    """Return why a store's server cannot run here, or None."""
    build = REPOSITORY / ".build"
    if store == "s3":
        return why_not(build, folder)
    is_there = azurite_program(build) if store == "azure" else PROGRAM.binary(build)
    return (
        None
        if is_there
        else f"the server of {store} is not installed: `make setup-dev` installs it where npm and Go are"
    )


@pytest.mark.parametrize("store", STORES)
def test_executors_share_no_disk_with_the_driver_but_the_checkpoint_s(
    tmp_path: Path, kafka_settings: Settings, store: str
) -> None:
    if reason := why_no_server(store, tmp_path / "probe"):
        pytest.skip(reason)
    lab = Lab(kafka_settings, tmp_path / "lab", 42, pins={"max_offsets_per_trigger": 150})
    passed = False
    try:
        with on_store(lab, store), cluster_of_own_disks(lab, tmp_path / "spark"):
            lab.produce(lab.next_plan(records=300, late_share=0.2))
            lab.run_to_end()
            savepoint = take(lab)
            run_command(lab, "admin", "archive", PIPELINE)
            archived = kafka.end_offsets(lab.settings, lab.topic)
            kafka.delete_records(lab.settings, lab.topic, archived)
            lab.produce(lab.next_plan(records=120, late_share=0.2))
            lab.run_to_end()

            command = (sys.executable, "-c", JUDGED_BY_EXECUTORS, "reconcile", PIPELINE)
            log = lab.folder / "commands.log"
            code = lab.wait(start_process(command, log=log, env=lab.env(), cwd=lab.settings.project))
            assert code == 0, command_log(lab)
            run = newest_reconcile(lab.home)
            assert run is not None
            assert run["gate"]["passed"], run["gate"]

            plan = plan_range(lab, BEGIN_MS, closed_ms(lab))
            assert plan.archive
            assert plan.kafka
            run_command(lab, "backfill", "run", PIPELINE, "--yes", "--id", plan.id)
            require_truth(lab, plan)
            assert published(lab, plan.id)
            rebuild_served(lab.home, lab.definition)
            assert prove_listed(lab).keys() == {savepoint.id}
            assert not (lab.settings.home / "cache").exists(), "the driver downloaded files that executors read"
        judged = lab.judge()
        assert (judged.lost, judged.duplicated, judged.wrong, judged.unexplained) == (0, 0, 0, 0), judged.findings
        assert judged.rows > 0
        passed = True
    finally:
        lab.close(keep=not passed)
