"""S42: the manifests are what Kubernetes takes, their sizes are the scenario's, and they say what compose says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from boxes.kustomize import build, name_of
from homes.project import REPOSITORY

VERSION = "1.34"
KUBERNETES = REPOSITORY / "docker" / "kubernetes"
DOCUMENTS = build(KUBERNETES / "base")
NATIVE = build(KUBERNETES / "native")
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


def document(kind: str, name: str, documents: list[dict[str, Any]] = DOCUMENTS) -> dict[str, Any]:
    (only,) = (each for each in documents if name_of(each) == (kind, name))
    return only


def part(name: str, documents: list[dict[str, Any]] = DOCUMENTS) -> dict[str, Any]:
    return dict(document("Deployment", name, documents)["spec"])


def container(name: str) -> dict[str, Any]:
    return dict(part(name)["template"]["spec"]["containers"][0])


def executor_pod() -> dict[str, Any]:
    return dict(yaml.safe_load(document("ConfigMap", "spark-conf", NATIVE)["data"]["executor-pod.yaml"]))


def spark_confs() -> dict[str, str]:
    text = document("ConfigMap", "spark-conf", NATIVE)["data"]["spark-defaults.conf"]
    return dict(line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))


@pytest.mark.parametrize("of_overlay", [False, True], ids=["base", "native"])
def test_each_part_is_what_kubernetes_takes(of_overlay: bool) -> None:
    for each in NATIVE if of_overlay else DOCUMENTS:
        kubernetes_validate.validate(each, VERSION, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here, whose kustomize would build the overlays")
@pytest.mark.parametrize("overlay", ["base", "native"])
def test_kustomize_builds_of_an_overlay_what_is_checked_here(overlay: str) -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / overlay)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    built = {name_of(each): each for each in yaml.safe_load_all(done.stdout)}
    assert built == {name_of(each): each for each in build(KUBERNETES / overlay)}


def test_a_patch_of_what_does_not_exist_is_found(tmp_path: Path) -> None:
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    path = tmp_path / "kubernetes" / "native" / "agent.yaml"
    path.write_text(path.read_text().replace("name: agent", "name: agents"))
    with pytest.raises(AssertionError, match="agents"):
        build(path.parent)


def test_native_executors_take_the_place_of_master_and_workers() -> None:
    before, after = {name_of(each) for each in DOCUMENTS}, {name_of(each) for each in NATIVE}
    assert {name for _, name in before - after} == {"spark-master", "spark-worker"}
    assert document("ConfigMap", "rivertwice", NATIVE)["data"]["RIVERTWICE_SPARK_MASTER"].startswith("k8s://https://")
    confs, limits = spark_confs(), container("spark-worker")["resources"]["limits"]
    slots = int(confs["spark.executor.instances"]) * int(confs["spark.executor.cores"])
    assert slots == part("spark-worker")["replicas"] * int(limits["cpu"])
    memory = [int(confs[name].removesuffix("g")) for name in ("spark.executor.memory", "spark.executor.memoryOverhead")]
    assert f"{1024 * sum(memory)}Mi" == limits["memory"]


def test_an_executor_s_pod_has_what_a_worker_has() -> None:
    pod, worker = executor_pod(), part("spark-worker")["template"]["spec"]
    kubernetes_validate.validate(pod, VERSION, strict=True)
    own, theirs = pod["spec"]["containers"][0], worker["containers"][0]
    for name in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "volumes"):
        assert pod["spec"][name] == worker[name], name
    for name in ("image", "envFrom", "securityContext", "volumeMounts"):
        assert own[name] == theirs[name], name
    confs = spark_confs()
    assert own["name"] == confs["spark.kubernetes.executor.podTemplateContainerName"]
    assert own["image"] == confs["spark.kubernetes.container.image"]
    policy = document("NetworkPolicy", "rivertwice", NATIVE)["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= pod["metadata"]["labels"].items()


def test_a_driver_s_files_and_name_are_where_spark_looks() -> None:
    agent, confs = part("agent", NATIVE)["template"], spark_confs()
    (mount,) = (each for each in agent["spec"]["containers"][0]["volumeMounts"] if each["name"] == "spark-conf")
    assert confs["spark.kubernetes.executor.podTemplateFile"] == f"{mount['mountPath']}/executor-pod.yaml"
    service = document("Service", confs["spark.driver.host"], NATIVE)["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= agent["metadata"]["labels"].items()
    assert {each["metadata"]["namespace"] for each in NATIVE} == {confs["spark.kubernetes.namespace"]}


def test_only_the_agent_may_ask_for_pods_and_for_nothing_else() -> None:
    role = document("Role", "rivertwice-driver", NATIVE)["rules"]
    assert [(each["apiGroups"], each["resources"]) for each in role] == [([""], ["pods"])]
    binding = document("RoleBinding", "rivertwice-driver", NATIVE)
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", "rivertwice-driver")
    (subject,) = binding["subjects"]
    agent = part("agent", NATIVE)["template"]["spec"]
    assert subject["name"] == agent["serviceAccountName"]
    assert subject["name"] == document("ServiceAccount", "rivertwice-driver", NATIVE)["metadata"]["name"]
    assert agent["automountServiceAccountToken"] is True
    assert executor_pod()["spec"]["automountServiceAccountToken"] is False


def test_executors_get_secrets_from_a_secret_and_not_from_spark_s_conf() -> None:
    assert not [name for name in spark_confs() if "executorEnv" in name or "secret" in name.lower()]
    for holder in (executor_pod()["spec"]["containers"][0], container("spark-worker")):
        assert {"secretRef": {"name": "rivertwice-s3"}} in holder["envFrom"]


def test_what_is_misspelt_is_found() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"selektor": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_three_workers_of_two_slots_make_six() -> None:
    worker, args = container("spark-worker"), container("spark-worker")["args"]
    slots = int(args[args.index("--cores") + 1])
    assert (part("spark-worker")["replicas"], slots) == (3, 2)
    assert worker["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi"}
    conf = document("ConfigMap", "spark-conf")["data"]["spark-defaults.conf"]
    assert dict(line.split() for line in conf.splitlines())["spark.cores.max"] == str(3 * slots)


def test_it_says_of_the_streams_half_what_compose_says() -> None:
    ours = document("ConfigMap", "rivertwice")["data"]
    theirs = COMPOSE["services"]["agent"]["environment"]
    same = ("RIVERTWICE_BOOTSTRAP", "RIVERTWICE_SPARK_MASTER", "RIVERTWICE_HOME", "AWS_REGION")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    for name in ("spark-master", "spark-worker", "agent"):
        assert container(name)["image"] == COMPOSE["services"][name]["image"]
        assert container(name)["args"][:2] == COMPOSE["services"][name]["command"][:2]


def test_no_part_holds_a_secret_or_more_rights_than_it_needs() -> None:
    for name in ("spark-master", "spark-worker", "agent"):
        spec = part(name)["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["automountServiceAccountToken"] is False
        assert container(name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not [each for each in [*DOCUMENTS, *NATIVE] if each["kind"] == "Secret"]
