"""A pipeline over Avro orders, copied so that a test may change it, and records as its producers write them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from homes.project import REPOSITORY
from rivertwice.definition.avro import parse_avro, prefixed
from rivertwice.definition.definition import load_definition
from rivertwice.definition.model import Definition

ORDERS = REPOSITORY / "pipelines" / "examples" / "order_totals"
REGISTERED = REPOSITORY / "schemas"
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
GOOD: dict[str, Any] = {"order_id": "o", "placed_at": AT, "amount": "10.00"}


def copy_orders(folder: Path) -> Path:
    """Return a copy of the orders pipeline under `folder`, under its own name."""
    target = folder / ORDERS.name
    shutil.copytree(ORDERS, target)
    return target


def orders() -> Definition:
    """Return the definition as it is kept."""
    return load_definition(ORDERS)


def record(schema_id: int, **fields: Any) -> bytes:
    """Return a framed record by the registered version with this id."""
    schema = parse_avro((REGISTERED / "orders-value" / f"{schema_id}.avsc").read_text(), str(schema_id))
    return prefixed(schema_id, schema.encode({**GOOD, **fields}))
