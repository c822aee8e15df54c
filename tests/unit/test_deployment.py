"""compose and manifest: every command is one that its program takes, every variable one that something reads, no key too many.

The slow half, which runs them, is `tests/integration/test_deployment_runs.py`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from boxes.compose_file import (
    Container,
    compose_containers,
    compose_document,
    image_environment,
    image_folders,
    interpolate,
    manifest_containers,
    manifest_data,
    required_variables,
    sources_of,
)
from homes.project import REPOSITORY
from rivertwice.agent.alert_routes import WEBHOOK, load_routes
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_all
from rivertwice.setup import probe
from rivertwice.tasks.environment import SPARK_POOL
from servers.alert_receivers import Hook

SECRETS = {name: f"secret-{name.lower().replace('_', '-')}" for name in required_variables()}
SERVICES = compose_containers(SECRETS)
PODS = manifest_containers(
    {"rivertwice-s3": {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}},
    dict.fromkeys(("spark-master", "spark-worker", "agent"), "10.0.0.1"),
)
MANIFEST = {f"kubernetes {each.name}": each for initial, main, _replicas in PODS.values() for each in [*initial, main]}
ALL = {**{f"compose {name}": each for name, each in SERVICES.items()}, **MANIFEST}
OURS = {title: each for title, each in ALL.items() if each.ours}
SPARK_CLASSES = {"org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"}
SPARK_VARIABLES = {
    "SPARK_MASTER_OPTS", "SPARK_MASTER_HOST", "SPARK_WORKER_CORES", "SPARK_WORKER_MEMORY", "SPARK_WORKER_DIR", "SPARK_LOCAL_IP",
    "SPARK_CONF_DIR",
}  # fmt: skip


def commands_of(container: Container) -> list[tuple[str, ...]]:
    """Return the container's command and those of its checks, a shell's script as the commands in it."""
    found = [container.command, *(each.command for each in container.checks.values() if each.command)]
    return [each for command in found for each in unwrap(command)]


def unwrap(command: tuple[str, ...]) -> list[tuple[str, ...]]:
    if Path(command[0]).name not in {"sh", "bash"} or not command[1].startswith("-"):
        return [command]
    lines = [part for line in command[2].splitlines() for part in re.split(r"&&|\|\|", line) if part.strip()]
    return [tuple(shlex.split(line)) for line in lines]


def parse(command: tuple[str, ...]) -> None:
    """Let the program's own parser read a command of our image.

    Raises:
        AssertionError: it would not take it; the message has the parser's words.
    """
    program, *arguments = command
    if program == "rivertwice":
        answer = CliRunner().invoke(cli, [*arguments, "--help"])
        assert answer.exit_code == 0, answer.output
        context = click.Context(cli)
        group: click.Command = cli
        while isinstance(group, click.Group):
            assert arguments, f"{' '.join(command)} is a group: it prints its help and ends with 2"
            group = group.commands[arguments.pop(0)]
        group.make_context(program, arguments, parent=context, resilient_parsing=False)
    elif program == "airflow":
        from airflow.cli.cli_parser import get_parser

        get_parser().parse_args(arguments)
    elif program == "spark-class":
        assert arguments[0] in SPARK_CLASSES
    elif command[:2] == ("python", "-m"):
        assert command[2] == probe.__name__
        probe.build_parser().parse_args(command[3:])
    else:
        pytest.fail(f"{program} is no program of the image")


@pytest.mark.parametrize("title", OURS)
def test_every_command_and_check_of_the_image_is_one_its_program_takes(title: str) -> None:
    for command in commands_of(OURS[title]):
        parse(command)


@pytest.mark.parametrize(
    "command", [("rivertwice", "agent"), ("rivertwice", "agent", "run", "--dry-run"), ("rivertwise",)]
)
def test_a_command_that_would_print_help_or_be_refused_is_found(command: tuple[str, ...]) -> None:
    with pytest.raises((AssertionError, click.ClickException, pytest.fail.Exception)):
        parse(command)


@pytest.mark.parametrize(
    "title", [title for title, each in ALL.items() if "init" not in title and each.name != "topics"]
)
def test_each_container_that_stays_has_a_check(title: str) -> None:
    wanted = {"health"} if title.startswith("compose") else {"readiness", "liveness"}
    assert set(ALL[title].checks) == wanted


@pytest.mark.parametrize("title", OURS)
def test_every_variable_is_one_that_somebody_reads(title: str) -> None:
    from airflow.configuration import conf

    code = sources_of()
    for name in OURS[title].environment:
        if name.startswith("RIVERTWICE_"):
            assert f'"{name}"' in code, name
        elif match := re.fullmatch(r"AIRFLOW__(\w+?)__(\w+)", name):
            section, key = match[1].lower(), match[2].lower()
            known = conf.configuration_description.get(section, {}).get("options", {})
            ours_to_set = {"simple_auth_manager_users", "simple_auth_manager_passwords_file", "sql_alchemy_conn_async"}
            assert key in known or key in ours_to_set, name
        elif name.startswith("SPARK_"):
            assert name in SPARK_VARIABLES, name
        else:
            assert name in {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                            "AIRFLOW_HOME", "AIRFLOW_CONN_SPARK_DEFAULT"}, name  # fmt: skip


def test_what_they_set_is_what_the_platform_understands() -> None:
    for title, container in OURS.items():
        settings = Settings.from_env({**image_environment(), **container.environment})
        if "RIVERTWICE_SPARK_MASTER" in container.environment:
            assert not settings.spark_is_local, title
            assert settings.bootstrap == "kafka:9092"


SENDERS = [title for title in OURS if title == "kubernetes agent" or re.match(r"compose (agent|airflow-)", title)]


def routes_file(container: Container, folder: Path) -> Path:
    """Return the file that a container finds where RIVERTWICE_ALERTS says, with a route more, for a chat."""
    path = Path(container.environment["RIVERTWICE_ALERTS"])
    source = container.mounts[str(path.parent)]
    if source.startswith("./"):
        text = (REPOSITORY / source / path.name).read_text()
    else:
        text = manifest_data("ConfigMap", source.removeprefix("configmap/"))[path.name]
    assert "routes: {}" in text
    copy = folder / path.name
    copy.write_text(text.replace("routes: {}", "routes: {chat: {to: slack, url_env: CHAT_ADDRESS}}"))
    return copy


@pytest.mark.parametrize("title", SENDERS)
def test_agent_and_airflow_send_alerts_where_the_deployment_says(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Hook()
    address = {WEBHOOK: hook.url, "CHAT_ADDRESS": hook.url}
    pods = manifest_containers({"rivertwice-s3": {}, "rivertwice-alerts": address}, dict.fromkeys(PODS, "10.0.0.1"))
    compose = compose_containers({**SECRETS, WEBHOOK: hook.url})
    container = compose.get(title.removeprefix("compose "), pods["agent"][1])
    environment = dict(container.environment)
    if title.startswith("compose"):
        assert container.env_files == ("docker/alerts/secrets.env",)
        environment["CHAT_ADDRESS"] = hook.url  # a line of that file
    for name, value in {**environment, "RIVERTWICE_ALERTS": str(routes_file(container, tmp_path))}.items():
        monkeypatch.setenv(name, value)
    answer = CliRunner().invoke(cli, ["--home", str(tmp_path / "home"), "alerts", "test"], catch_exceptions=False)
    hook.close()
    assert answer.exit_code == 0, answer.output
    assert re.findall(r"^ *(\w+) +\w+ +taken", answer.output, re.MULTILINE) == ["chat", "webhook"]


def test_a_deployment_without_an_address_has_no_route_and_is_not_refused(tmp_path: Path) -> None:
    for title in SENDERS:
        environment = OURS[title].environment
        settings = Settings.from_env(
            {**environment, "RIVERTWICE_ALERTS": str(REPOSITORY / "docker/alerts/alerts.yaml")}
        )
        assert load_routes(settings, environment).routes == {}


def test_nobody_else_holds_the_addresses_of_alerts() -> None:
    assert {title for title, each in OURS.items() if "RIVERTWICE_ALERTS" in each.environment} == set(SENDERS)
    assert {title for title, each in OURS.items() if each.env_files} == set(SENDERS) - {"kubernetes agent"}
    assert "docker/alerts/secrets.env" in (REPOSITORY / ".gitignore").read_text().splitlines()


def test_init_makes_topics_bucket_key_and_airflows_pool() -> None:
    assert SERVICES["topics-init"].command == ("rivertwice", "admin", "topics")
    assert load_all(REPOSITORY / "pipelines"), "an image without pipelines makes no topic"
    airflow = [command for command in unwrap(SERVICES["airflow-init"].command) if command[0] == "airflow"]
    assert [command[1:3] for command in airflow] == [("db", "migrate"), ("pools", "get"), ("pools", "set")]
    assert {command[3] for command in airflow[1:]} == {SPARK_POOL}
    script = SERVICES["s3-init"].command[-1]
    assert {"create-user", "create-bucket"} <= set(re.findall(r"versitygw admin ([\w-]+)", script))
    assert SERVICES["agent"].needs["topics-init"] == SERVICES["agent"].needs["s3-init"] == "completed_successfully"
    assert SERVICES["airflow-api"].needs["airflow-init"] == "completed_successfully"


def test_the_image_has_the_drivers_of_airflows_database() -> None:
    for name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"):
        driver = SERVICES["airflow-init"].environment[name].split("://")[0].split("+")[1]
        assert find_spec(driver) is not None, f"{name} asks for {driver}, which no lock has"
        pinned = re.findall(r"^(\w+)==", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
        assert driver in pinned


@pytest.mark.proves("security.md#security")
def test_only_the_s3_server_and_its_set_up_hold_the_root_key() -> None:
    root = {SECRETS["S3_ROOT_ACCESS_KEY"], SECRETS["S3_ROOT_SECRET_KEY"]}
    assert {name for name, each in SERVICES.items() if root & set(each.environment.values())} == {"s3", "s3-init"}
    keys = {SECRETS["S3_ACCESS_KEY"], SECRETS["S3_SECRET_KEY"]}
    without = {name for name, each in SERVICES.items() if each.ours and not keys & set(each.environment.values())}
    assert without == {"spark-master"}
    holders = {title for title, each in MANIFEST.items() if "AWS_SECRET_ACCESS_KEY" in each.environment}
    assert holders == {"kubernetes agent", "kubernetes spark-worker"}


def test_a_secret_that_is_not_set_stops_compose_and_none_has_a_default() -> None:
    assert {"POSTGRES_PASSWORD", "AIRFLOW_FERNET_KEY", "AIRFLOW_JWT_SECRET", "AIRFLOW_SECRET_KEY",
            "S3_ROOT_SECRET_KEY", "S3_SECRET_KEY"} <= required_variables()  # fmt: skip
    with pytest.raises(KeyError, match="POSTGRES_PASSWORD"):
        compose_containers({**SECRETS, "POSTGRES_PASSWORD": ""})
    assert interpolate("$$A ${B:-two} ${C}", {"C": "three"}) == "$A two three"


def test_agents_drain_when_their_container_stops_within_its_grace_period() -> None:
    for title in ("compose agent", "kubernetes agent"):
        container = ALL[title]
        assert "--drain-on-stop" in container.command
        (limit,) = (
            option.default
            for option in cli.commands["agent"].commands["run"].params  # type: ignore[attr-defined]
            if option.name == "drain_seconds"
        )
        assert limit < container.grace_s


def test_the_image_has_every_folder_that_a_project_has() -> None:
    assert {"src", "locks", "pipelines", "dags", "plugins", "expectations", "schemas", "spark_jobs"} <= set(
        image_folders()
    )
    for source in image_folders():
        assert (REPOSITORY / source).exists(), source


def test_only_two_pages_are_published_and_on_loopback() -> None:
    published = {name: each["ports"] for name, each in compose_document()["services"].items() if "ports" in each}
    assert published == {"airflow-api": ["127.0.0.1:8080:8080"], "grafana": ["127.0.0.1:3000:3000"]}


def test_a_missing_condition_is_a_service_that_may_start_too_early() -> None:
    for name, container in SERVICES.items():
        for other, condition in container.needs.items():
            assert condition != "started", f"{name} starts while {other} may not answer yet"
            if condition == "healthy":
                assert SERVICES[other].checks, f"{name} waits for ever: {other} has no health check"
    assert replace(SERVICES["agent"], image="postgres:17").ours is False


def test_prometheus_and_grafana_are_a_profile_and_find_each_other() -> None:
    services = compose_document()["services"]
    assert {name for name, each in services.items() if each.get("profiles") == ["observability"]} == {
        "prometheus",
        "grafana",
    }
    port = SERVICES["agent"].environment["RIVERTWICE_METRICS"].rpartition(":")[2]
    scraped = yaml.safe_load((REPOSITORY / "docker/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"][0]["targets"] == [f"agent:{port}"]
    provisioned = REPOSITORY / "docker/grafana/provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (boards,) = yaml.safe_load((provisioned / "dashboards/rivertwice.yaml").read_text())["providers"]
    assert (
        f"./src/rivertwice/agent/dashboard.json:{boards['options']['path']}/rivertwice.json:ro"
        in services["grafana"]["volumes"]
    )
    assert not [key for key in services["grafana"]["environment"] if "PASSWORD" in key]
