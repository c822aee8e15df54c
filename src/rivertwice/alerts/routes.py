"""Where alerts go: `alerts.yaml` of the project (or RIVERTWICE_ALERTS), and RIVERTWICE_ALERT_WEBHOOK.

The file never contains addresses with secrets, or passwords: it names variables of the environment, or files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rivertwice.config import NAME, Settings
from rivertwice.errors import ConfigError
from rivertwice.pipeline.delivery_model import Variable
from rivertwice.pipeline.durations import Duration
from rivertwice.web import is_web_address
from rivertwice.yaml_text import read_yaml

WEBHOOK = "RIVERTWICE_ALERT_WEBHOOK"
FILE_LIMIT = 65_536
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _address(value: str) -> str:
    if not value.isascii() or not value.isprintable() or value.count("@") != 1 or any(c in value for c in ' ,;<>"()'):
        message = f"{value[:80]!r} is no mail address; write it as name@example.com, without a display name"
        raise ValueError(message)
    return value


Address = Annotated[str, AfterValidator(_address)]


class _Route(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    severities: tuple[Literal["critical", "warning"], ...] = Field(
        default=("critical", "warning"), min_length=1, description="Which alerts go here."
    )


class _Secret(_Route):
    url_env: Variable | None = Field(default=None, description="Variable with the address, which is a secret.")
    url_file: Path | None = Field(default=None, description="File that holds the address; read for each message.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.url_env is None) == (self.url_file is None):
            message = (
                "write url_env (the variable that holds the address) or url_file (a file that holds it), one of the two"
            )
            raise ValueError(message)
        return self


class WebhookRoute(_Secret):
    """A POST of the alert as JSON."""

    to: Literal["webhook"]


class SlackRoute(_Secret):
    """A POST of `{"text": ...}`, which Slack, Mattermost, Rocket.Chat and others take."""

    to: Literal["slack"]


class EmailRoute(_Route):
    """A mail by SMTP."""

    to: Literal["email"]
    host: str = Field(min_length=1, max_length=253)
    port: int = Field(default=587, ge=1, le=65_535)
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="How the connection is encrypted."
    )
    ca: Path | None = Field(
        default=None, description="PEM file of the authorities that sign the server; else the system's."
    )
    username: str | None = None
    password_env: Variable | None = None
    password_file: Path | None = None
    sender: Address
    recipients: tuple[Address, ...] = Field(min_length=1, max_length=50)

    @model_validator(mode="after")
    def _login(self) -> Self:
        named = [option for option in (self.password_env, self.password_file) if option is not None]
        if (self.username is None) != (not named) or len(named) > 1:
            message = (
                "a login has a username and one of password_env and password_file; without a login write none of them"
            )
            raise ValueError(message)
        if self.username is not None and self.security == "none" and self.host not in _LOOPBACK:
            message = (
                f"security is none, so the password would travel to {self.host} unprotected; write starttls or tls"
            )
            raise ValueError(message)
        return self


class FileRoute(_Route):
    """A line of JSON in a file of yours; `HOME/alerts.jsonl` has them in any case."""

    to: Literal["file"]
    path: Path


Route = WebhookRoute | SlackRoute | EmailRoute | FileRoute


class Routes(BaseModel):
    """The content of `alerts.yaml`: where alerts go, by severity."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    settle: Duration = Field(
        default=timedelta(seconds=60), description="A cause must be over for so long before its end is reported."
    )
    routes: dict[str, Annotated[Route, Field(discriminator="to")]] = Field(default_factory=dict, max_length=50)


def config_file(settings: Settings) -> Path:
    """Return where the routes are configured."""
    return settings.alerts or settings.project / "alerts.yaml"


def load_routes(settings: Settings, env: Mapping[str, str] | None = None) -> Routes:
    """Return the routes of the file, and one named `webhook` if RIVERTWICE_ALERT_WEBHOOK is set.

    Raises:
        ConfigError: the file cannot be accepted, or RIVERTWICE_ALERTS names none.
    """
    env = os.environ if env is None else env
    path = config_file(settings)
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
    except FileNotFoundError:
        if settings.alerts is not None:
            message = f"RIVERTWICE_ALERTS names {path}, which does not exist, so alerts reach nobody; write it, or unset the variable"
            raise ConfigError(message) from None
        data = b""
    except OSError as error:
        message = f"the routes of alerts in {path} cannot be read ({error.strerror}), so alerts reach nobody; make it readable"
        raise ConfigError(message) from None
    routes = _parse(data, path)
    for name in routes.routes:
        if not NAME.match(name):
            message = f"{path}: {name[:40]!r} cannot name a route; use a-z, 0-9, _ and -, for instance ops"
            raise ConfigError(message)
    if env.get(WEBHOOK) and "webhook" not in routes.routes:
        added = WebhookRoute(to="webhook", url_env=WEBHOOK)
        routes = routes.model_copy(update={"routes": {**routes.routes, "webhook": added}})
    return routes


def _parse(data: bytes, path: Path) -> Routes:
    try:
        if len(data) > FILE_LIMIT:
            raise _refusal(path, f"it has more than {FILE_LIMIT} bytes")
        value = read_yaml(data.decode())
        return Routes.model_validate({} if value is None else value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise _refusal(path, f"{field}: {first['msg']}" if field else first["msg"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise _refusal(path, f"it is not YAML ({type(error).__name__})") from None


def _refusal(path: Path, wrong: str) -> ConfigError:
    return ConfigError(
        f"the routes of alerts in {path} cannot be accepted, so alerts reach nobody: {wrong}; see docs/howto-alerts.md"
    )


def read_address(route: WebhookRoute | SlackRoute, env: Mapping[str, str]) -> str:
    """Return the address of a route.

    Raises:
        ConfigError: this process's environment has none, or the value is no address; the address is not shown.
    """
    where, url = _read(route.url_env, route.url_file, env)
    if not is_web_address(url):
        message = f"{where} holds no http or https address; set it where the agent and Airflow start"
        raise ConfigError(message)
    return url


def read_password(route: EmailRoute, env: Mapping[str, str]) -> str:
    """Return the password of a route's login.

    Raises:
        ConfigError: there is none.
    """
    where, password = _read(route.password_env, route.password_file, env)
    if not password:
        message = f"{where} holds no password for {route.username}; set it where the agent and Airflow start"
        raise ConfigError(message)
    return password


def _read(variable: str | None, file: Path | None, env: Mapping[str, str]) -> tuple[str, str]:
    if file is None:
        return str(variable), env.get(variable or "", "")
    try:
        with file.open("rb") as opened:
            return str(file), opened.read(8_192).decode().strip()
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read ({type(error).__name__}); it holds the secret of a route of alerts"
        raise ConfigError(message) from None
