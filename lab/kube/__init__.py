"""A node of Kubernetes on this machine, made of packages, with the product's chart on it: for tests that need a kubelet and a scheduler.

lab/kube/engine.sh install .build/kube && lab/kube/engine.sh start .build/kube/docker
lab/kube/cluster.sh build .build/kube
lab/kube/images.sh .build/kube/images PYTHON_PREFIX .build/versitygw/1.8.0/versitygw
docker build -t rivertwice:0.1.0 -f docker/Dockerfile .
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
CHART = REPOSITORY / "docker" / "helm" / "rivertwice"
IMAGES = (
    "localhost/pause:1",
    "apache/kafka:4.3.1",
    "versity/versitygw:v1.8.0",
    "postgres:17.6-bookworm",
    "rivertwice:0.1.0",
)
KUBERNETES = "1.34.0"


def folder() -> Path:
    """Return where the node's programs and state are: LAB_KUBE, or `.build/kube` of the clone."""
    return Path(os.environ.get("LAB_KUBE") or REPOSITORY / ".build" / "kube")


def helm_program() -> str | None:
    """Return Helm: that of `cluster.sh build`, or the system's."""
    own = folder() / "bin" / "helm"
    return str(own) if own.exists() else shutil.which("helm")


def why_no_containers(images: Sequence[str]) -> str | None:
    """Return why no container of these images can be started here, or None."""
    if os.geteuid() != 0:
        return "containers are started by root"
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        return "no Docker engine answers; lab/kube/engine.sh starts one"
    for image in images:
        if subprocess.run([docker, "image", "inspect", image], capture_output=True, check=False).returncode:
            return f"no image {image}; lab/kube/__init__.py says how it is made"
    return None


def why_not() -> str | None:
    """Return why no node can be started here, or None."""
    if not Path("/sys/fs/cgroup").is_dir():
        return "no cgroups here"
    for program in ("hyperkube", "etcd", "helm"):
        if not (folder() / "bin" / program).exists():
            return f"no {folder()}/bin/{program}; lab/kube/__init__.py says how it is made"
    return why_no_containers(IMAGES)


def render(*values: str, namespace: str = "rivertwice") -> str:
    """Return the chart's documents as `helm template` prints them, without its lines about their source."""
    program = helm_program()
    assert program is not None, "no Helm"
    command = [program, "template", "rivertwice", str(CHART), "--namespace", namespace, "--kube-version", KUBERNETES]
    done = subprocess.run([*command, *values], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    kept = [line.rstrip() for line in done.stdout.splitlines() if not line.startswith("# Source: ")]
    return "\n".join(kept).strip() + "\n"


MANIFESTS = {"base": ("--set", "executors.mode=standalone"), "native": ()}
"""Folder of `docker/kubernetes` to the values that make its file of the chart."""
_HEAD = """\
# Made of the chart docker/helm/rivertwice ({values}) by `python -c "from lab.kube import write_manifests; write_manifests()"`,
# for those who use kubectl or kustomize. Kafka, S3 and Airflow are the cluster's own; docs/howto-deploy.md says what each needs to know.
#
#   kubectl create namespace rivertwice
#   kubectl -n rivertwice create secret generic rivertwice-s3 --from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=...
#   kubectl -n rivertwice create secret generic rivertwice-alerts --from-literal=RIVERTWICE_ALERT_WEBHOOK=https://...   # optional
#   kubectl -n rivertwice apply -k docker/kubernetes/{name}
"""


def manifest(name: str) -> str:
    """Return the text of a folder's file."""
    return _HEAD.format(name=name, values=" ".join(MANIFESTS[name]) or "its own values") + render(*MANIFESTS[name])


def write_manifests() -> None:
    """Write the files of `docker/kubernetes`."""
    for name in MANIFESTS:
        (REPOSITORY / "docker" / "kubernetes" / name / "rivertwice.yaml").write_text(manifest(name))


@dataclass(frozen=True)
class Cluster:
    """A running node, and one namespace of it."""

    namespace: str

    def run(self, program: str, *words: str, stdin: str | None = None, timeout: float = 900.0) -> str:
        """Run `kubectl` or `helm` in the namespace to its good end and return what it printed."""
        command = [str(folder() / "bin" / program), "--namespace", self.namespace, *words]
        env = {**os.environ, "KUBECONFIG": str(folder() / "admin.kubeconfig")}
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout, env=env, check=False
        )
        assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def inside(self, target: str, container: str, *words: str, timeout: float = 900.0) -> str:
        """Run a command in a container of `pod/NAME`."""
        return self.run("kubectl", "exec", target, "--container", container, "--", *words, timeout=timeout)

    def apply(self, path: Path, **put_in: str) -> None:
        """Apply a file of `lab/kube`, words in capitals replaced."""
        text = path.read_text()
        for word, value in put_in.items():
            text = text.replace(word, value)
        self.run("kubectl", "apply", "--filename", "-", stdin=text)

    def pods(self, part: str) -> list[dict[str, Any]]:
        """Return the pods of one part."""
        found = json.loads(self.run("kubectl", "get", "pods", "--selector", f"part={part}", "--output", "json"))
        return list(found["items"])


def script(name: str, *words: str) -> None:
    """Run a script of this folder to its good end."""
    subprocess.run([str(HERE / name), *words], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@contextmanager
def cluster(namespace: str, images: Sequence[str] = IMAGES) -> Iterator[Cluster]:
    """Give a new namespace of a node that has the images; a node that is started for it is stopped after it."""
    place, here = str(folder()), Cluster(namespace)
    answers = Path(folder(), "admin.kubeconfig").exists()
    if answers:
        command = [
            str(folder() / "bin" / "kubectl"),
            "--kubeconfig",
            f"{place}/admin.kubeconfig",
            "get",
            "--raw",
            "/readyz",
        ]
        answers = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not answers:
        script("cluster.sh", "up", place)
    try:
        if not answers:
            script("cluster.sh", "load", place, *images)
        here.run("kubectl", "create", "namespace", namespace)
        try:
            yield here
        finally:
            here.run("kubectl", "delete", "namespace", namespace, "--wait=true")
            here.run("kubectl", "delete", "persistentvolume", f"{namespace}-state")
    finally:
        if not answers:
            script("cluster.sh", "down", place)
