"""Replace a value in the records of refused deliveries: in keys, in rows that a destination has, and in its error texts.

An entry is rewritten, not dropped, where that is possible: later records of its key need it, for it contains the row that the
destination really has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rivertwice.config import PipelineHome
from rivertwice.delivery.aside import AsideStore, rename_asked, sinks_with_aside
from rivertwice.delivery.note import only_deliverer
from rivertwice.delivery.refusals import AsideEntry
from rivertwice.pipeline.definition import Definition
from rivertwice.privacy.redact import Redactor
from rivertwice.privacy.spellings import spellings


def rewrite_refused(home: PipelineHome, definition: Definition, redactor: Redactor) -> dict[str, int]:
    """Rewrite the records of a pipeline that were set aside; return PIPELINE/delivery/SINK to the number of changed entries.

    Requests about entries count, too.

    Raises:
        LeaseLostError: a process delivers to a sink meanwhile; the erasure is resumed later.
    """
    changes = {}
    for sink in sinks_with_aside(home):
        with only_deliverer(home, sink):
            count = AsideStore(home, sink).rewrite(lambda entry: without_value(entry, definition, redactor))
            count += rename_asked(home, sink, lambda key: _text(redactor, key))
        if count:
            changes[f"{home.root.name}/delivery/{sink}"] = count
    return changes


def without_value(entry: AsideEntry, definition: Definition, redactor: Redactor) -> AsideEntry | None:
    """Return an entry with the value replaced, or None if the value is in a position of unknown meaning. Pure."""
    key = _text(redactor, entry.key)
    held = entry.held
    if held is not None:
        names = _columns(entry.key, definition)
        values = _values(redactor, names, held["values"])
        held = None if values is None else {**held, "values": values}
        if held is None:
            return None
    reason = redactor.text(entry.reason.encode()).decode()
    new = replace(entry, key=key, held=held, reason=reason, why=redactor.text(entry.why.encode()).decode())
    if isinstance(redactor.value, str) and spellings(redactor.value, whole_word=False).search(
        json.dumps(asdict(new)).encode()
    ):
        return None
    return new


def _text(redactor: Redactor, key: str) -> str:
    new = redactor.text(key.encode()).decode()
    return key if new == key else json.dumps(json.loads(new), separators=(",", ":"), ensure_ascii=False)


def _columns(key: str, definition: Definition) -> Sequence[str]:
    """Return the names of a delivered row's values, in its order (`delivery.model.DeliveredColumns`)."""
    window, key_object = definition.window, json.loads(key)
    keys = tuple(key_object["keys"])
    rest = (*(name for name in definition.row_keys if name not in keys), *definition.columns)
    return (window.start_column, window.end_column, *keys, *rest)


def _values(redactor: Redactor, names: Sequence[str], values: Sequence[Any]) -> list[Any] | None:
    if len(names) != len(values):
        return None  # made by another definition: the meaning of its positions is unknown
    replaced = json.loads(redactor.text(json.dumps(dict(zip(names, values, strict=True))).encode()))
    return [replaced[name] for name in names]
