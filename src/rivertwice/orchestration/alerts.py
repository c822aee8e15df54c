"""Alerts: a line in `HOME/alerts.jsonl`, and a webhook when one is set."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

import httpx

from rivertwice.config import Settings
from rivertwice.instants import to_iso

log = logging.getLogger(__name__)

WEBHOOK = "RIVERTWICE_ALERT_WEBHOOK"
_PATIENCE = 10.0


@dataclass(frozen=True)
class AirflowAlert:
    """Something a person should know.

    Attributes:
        kind: stable word, for instance `task_failed`, `late_share`, `defect`.
        severity: `critical` or `warning`.
    """

    pipeline: str
    dag: str
    run: str
    kind: str
    severity: str
    message: str
    at: datetime


def send_alert(settings: Settings, alert: AirflowAlert, env: Mapping[str, str] | None = None) -> bool:
    """Record the alert and tell the webhook; return whether the webhook, if any, took it.

    The line is written first and in one write, so an alert is never lost to a webhook that does not answer. A webhook that
    refuses is logged and not tried again: the line stands.
    """
    env = os.environ if env is None else env
    body = {"format": 1, **asdict(alert), "at": to_iso(alert.at), "by": "airflow"}
    line = json.dumps(body, sort_keys=True) + "\n"
    settings.home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(settings.home / "alerts.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    url = env.get(WEBHOOK)
    if not url:
        return True
    try:
        httpx.post(url, json=body, timeout=_PATIENCE).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        log.warning("the webhook of %s did not take the %s alert of %s: %s", WEBHOOK, alert.kind, alert.dag, error)
        return False
    return True
