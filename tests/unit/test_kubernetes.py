"""S42: chart and manifests are what Kubernetes takes, their sizes are the scenario's, and they say what compose says."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from homes.project import REPOSITORY
from lab.kube import MANIFESTS, helm_program, manifest, render

VERSION = "1.34"
KUBERNETES = REPOSITORY / "docker" / "kubernetes"
NO_HELM = "no Helm here; `lab/kube/cluster.sh build .build/kube` builds it"
with_helm = pytest.mark.skipif(helm_program() is None, reason=NO_HELM)


def parts_of(text: str) -> list[dict[str, Any]]:
    return [dict(each) for each in yaml.safe_load_all(text) if each]


DOCUMENTS = parts_of((KUBERNETES / "base" / "rivertwice.yaml").read_text())
NATIVE = parts_of((KUBERNETES / "native" / "rivertwice.yaml").read_text())
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


def name_of(each: dict[str, Any]) -> tuple[str, str]:
    return each["kind"], each["metadata"]["name"]


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


@with_helm
@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifests_are_what_the_chart_makes(name: str) -> None:
    assert (KUBERNETES / name / "rivertwice.yaml").read_text() == manifest(name)


EVERYTHING = (
    "image.digest=sha256:" + "0" * 64, "image.pullSecrets={shop}", "store.endpoint=http://s3:7070", "environment.RIVERTWICE_METRICS=0.0.0.0:9464",
    "state.storageClass=nfs", "agents={agent,second}", "listen.secret=server", "spark.spark\\.eventLog\\.enabled=true",
)  # fmt: skip


@with_helm
@pytest.mark.proves("howto-deploy.md#with-helm")
def test_each_value_of_the_chart_reaches_what_it_names() -> None:
    found = parts_of(render(*(word for each in EVERYTHING for word in ("--set", each)), namespace="shop"))
    for each in found:
        kubernetes_validate.validate(each, VERSION, strict=True)
    agents = {name: part(name, found)["template"]["spec"] for name in ("agent", "second")}
    for name, spec in agents.items():
        (main,) = spec["containers"]
        assert main["image"] == "rivertwice@sha256:" + "0" * 64
        assert spec["imagePullSecrets"] == [{"name": "shop"}]
        assert {"name": "RIVERTWICE_LISTEN", "value": "0.0.0.0:8443"} in main["env"]
        assert document("Service", name, found)["spec"]["ports"][0]["port"] == 8443
    claims = [spec["volumes"][0]["persistentVolumeClaim"]["claimName"] for spec in agents.values()]
    assert claims == ["rivertwice-state", "rivertwice-state-second"]
    for claim in claims:
        assert document("PersistentVolumeClaim", claim, found)["spec"]["storageClassName"] == "nfs"
    second = document("ConfigMap", "spark-conf-second", found)["data"]
    assert "spark.driver.host driver-second\n" in second["spark-defaults.conf"]
    assert "spark.kubernetes.namespace shop\n" in second["spark-defaults.conf"]
    assert "\nspark.eventLog.enabled true\n" in second["spark-defaults.conf"]
    assert "claimName: rivertwice-state-second" in second["executor-pod.yaml"]
    data = document("ConfigMap", "rivertwice", found)["data"]
    assert (data["AWS_ENDPOINT_URL"], data["RIVERTWICE_METRICS"]) == ("http://s3:7070", "0.0.0.0:9464")


@with_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("executors.mode=yarn",), 'executors.mode is "yarn"; set it to pods or to standalone'),
        (("executors.mode=standalone", "agents={agent,b}"), "for several agents set executors.mode=pods"),
        (("executors.cores=1",), "executors.requestCores is 2, .* set requestCores to 1 or less"),
        (("executors.requestCores=2001m",), "executors.requestCores is 2001m, more than executors.cores, which is 2"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_those_that_can(values: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        render(*(word for each in values for word in ("--set", each)))


@with_helm
def test_a_changed_value_makes_a_new_pod_of_the_agent() -> None:
    def mark(*values: str) -> str:
        spec = part("agent", parts_of(render(*values)))
        return str(spec["template"]["metadata"]["annotations"]["checksum/config"])

    assert mark() == mark()
    assert len({mark(), mark("--set", "kafka.bootstrap=other:9092"), mark("--set", "executors.heapMiB=512")}) == 3


def test_native_executors_take_the_place_of_master_and_workers() -> None:
    before, after = {name_of(each) for each in DOCUMENTS}, {name_of(each) for each in NATIVE}
    assert {name for _, name in before - after} == {"spark-master", "spark-worker"}
    assert document("ConfigMap", "rivertwice", NATIVE)["data"]["RIVERTWICE_SPARK_MASTER"].startswith("k8s://https://")
    confs, limits = spark_confs(), container("spark-worker")["resources"]["limits"]
    slots = int(confs["spark.executor.instances"]) * int(confs["spark.executor.cores"])
    assert slots == part("spark-worker")["replicas"] * int(limits["cpu"])
    memory = [int(confs[name].removesuffix("m")) for name in ("spark.executor.memory", "spark.executor.memoryOverhead")]
    assert f"{sum(memory)}Mi" == limits["memory"]


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
    (kustomized,) = parts_of((KUBERNETES / "native" / "kustomization.yaml").read_text())
    assert kustomized["namespace"] == confs["spark.kubernetes.namespace"]


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
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not [each for each in [*DOCUMENTS, *NATIVE] if each["kind"] == "Secret"]
