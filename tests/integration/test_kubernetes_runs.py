"""S42: the chart on a real Kubernetes: kubelet, scheduler, volumes, names and tokens. A stream whose executors are pods loses an executor and its
agent's pod, and is upgraded and rolled back by Helm; then everything is compared with the log.

Slow: a node, a broker, an S3 server and executors. `lab/kube` makes what it needs.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes.project import REPOSITORY
from lab import kube
from rivertwice.airflow.airflow_api import AirflowClient
from running.deployed import Deployed
from running.waiting import wait_for
from servers.airflow import PIPELINE
from servers.secure_kafka import make_files

pytestmark = [
    pytest.mark.spark,
    pytest.mark.faults,
    pytest.mark.skipif(kube.why_not() is not None, reason=str(kube.why_not())),
]
NAMESPACE = f"rivertwice-{secrets.token_hex(3)}"
RECORDS = 600
MORE = 60
SMALL = str(kube.HERE / "small.yaml")
UID = 10001


class World(Deployed):
    """The chart's release."""

    def __init__(self, cluster: kube.Cluster, certificates: Path) -> None:
        super().__init__()
        self.cluster = cluster
        self.certificates = certificates

    def ask(self, *words: str) -> str:
        return self.inside("rivertwice", *words)

    def inside(self, *words: str) -> str:
        """Run a command in the agent's container, not in that of a pod that ends."""
        return self.cluster.inside(f"pod/{self.agent_pod()}", "agent", *words)

    def executors(self) -> list[str]:
        pods = self.cluster.pods("executor")
        return [
            each["metadata"]["name"]
            for each in pods
            if each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]
        ]

    def agent_pod(self) -> str:
        (pod,) = [each for each in self.cluster.pods("agent") if "deletionTimestamp" not in each["metadata"]]
        return str(pod["metadata"]["name"])

    def until_ready(self, but: str = "") -> None:
        """Wait until an agent's pod is ready, another one than `but`."""

        def ready() -> bool:
            found = [each for each in self.cluster.pods("agent") if "deletionTimestamp" not in each["metadata"]]
            conditions = [one for each in found for one in each["status"].get("conditions", ())]
            names = [each["metadata"]["name"] for each in found]
            return len(found) == 1 and but not in names and {"Ready": "True"}.items() <= {one["type"]: one["status"] for one in conditions}.items()  # fmt: skip

        wait_for("the agent's pod", ready, 900, every=2, seen=lambda: self.cluster.run("kubectl", "get", "pods"))

    def start_airflow(self) -> AirflowClient:
        """Start an Airflow in the cluster, which asks the agent to do its tasks, and return a client of it."""
        secret = (
            f"--from-literal=token={self.json('agent', 'token', 'airflow')['token']}",
            f"--from-file={self.certificates / 'ca.pem'}",
        )
        self.cluster.run("kubectl", "create", "secret", "generic", "airflow", *secret)
        password = secrets.token_hex(16)
        self.cluster.apply(kube.HERE / "airflow.yaml", LAB_KEY=password)
        self.cluster.run("kubectl", "wait", "--for=condition=Ready", "pod/airflow", "--timeout=600s", timeout=660)
        address = self.cluster.run("kubectl", "get", "pod", "airflow", "--output", "jsonpath={.status.podIP}")
        return AirflowClient(f"http://{address}:8080", "admin", password, timeout=120)

    def helm(self, verb: str, *words: str) -> None:
        self.cluster.run("helm", verb, "rivertwice", *words, "--wait", "--timeout", "15m")
        self.until_ready()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kube")
    state = folder / "state"
    state.mkdir()
    for path in (
        state,
        *[each for each in folder.parents if each.is_relative_to(folder.anchor) and each != Path("/")][:2],
    ):
        path.chmod(0o755)
    os.chown(state, UID, UID)
    with kube.cluster(NAMESPACE) as cluster:
        here = World(cluster, make_files(folder / "certificates", "agent"))
        cluster.apply(kube.HERE / "services.yaml", NAMESPACE=NAMESPACE, STATE=str(state))
        keys = ("AWS_ACCESS_KEY_ID=platform", "AWS_SECRET_ACCESS_KEY=platformsecret")
        literals = [f"--from-literal={each}" for each in keys]
        cluster.run("kubectl", "create", "secret", "generic", "rivertwice-s3", *literals)
        server = f"--from-file={here.certificates / 'server.pem'}"
        cluster.run("kubectl", "create", "secret", "generic", "listen", server)
        for name in ("kafka", "s3"):
            cluster.run("kubectl", "rollout", "status", f"deployment/{name}", "--timeout=600s", timeout=660)
        install = (str(kube.CHART), "--values", SMALL, "--set", "listen.secret=listen")
        here.timed("helm install", lambda: here.helm("install", *install))
        cluster.apply(
            kube.HERE / "lab.yaml",
            REPOSITORY=str(REPOSITORY.resolve()),
            FLIGHTS=str((REPOSITORY / ".build/data").resolve()),
        )
        cluster.run("kubectl", "wait", "--for=condition=Ready", "pod/lab", "--timeout=300s", timeout=360)
        try:
            yield here
        finally:
            cluster.run("helm", "uninstall", "rivertwice")


def send(world: World, day: str, records: int, speed: float) -> subprocess.Popen[bytes]:
    """Begin to send flights of a day from a pod of the cluster."""
    words = ["--from", day, "--to", day, "--limit", str(records), "--speed", str(speed)]
    command = [
        str(kube.folder() / "bin" / "kubectl"),
        "--kubeconfig",
        str(kube.folder() / "admin.kubeconfig"),
        "--namespace",
        NAMESPACE,
    ]
    return subprocess.Popen(
        [*command, "exec", "pod/lab", "--", "rivertwice", "replay", "flights", *words], stdout=subprocess.DEVNULL
    )


@pytest.mark.proves(
    "howto-deploy.md#with-helm", "howto-deploy.md#executors-as-pods", "howto-deploy.md#when-no-executor-starts",
)  # fmt: skip
def test_a_stream_loses_nothing_while_its_pods_are_deleted_and_its_release_changes(world: World) -> None:
    world.timed("start", lambda: world.ask("start", PIPELINE, "--wait"))
    sending = send(world, "2013-06-30", RECORDS, 100.0)
    first = world.timed("the first batch", lambda: world.until_streams(0))
    before = world.executors()
    world.say(f"executors: {before}")

    world.cluster.run("kubectl", "delete", "pod", before[0], "--wait=false")

    def replaced() -> bool:
        now = world.executors()
        return len(now) >= len(before) and before[0] not in now

    world.timed("another executor", lambda: wait_for("another executor", replaced, 900, every=2, seen=world.seen))
    world.timed("a batch after it", lambda: world.until_streams(world.batch()))

    pod, epoch = world.agent_pod(), world.status()["driver"]["epoch"]
    world.cluster.run("kubectl", "delete", "pod", pod, "--wait=false")
    world.timed("another agent", lambda: world.until_ready(but=pod))
    later = world.timed("a batch of its driver", lambda: world.until_streams(first["batch"], epoch + 1))

    changed = (str(kube.CHART), "--reuse-values", "--set", "executors.heapMiB=640")
    world.timed("helm upgrade", lambda: world.helm("upgrade", *changed))
    world.timed("a batch after it", lambda: world.until_streams(later["batch"], later["driver"]["epoch"] + 1))
    conf = world.inside("cat", "/etc/spark/spark-defaults.conf")
    assert "spark.executor.memory 640m" in conf

    too_much = (str(kube.CHART), "--reuse-values", "--set", "executors.cores=64", "--set", "executors.requestCores=64")
    world.timed("helm upgrade to more cores than there are", lambda: world.helm("upgrade", *too_much))
    why = "of its pods Pending: 0/1 nodes are available: 1 Insufficient cpu"
    world.timed(
        "the reason in status",
        lambda: wait_for(why, lambda: why in world.ask("--output", "json", "status"), 300, every=5, seen=world.seen),
    )
    world.say(world.ask("status", PIPELINE))
    world.timed("helm rollback", lambda: world.helm("rollback", "1"))
    assert "spark.executor.memory 512m" in world.inside("cat", "/etc/spark/spark-defaults.conf")
    assert sending.wait(1800) == 0
    world.timed("the rest of the log", world.until_read)
    world.nothing_lost(RECORDS)


@pytest.mark.proves("howto-deploy.md#an-airflow-outside")
def test_an_airflow_in_the_cluster_does_every_verb_at_the_agent(world: World) -> None:
    world.ask("start", PIPELINE, "--wait")
    sending = send(world, "2013-06-30", RECORDS + MORE, 600.0)
    airflow = world.timed("an Airflow", world.start_airflow)
    world.by_airflow(airflow, "rotate", "archive")
    world.say(f"{world.proved()} is proved")
    assert sending.wait(1800) == 0
    world.until_read()
    world.by_airflow(airflow, "reconcile", "backfill")
    assert [each["published"] for each in world.json("backfill", "list", PIPELINE)] == [2]  # 1 is the head
    world.nothing_lost(RECORDS + MORE)


def test_no_part_of_a_pod_can_be_written_but_its_state_and_tmp(world: World) -> None:
    script = "id -u; touch /opt/rivertwice/x 2>&1; touch /opt/venv/x 2>&1; touch /home/rivertwice/x 2>&1; touch /tmp/x && echo written"
    said = world.inside("sh", "-c", script).splitlines()
    assert (said[0], said[-1]) == (str(UID), "written")
    assert [each.endswith("Read-only file system") for each in said[1:-1]] == [True] * 3
