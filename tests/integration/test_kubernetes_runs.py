"""S42: the chart on a real Kubernetes: kubelet, scheduler, volumes, names and tokens. A stream whose executors are pods loses an executor and its
agent's pod, and is upgraded and rolled back by Helm; then everything is compared with the log.

Slow: a node, a broker, an S3 server and executors. `lab/kube` makes what it needs.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from homes.project import REPOSITORY
from lab import kube
from running.waiting import wait_for
from servers.secure_kafka import make_files

pytestmark = [
    pytest.mark.spark,
    pytest.mark.faults,
    pytest.mark.skipif(kube.why_not() is not None, reason=str(kube.why_not())),
]
NAMESPACE = f"rivertwice-{secrets.token_hex(3)}"
RECORDS = 600
SMALL = str(kube.HERE / "small.yaml")
UID = 10001
PIPELINE = "flight_delays"


@dataclass
class World:
    """The chart's release, and how long each step took."""

    cluster: kube.Cluster
    folder: Path
    began: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - self.began:7.0f} s] {line}\n")

    def timed(self, what: str, act: Callable[[], Any]) -> Any:
        before = time.monotonic()
        made = act()
        self.say(f"{what}: {time.monotonic() - before:.0f} s")
        return made

    def ask(self, *words: str) -> str:
        return self.inside("rivertwice", *words)

    def inside(self, *words: str) -> str:
        """Run a command in the agent's container, not in that of a pod that ends."""
        return self.cluster.inside(f"pod/{self.agent_pod()}", "agent", *words)

    def status(self) -> dict[str, Any]:
        found = json.loads(self.ask("--output", "json", "status"))
        return next(dict(each) for each in found["pipelines"] if each["name"] == PIPELINE)

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

    def until_streams(self, batch: int, epoch: int = 0) -> dict[str, Any]:
        """Wait until a driver of that epoch or a later one has committed a batch after this one."""

        def streams() -> dict[str, Any] | None:
            seen = self.status()
            of_driver = (seen["driver"] or {}).get("epoch", -1)
            return seen if of_driver >= epoch and seen["batch"] is not None and seen["batch"] > batch else None

        seen = wait_for(
            f"a batch after {batch} of epoch {epoch}",
            streams,
            900,
            every=5,
            seen=lambda: f"{self.status()}\n{self.log()}",
        )
        self.say(f"epoch {seen['driver']['epoch']}, batch {seen['batch']}, lag {seen['lag']}")
        return seen

    def until_read(self) -> None:
        """Wait until everything that was sent is committed."""
        wait_for(
            "no lag", lambda: self.status()["lag"] == 0, 900, every=5, seen=lambda: f"{self.status()}\n{self.log()}"
        )

    def log(self) -> str:
        return self.ask("logs", PIPELINE, "--lines", "40")

    def batch(self) -> int:
        return int(self.status()["batch"])

    def helm(self, verb: str, *words: str) -> None:
        self.cluster.run("helm", verb, "rivertwice", *words, "--wait", "--timeout", "15m")
        self.until_ready()

    def compared(self) -> dict[str, Any]:
        """Compare everything with the log; return the run."""
        said = self.ask("--output", "json", "reconcile", PIPELINE, "--full")
        return dict(json.loads(said[said.index("{") :]))

    def select(self, sql: str) -> list[dict[str, Any]]:
        return list(json.loads(self.ask("--output", "json", "query", sql))["rows"])


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
        here = World(cluster, folder)
        cluster.apply(kube.HERE / "services.yaml", NAMESPACE=NAMESPACE, STATE=str(state))
        keys = ("AWS_ACCESS_KEY_ID=platform", "AWS_SECRET_ACCESS_KEY=platformsecret")
        literals = [f"--from-literal={each}" for each in keys]
        cluster.run("kubectl", "create", "secret", "generic", "rivertwice-s3", *literals)
        files = make_files(folder / "certificates", "127.0.0.1")
        cluster.run("kubectl", "create", "secret", "generic", "listen", f"--from-file={files / 'server.pem'}")
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


@pytest.mark.proves("howto-deploy.md#with-helm", "howto-deploy.md#executors-as-pods")
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

    world.timed("another executor", lambda: wait_for("another executor", replaced, 900, every=2, seen=world.log))
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
    world.timed("helm rollback", lambda: world.helm("rollback"))
    assert "spark.executor.memory 512m" in world.inside("cat", "/etc/spark/spark-defaults.conf")
    assert sending.wait(1800) == 0
    world.timed("the rest of the log", world.until_read)
    found = world.timed("reconcile", world.compared)
    world.say(f"compared: {found['counts']}, {found['balance']['total']}")
    assert found["gate"]["passed"]
    assert found["counts"]["stream"]["AGREES"] > 0
    assert found["counts"]["stream"]["DEFECT"] == found["counts"]["served"]["DEFECT"] == 0
    assert (found["balance"]["total"]["read"], found["balance"]["total"]["unexplained"]) == (RECORDS, 0)
    (row,) = world.select(
        f"SELECT count(*) AS n, count(DISTINCT (window_start, origin)) AS keys FROM {PIPELINE}__changelog"
    )
    assert row["n"] == row["keys"] > 0


def test_no_part_of_a_pod_can_be_written_but_its_state_and_tmp(world: World) -> None:
    script = "id -u; touch /opt/rivertwice/x 2>&1; touch /opt/venv/x 2>&1; touch /home/rivertwice/x 2>&1; touch /tmp/x && echo written"
    said = world.inside("sh", "-c", script).splitlines()
    assert (said[0], said[-1]) == (str(UID), "written")
    assert [each.endswith("Read-only file system") for each in said[1:-1]] == [True] * 3
