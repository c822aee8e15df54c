"""What `docker-compose.yml`, the Kubernetes manifest and the Dockerfile say: each container's command, environment, checks and mounts."""

from __future__ import annotations

import json
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from homes.project import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
MANIFEST = REPOSITORY / "docker" / "kubernetes" / "base" / "rivertwice.yaml"
DOCKERFILE = REPOSITORY / "docker" / "Dockerfile"
OURS = "rivertwice"
_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<how>:[?-])(?P<word>[^}]*))?\})")


@dataclass(frozen=True)
class Check:
    """A health check or a probe: a command in the container, or a request from outside (`tcp://:PORT`, `http://:PORT/PATH`)."""

    command: tuple[str, ...] = ()
    url: str = ""


@dataclass(frozen=True)
class Container:
    """One container as its file says.

    Attributes:
        image: name and tag.
        command: what its image's entry point gets, or all of it where the file names the entry point.
        environment: the file's own, variables of the caller put in.
        mounts: path in the container to the name of a volume, or to a folder of the repository (`./...`).
        env_files: files of variables that it gets too where they exist.
        needs: name of another container to what it must be first: started, healthy, completed.
        checks: by kind, health for compose; readiness, liveness for Kubernetes.
        grace_s: seconds between SIGTERM and SIGKILL.
        profiles: those that compose has to be asked for by name; without any it always starts.
    """

    name: str
    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    mounts: dict[str, str] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    grace_s: float = 10.0
    env_files: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether it runs the image of this project."""
        return self.image.startswith(f"{OURS}:")


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Return a value as compose would hand it on: `${NAME}`, `${NAME:?why}`, `${NAME:-default}`, `$$`."""

    def put(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "$"
        value = variables.get(name, "")
        if value or found["how"] is None:
            return value
        if found["how"] == ":?":
            message = f"required variable {name} is missing a value: {found['word']}"
            raise KeyError(message)
        return str(found["word"])

    return _VARIABLE.sub(put, text)


def required_variables() -> set[str]:
    """Return the variables without which compose refuses to start."""
    return {found["name"] for found in _VARIABLE.finditer(COMPOSE.read_text()) if found["how"] == ":?"}


def make_secrets() -> dict[str, str]:
    """Return new values of these variables, as docs/howto-deploy.md makes them."""
    made = {name: secrets.token_hex(16) for name in required_variables()}
    return made | {"AIRFLOW_FERNET_KEY": urlsafe_b64encode(secrets.token_bytes(32)).decode()}


def compose_document() -> dict[str, Any]:
    """Return the compose file as YAML, nothing put in."""
    return dict(yaml.safe_load(COMPOSE.read_text()))


def compose_containers(variables: Mapping[str, str]) -> dict[str, Container]:
    """Return the services of the compose file by name, in an order in which each comes after what it needs."""
    found = {name: _service(name, each, variables) for name, each in compose_document()["services"].items()}
    ordered: dict[str, Container] = {}
    while len(ordered) < len(found):
        ready = [name for name, each in found.items() if name not in ordered and set(each.needs) <= set(ordered)]
        assert ready, f"these wait for each other: {set(found) - set(ordered)}"
        ordered |= {name: found[name] for name in ready}
    return ordered


def _service(name: str, service: Mapping[str, Any], variables: Mapping[str, str]) -> Container:
    def words(value: Any) -> tuple[str, ...]:
        assert not isinstance(value, str), f"{name}: a command is a list, so that no shell cuts it"
        return tuple(interpolate(each, variables) for each in value or ())

    needs = service.get("depends_on", {})
    if isinstance(needs, list):
        needs = {other: {"condition": "service_started"} for other in needs}
    test = words((service.get("healthcheck") or {}).get("test"))
    shell = ("/bin/sh", "-c") if test[:1] == ("CMD-SHELL",) else ()
    return Container(
        name=name,
        image=service["image"],
        command=words(service.get("entrypoint")) + words(service.get("command")),
        environment={key: interpolate(value, variables) for key, value in service.get("environment", {}).items()},
        mounts={path: volume for volume, path, *_mode in (each.split(":") for each in service.get("volumes", []))},
        needs={other: each["condition"].removeprefix("service_") for other, each in needs.items()},
        checks={"health": Check((*shell, *test[1:]))} if test else {},
        grace_s=float(service.get("stop_grace_period", "10s").removesuffix("s")),
        env_files=tuple(each["path"] for each in service.get("env_file", []) if not each["required"]),
        profiles=tuple(service.get("profiles", ())),
    )


def manifest_documents() -> list[dict[str, Any]]:
    """Return the parts of the manifest."""
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def manifest_data(kind: str, name: str) -> dict[str, str]:
    """Return the data of a ConfigMap."""
    (found,) = (each for each in manifest_documents() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return dict(found["data"])


def manifest_containers(
    secrets: Mapping[str, Mapping[str, str]], address_of: Mapping[str, str]
) -> dict[str, tuple[list[Container], Container, int]]:
    """Return each Deployment's initial containers, its container, and how many pods it has.

    Args:
        secrets: name to what it holds; the manifest itself holds none.
        address_of: name of a Deployment to the address of its pod.
    """
    found = {}
    for each in manifest_documents():
        if each["kind"] != "Deployment":
            continue
        name, pod = each["metadata"]["name"], each["spec"]["template"]["spec"]
        grace = float(pod.get("terminationGracePeriodSeconds", 30))
        claims = {
            volume["name"]: (volume.get("persistentVolumeClaim") or {}).get("claimName")
            or "configmap/" + (volume.get("configMap") or {}).get("name", "")
            for volume in pod.get("volumes", [])
            if "emptyDir" not in volume  # a box has its own /tmp
        }

        def read(
            container: dict[str, Any], name: str = name, grace: float = grace, claims: dict[str, str] = claims
        ) -> Container:
            environment: dict[str, str] = {}
            for source in container.get("envFrom", []):
                if "configMapRef" in source:
                    environment |= manifest_data("ConfigMap", source["configMapRef"]["name"])
                else:
                    wanted = source["secretRef"]
                    environment |= (
                        secrets.get(wanted["name"], {}) if wanted.get("optional") else secrets[wanted["name"]]
                    )
            for variable in container.get("env", []):
                field_of = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
                assert field_of in (None, "status.podIP"), field_of
                environment[variable["name"]] = address_of[name] if field_of else variable["value"]
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            return Container(
                name=container["name"],
                image=container["image"],
                command=tuple(container.get("command", [])) + tuple(container.get("args", [])),
                environment=environment,
                mounts={
                    mount["mountPath"]: claims[mount["name"]]
                    for mount in container.get("volumeMounts", [])
                    if mount["name"] in claims
                },
                checks={
                    kind: _probe(container[f"{kind}Probe"], ports)
                    for kind in ("readiness", "liveness")
                    if f"{kind}Probe" in container
                },
                grace_s=grace,
            )

        (main,) = pod["containers"]
        found[name] = ([read(one) for one in pod.get("initContainers", [])], read(main), each["spec"]["replicas"])
    return found


def _probe(probe: Mapping[str, Any], ports: Mapping[str, int]) -> Check:
    if "exec" in probe:
        return Check(tuple(probe["exec"]["command"]))
    kind, where = ("http", probe["httpGet"]) if "httpGet" in probe else ("tcp", probe["tcpSocket"])
    port = ports.get(where["port"], where["port"])
    return Check(url=f"{kind}://:{port}{where.get('path', '')}")


def image_environment() -> dict[str, str]:
    """Return the variables that our Dockerfile's ENV lines set, without the path of its programs, which lie elsewhere here."""
    pairs = (pair for line in _instructions("ENV") for pair in line.split())
    return {name: value for name, value in (pair.split("=", 1) for pair in pairs) if name != "PATH"}


def image_folders() -> dict[str, str]:
    """Return what our Dockerfile copies: path in the repository to path under its WORKDIR."""
    copied: dict[str, str] = {}
    for line in _instructions("COPY"):
        if line.startswith("--from="):  # of an earlier stage, which copied it from here
            continue
        *sources, target = line.split()
        copied |= {each: (f"{target}{each}" if target == "./" else target) for each in sources}
    return copied


def image_entrypoint() -> list[str]:
    """Return our image's entry point."""
    (line,) = _instructions("ENTRYPOINT")
    return list(json.loads(line))


def _instructions(word: str) -> Sequence[str]:
    lines = DOCKERFILE.read_text().replace("\\\n", " ").splitlines()
    return [line.removeprefix(f"{word} ").strip() for line in lines if line.startswith(f"{word} ")]


def sources_of(path: Path = REPOSITORY / "src") -> str:
    """Return all of the product's own code, to look for what it reads."""
    return "\n".join(each.read_text() for each in sorted(path.rglob("*.py")))
