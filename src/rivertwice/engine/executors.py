"""What a session on a cluster says while no executor works for it: Spark itself only repeats a warning in a log that is hushed."""

from __future__ import annotations

import json
import logging
import os
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_LOOK_S = 5.0
_LOOK_SELDOM_S = 30.0
PATIENCE_S = 60.0
"""Executors start in 10 to 40 s, where the image is on the node and a core is free."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST_REASONS = 3
_watched: set[str] = set()


def describe_missing(wanted: int | None, waited_s: float, reasons: list[str], *, on_kubernetes: bool, app: str) -> str:
    """Return what is said while no executor has registered. Pure.

    Args:
        wanted: how many executors were asked for; None: as many as the master gives.
        reasons: what Kubernetes says of pods that do not run.
    """
    asked = "" if wanted is None else f" of {wanted}"
    what = (
        f"0{asked} executors of this application have registered for {waited_s // 60:.0f} min, so nothing is computed"
    )
    if reasons:
        return f"{what}; {'; '.join(reasons)}: free or add what is missing, or ask for less in spark-defaults.conf"
    if on_kubernetes:
        return f"{what}; `kubectl get pods -l spark-app-selector={app}` shows their pods"
    return f"{what}; the master has no free slot or no worker that is large enough: its page shows who holds them"


def waiting_reasons(pods: Mapping[str, Any]) -> list[str]:
    """Return why pods of the API server's list do not run, each reason once with the number of its pods. Pure."""
    counts: dict[str, int] = {}
    for pod in pods.get("items", ()):
        status = pod.get("status", {})
        if status.get("phase") != "Pending":
            continue
        unscheduled = [
            f"Pending: {each.get('message') or each.get('reason', 'not scheduled')}"
            for each in status.get("conditions", ())
            if each.get("type") == "PodScheduled" and each.get("status") == "False"
        ]
        waiting = [
            f"{each['state']['waiting'].get('reason', 'waiting')}: {each['state']['waiting'].get('message', each.get('image', ''))}"
            for each in status.get("containerStatuses", ())
            if "waiting" in each.get("state", {})
        ]
        reason = (unscheduled or waiting or ["Pending"])[0].strip(" .")
        counts[reason] = counts.get(reason, 0) + 1
    return [f"{number} of its pods {reason}" for reason, number in counts.items()][:_MOST_REASONS]


def watch_executors(spark: SparkSession, waits: Callable[[str], None] | None = None) -> None:
    """Look in a thread whether executors have registered, for as long as the application lives; without a cluster do nothing.

    Args:
        waits: gets what `describe_missing` says, and an empty text once an executor is there; the log gets it as well.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local") or context.applicationId in _watched:
        return
    _watched.add(context.applicationId)
    threading.Thread(target=_watch, args=(spark, waits or (lambda _: None)), name="executors", daemon=True).start()


def _watch(spark: SparkSession, waits: Callable[[str], None]) -> None:
    missing_since: float | None = time.monotonic()
    said_at: float | None = None
    while True:
        time.sleep(_LOOK_SELDOM_S if missing_since is None else _LOOK_S)
        try:
            registered = _registered(spark)
        except Exception:
            return  # the application has ended, or its JVM
        if registered:
            if said_at is not None:
                _log.warning("executors have registered: the work continues")
                waits("")
            missing_since = said_at = None
            continue
        now = time.monotonic()
        missing_since = now if missing_since is None else missing_since
        if now - missing_since < PATIENCE_S:
            continue
        text = _describe(spark, now - missing_since)
        waits(text)
        if said_at is None or now - said_at >= 5 * PATIENCE_S:
            _log.warning("%s", text)
            said_at = now


def _registered(spark: SparkSession) -> int:
    infos: Any = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return len(infos) - 1  # the driver is one of them


def _describe(spark: SparkSession, waited_s: float) -> str:
    context = spark.sparkContext
    wanted = context.getConf().get("spark.executor.instances", None)
    on_kubernetes = str(context.master).startswith("k8s://")
    reasons: list[str] = []
    if on_kubernetes:
        with suppress(OSError, ValueError):  # the reason is a help; the fact is said without it
            reasons = waiting_reasons(_pods(context.applicationId))
    count = int(wanted) if wanted is not None else None
    return describe_missing(count, waited_s, reasons, on_kubernetes=on_kubernetes, app=context.applicationId)


def _pods(app: str) -> Any:
    """Return the API server's list of this application's pods, asked with the pod's own service account."""
    namespace = (_ACCOUNT / "namespace").read_text()
    place = f"{os.environ.get('KUBERNETES_SERVICE_HOST', 'kubernetes.default.svc')}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
    chosen = urllib.parse.urlencode({"labelSelector": f"spark-app-selector={app}"})
    request = urllib.request.Request(
        f"https://{place}/api/v1/namespaces/{namespace}/pods?{chosen}",
        headers={"Authorization": f"Bearer {(_ACCOUNT / 'token').read_text()}"},
    )
    trusted = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:  # noqa: S310 (https only, see above)
        return json.load(answer)
