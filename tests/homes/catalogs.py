"""A pipeline's home whose `served` a catalog names: every state that was served, and what a reader of the catalog finds."""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.utils.config import Config

from homes.delivery import DeliveryHome
from rivertwice.definition.delivery_section import IcebergDelivery
from rivertwice.deliver.deliver import Delivered
from rivertwice.deliver.registered import VERSION, Registrar
from rivertwice.storage.snapshot import Snapshot
from rivertwice.storage.table import Table
from rivertwice.timeline.served import rebuild_served

COLUMNS = ["window_start", "window_end", "k", "n", "_status", "_timeline", "_batch", "_backfill"]
State = Counter[tuple[Any, ...]]


def use_catalog(patch: pytest.MonkeyPatch, properties: dict[str, str]) -> None:
    """Let pyiceberg's catalog `default` be this one, in this process and in those that it starts."""
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG__")]:
        patch.delenv(name)
    for name, value in properties.items():
        variable = name.upper().replace(".", "__").replace("-", "_")
        patch.setenv(f"PYICEBERG_CATALOG__DEFAULT__{variable}", value)


def sqlite_catalog(folder: Path) -> dict[str, str]:
    """A catalog in a file, with its warehouse beside it."""
    (folder / "warehouse").mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


class CatalogHome(DeliveryHome):
    """Pipeline `p` with sinks `lake`, of `served`, and `log`, of the changelog; a namespace of its own."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.namespace = f"shop{uuid.uuid4().hex[:8]}"
        sinks = (
            f"{{lake: {{to: iceberg, table: {self.namespace}.totals, files: served, guarantee: effectively_once}}, "
            f"log: {{to: iceberg, table: {self.namespace}.log, files: changelog, guarantee: effectively_once}}}}"
        )
        super().__init__(root, sinks, **settings)
        self.states: dict[int, State] = {}
        self.running: Registrar | None = None

    def asked(self, sink: str = "lake") -> IcebergDelivery:
        found = self.definition.deliver[sink]
        assert isinstance(found, IcebergDelivery)
        return found

    def register(self, sink: str = "lake", *, again: bool = False) -> Delivered:
        """Register the newest version, as a new process does."""
        finish = threading.Event()
        finish.set()
        return Registrar(self.settings, "p", sink, self.asked(sink)).run(threading.Event(), finish, again=again)

    def keep_up(self) -> None:
        """Register with one registrar again and again, as the agent does; after an error there is a new one."""
        finish = threading.Event()
        finish.set()
        running, self.running = self.running or Registrar(self.settings, "p", "lake", self.asked()), None
        running.run(threading.Event(), finish)
        self.running = running

    def serve(self) -> None:
        """Build `served`."""
        rebuild_served(self.home, self.definition)

    def note_states(self) -> None:
        """Keep the rows of every version of `served`."""
        place = str(self.home.tables.served)
        for version in range(max(self.states, default=-1) + 1, self.newest() + 1):
            self.states[version] = state_of(
                Snapshot(self.home.tables.served, DeltaTable(place, version=version)).read()
            )

    def newest(self) -> int:
        """Return the newest version of `served`, by the names in its log: an erasure that removes others does not disturb it."""
        return Table(self.home.tables.served).newest_commit()

    def table(self, sink: str = "lake") -> IcebergTable:
        """The table as its catalog has it now."""
        return load_catalog("default", **catalog_properties()).load_table(self.asked(sink).table)

    def look(self) -> tuple[int, State]:
        """Return the version and the rows that a reader finds."""
        table = self.table()
        snapshot = table.metadata.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return int(snapshot.summary.additional_properties[VERSION]), state_of(table.scan().to_arrow())

    def shows_newest(self) -> bool:
        """Say whether a reader of the catalog finds the rows of the newest version."""
        rows = Table(self.home.tables.served).read()
        assert rows is not None
        return state_of(self.table().scan().to_arrow()) == state_of(rows)


def catalog_properties() -> dict[str, str]:
    found = Config().get_catalog_config("default")
    assert found is not None
    return {name: str(value) for name, value in found.items()}


def state_of(rows: pa.Table) -> State:
    return Counter(tuple(row.values()) for row in rows.select(COLUMNS).to_pylist())
