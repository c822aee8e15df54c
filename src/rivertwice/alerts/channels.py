"""Hand one message to one route. Every wait has an end, no answer is trusted, and no error text holds a secret."""

from __future__ import annotations

import json
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx

from rivertwice.alerts.messages import body_of, mail_of, slack_text
from rivertwice.alerts.model import Alert
from rivertwice.alerts.routes import EmailRoute, FileRoute, Route, SlackRoute, read_address, read_password
from rivertwice.alerts.store import LINES_LIMIT, append_line
from rivertwice.config import Settings
from rivertwice.web import send, web_client

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
