"""Where alerts go (`alerts.yaml`, RIVERTWICE_ALERT_WEBHOOK), and how each route sends a message.

The file never contains addresses with secrets, or passwords: it names variables of the environment, or files.
"""

from __future__ import annotations

import json
import os
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from rivertwice.agent.alert_kinds import body_of, mail_of, slack_text
from rivertwice.agent.alert_model import Alert, RouteState, State, due
from rivertwice.agent.alert_store import LINES_LIMIT, append_line
from rivertwice.core import NAME, ConfigError, Settings, read_yaml
from rivertwice.definition import Duration, Variable

WEBHOOK = "RIVERTWICE_ALERT_WEBHOOK"
FILE_LIMIT = 65_536
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _address(value: str) -> str:
    if not value.isascii() or not value.isprintable() or value.count("@") != 1 or any(c in value for c in ' ,;<>"()'):
        message = f"{value[:80]!r} is not a valid mail address; write it as name@example.com, without a display name"
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
        default=timedelta(seconds=60), description="How long a cause must be over before its end is reported."
    )
    routes: dict[str, Annotated[Route, Field(discriminator="to")]] = Field(default_factory=dict, max_length=50)

    def view(self, state: State) -> tuple[RouteView, ...]:
        """Return how each route does. Pure."""
        views = []
        for name, route in self.routes.items():
            known, waiting = state.routes.get(name, RouteState()), len(due(state.alerts, name, route.severities))
            shown = (tuple(route.severities), waiting, known.failures, known.error, known.next_attempt)
            views.append(RouteView(name, route.to, *shown))
        return tuple(views)


@dataclass(frozen=True)
class RouteView:
    """A route: how many alerts wait for it, how often it failed in a row, the last error, and before when nothing is sent to it."""

    route: str
    to: str
    severities: tuple[str, ...]
    waiting: int
    failures: int
    error: str
    next_attempt: datetime | None


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
            message = f"RIVERTWICE_ALERTS names {path}, which does not exist; write it, or unset the variable"
            raise ConfigError(message) from None
        data = b""
    except OSError as error:
        message = f"the routes of alerts in {path} cannot be read ({error.strerror}); make it readable"
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
        f"the routes of alerts in {path} are not valid: {wrong}; `rivertwice docs howto-watch` shows how to write them"
    )


def read_address(route: WebhookRoute | SlackRoute, env: Mapping[str, str]) -> str:
    """Return the address of a route.

    Raises:
        ConfigError: this process's environment has none, or the value is not an address; the address is not shown.
    """
    from rivertwice.core import is_web_address  # as in `send_message`

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


# Hand one message to one route. Every wait has an end, no answer is trusted, and no error text holds a secret.

TIMEOUT_S = 10.0
_LATER = (408, 425, 429)


@dataclass(frozen=True)
class Outcome:
    """The result of handing a message to a route.

    Attributes:
        taken: the route has the message. error: what went wrong, without any secret.
        refused: it refuses this message; another one may be taken.
        wait: how long the receiver asked to wait.
    """

    taken: bool
    error: str = ""
    refused: bool = False
    wait: timedelta | None = None


def send_message(settings: Settings, route: Route, alert: Alert, env: Mapping[str, str], now: datetime) -> Outcome:
    """Hand an alert's present message to a route.

    Raises:
        ConfigError: the address or the password is not in this process's environment.
    """
    if isinstance(route, EmailRoute):
        return _mail(settings, route, alert, env, now)
    if isinstance(route, FileRoute):
        try:
            append_line(route.path, body_of(settings, alert), limit=LINES_LIMIT)
        except OSError as error:
            return Outcome(taken=False, error=f"{route.path} cannot be written ({error.strerror})")
        return Outcome(taken=True)
    import httpx  # who only asks which routes there are, as `rivertwice status` does, has no use for it

    from rivertwice.core import send, web_client

    url = read_address(route, env)
    slack = isinstance(route, SlackRoute)
    body = {"text": slack_text(settings, alert)} if slack else body_of(settings, alert)
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"{alert.id}-{alert.status}"}
    try:
        with web_client(timeout_s=TIMEOUT_S) as client:
            answer = send(client, url, json.dumps(body, sort_keys=True).encode(), headers)
    except httpx.HTTPError as error:
        return Outcome(taken=False, error=f"no answer ({type(error).__name__})")  # its text may hold the address
    if 200 <= answer.status < 300:
        return Outcome(taken=True)
    wait = None if answer.retry_after_s is None else timedelta(seconds=answer.retry_after_s)
    problem = f"status {answer.status}"
    if 300 <= answer.status < 400:
        problem += ", a redirect, which is not followed"
    return Outcome(
        taken=False, error=problem, refused=400 <= answer.status < 500 and answer.status not in _LATER, wait=wait
    )


def _mail(settings: Settings, route: EmailRoute, alert: Alert, env: Mapping[str, str], now: datetime) -> Outcome:
    password = read_password(route, env) if route.username is not None else ""
    mail = mail_of(settings, alert, route.sender, route.recipients, now)
    try:
        with _connect(route) as server:
            if route.username is not None:
                server.login(route.username, password)
            left_out = server.send_message(mail)
    except smtplib.SMTPDataError as error:
        return Outcome(taken=False, error=f"the mail server refused the mail ({error.smtp_code})", refused=True)
    except smtplib.SMTPResponseException as error:
        return Outcome(taken=False, error=f"the mail server answered {error.smtp_code} ({type(error).__name__})")
    except (smtplib.SMTPException, OSError, ValueError) as error:
        return Outcome(taken=False, error=f"the mail was not taken ({type(error).__name__})")
    return Outcome(taken=True, error=f"{len(left_out)} recipients were refused" if left_out else "")


def _connect(route: EmailRoute) -> smtplib.SMTP:
    if route.security == "none":
        return smtplib.SMTP(route.host, route.port, timeout=TIMEOUT_S)
    context = ssl.create_default_context(cafile=None if route.ca is None else str(route.ca))
    if route.security == "tls":
        return smtplib.SMTP_SSL(route.host, route.port, timeout=TIMEOUT_S, context=context)
    server = smtplib.SMTP(route.host, route.port, timeout=TIMEOUT_S)
    try:
        server.starttls(context=context)
    except BaseException:
        server.close()
        raise
    return server
