"""One number explained for the page: what `rivertwice explain` prints, and the truth as far as a verdict already gives it.

The truth is computed by Spark, from the log, and no Spark runs where the page is served. But a verdict of the newest reconcile is a
comparison with the truth: where it says that a row agrees and nothing came after it, that row's values are the truth, within the
definition's tolerance. So the truth is known without Spark of every row that agrees, in either pair.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from rivertwice.config import Settings
from rivertwice.explain.model import Address, Explanation
from rivertwice.explain.run import explain
from rivertwice.explain.text import to_json
from rivertwice.instants import to_iso
from rivertwice.timeline.keys import key_text
from rivertwice.timeline.served_export import json_value
from rivertwice.verdicts import AGREES


def explain_for_page(settings: Settings, name: str, start: datetime, key: str | None, now: datetime) -> dict[str, Any]:
    """Return the explanation of a row as plain values, with what is known of its truth.

    Raises:
        RequestError: there is no such window or key; the nearest ones are given.
    """
    explanation = explain(settings, name, start, key, now=now)
    plain = to_json(explanation)
    for verdict in plain["verdicts"]:
        del verdict["age_s"]  # the browser counts it on from `at`
    return {
        "explanation": plain,
        "stored_truth": describe_stored_truth(explanation),
        "command": explain_command(explanation.address),
    }


def describe_stored_truth(explanation: Explanation) -> dict[str, Any]:
    """Return the truth that the newest reconcile's verdict gives, or why it gives none. Pure."""
    for verdict in explanation.verdicts:
        has_row = explanation.has_served if verdict.pair == "served" else explanation.has_stream
        if verdict.verdict == AGREES and verdict.stale is None and has_row:
            values = {column.name: json_value(getattr(column, verdict.pair)) for column in explanation.columns}
            why = f"{verdict.run} found the {verdict.pair} row equal to the truth, and nothing came after it"
            return {"values": values, "pair": verdict.pair, "run": verdict.run, "at": to_iso(verdict.at), "why": why}
    if not explanation.verdicts:
        why = "no reconcile has judged this row"
    elif all(verdict.stale for verdict in explanation.verdicts):
        why = f"the newest verdicts are out of date: {explanation.verdicts[0].stale}"
    else:
        why = "the newest reconcile compared it with the truth and found it different; what the truth is, only the log says"
    return {"values": None, "why": why}


def explain_command(address: Address) -> str:
    """Return the command that explains the same row with its truth. Pure."""
    words = ["rivertwice", "explain", address.pipeline, to_iso(address.start)]
    if address.key:
        words.append(key_text(list(address.key), address.key.values()))
    return shlex.join([*words, "--with-truth"])
