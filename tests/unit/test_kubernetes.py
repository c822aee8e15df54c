"""S42: the manifest is what Kubernetes takes, its sizes are the scenario's, and it says what compose says."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml

from homes.project import REPOSITORY

VERSION = "1.34"
DOCUMENTS = list(yaml.safe_load_all((REPOSITORY / "docker" / "kubernetes" / "rivertwice.yaml").read_text()))
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


def part(name: str) -> dict[str, Any]:
    found = [each for each in DOCUMENTS if each["kind"] == "Deployment" and each["metadata"]["name"] == name]
    assert len(found) == 1
    return dict(found[0]["spec"])


def container(name: str) -> dict[str, Any]:
    return dict(part(name)["template"]["spec"]["containers"][0])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: f"{each['kind']}/{each['metadata']['name']}")
def test_each_part_is_what_kubernetes_takes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_what_is_misspelt_is_found() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"selektor": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_three_workers_of_two_slots_make_six() -> None:
    worker, args = container("spark-worker"), container("spark-worker")["args"]
    slots = int(args[args.index("--cores") + 1])
    assert (part("spark-worker")["replicas"], slots) == (3, 2)
    assert worker["resources"]["limits"] == {"cpu": "2", "memory": "4096Mi"}
    conf = next(each for each in DOCUMENTS if each["metadata"]["name"] == "spark-conf")["data"]["spark-defaults.conf"]
    assert dict(line.split() for line in conf.splitlines())["spark.cores.max"] == str(3 * slots)


def test_it_says_of_the_streams_half_what_compose_says() -> None:
    ours = next(each for each in DOCUMENTS if each["metadata"]["name"] == "rivertwice" and each["kind"] == "ConfigMap")[
        "data"
    ]
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
    assert not [each for each in DOCUMENTS if each["kind"] == "Secret"]
