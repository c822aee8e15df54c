"""Tables of an Iceberg catalog: which catalog a sink means, what an error of it says, and that no commit is repeated unseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.table import CreateTableTransaction, Table
from pyiceberg.utils.config import Config

from rivertwice.core import ConfigError, LostRaceError, RivertwiceError, ServiceError
from rivertwice.definition import IcebergDelivery

_NO_RETRIES = "commit.retry.num-retries"
"""pyiceberg would make a commit once more on top of another deliverer's, which may be the same one."""
PROPERTIES = {
    _NO_RETRIES: "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


_CLIENTS = ("pyiceberg", "sqlalchemy", "botocore", "requests")
"""Packages whose errors say that a catalog, or its store, did not answer."""


@dataclass(frozen=True)
class CatalogTable:
    """The table that a sink names in a catalog of pyiceberg's configuration."""

    pipeline: str
    sink: str
    asked: IcebergDelivery

    def load(self) -> Table | None:
        """Return the table as the catalog has it now, None if it has none."""
        catalog = self._catalog()
        try:
            return catalog.load_table(self.asked.table)
        except NoSuchTableError:
            return None

    def create(self, schema: pa.Schema, properties: Mapping[str, str]) -> CreateTableTransaction:
        """Begin to create the table, and create its namespace; `commit_transaction` makes the table."""
        catalog, namespace = self._catalog(), self.asked.table.rpartition(".")[0]
        try:
            catalog.create_namespace(namespace)
        except Exception:
            # Another sink was faster: a SQL catalog says so by its database's own error (pyiceberg 0.12).
            if not catalog.namespace_exists(namespace):
                raise
        return catalog.create_table_transaction(self.asked.table, schema, properties=dict(properties))

    def _catalog(self) -> Catalog:
        properties = Config().get_catalog_config(self.asked.catalog)
        if not properties:
            variable = f"PYICEBERG_CATALOG__{self.asked.catalog.upper()}__URI"
            message = (
                f"pyiceberg knows no catalog {self.asked.catalog!r}, so sink {self.sink} of {self.pipeline} has no table; set {variable} and "
                "what else the catalog needs in the environment of the agent, or write it into ~/.pyiceberg.yaml"
            )
            raise ConfigError(message)
        return load_catalog(self.asked.catalog, **{name: str(value) for name, value in properties.items()})

    def turned_away(self) -> str:
        """Return what is said to a deliverer whose commit came after another one's."""
        return (
            f"another deliverer writes to the {self.asked.place} of sink {self.sink} of {self.pipeline}; nothing of this step is there; run "
            "one deliverer per sink, see `rivertwice deliver status`"
        )

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Say of an error of the catalog or of the files whether the step can have been taken."""
        where = f"{self.asked.place} of sink {self.sink}"
        try:
            yield
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            raise LostRaceError(self.turned_away()) from error
        except CommitStateUnknownException as error:
            message = (
                f"no answer came to a commit to the {where}; its position shows the outcome when it is opened again"
            )
            raise ServiceError(message) from error
        except RivertwiceError:
            raise
        except Exception as error:
            if isinstance(error, ImportError | ValueError):
                text = " ".join(str(error).split())[:300]
                message = f"the {where} cannot be used ({type(error).__name__}: {text}); correct pyiceberg's configuration, then it resumes automatically"
                raise ConfigError(message) from None
            if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _CLIENTS:
                raise
            text = " ".join(str(error).split())[:300]
            message = (
                f"the {where} failed at {doing} ({type(error).__name__}: {text}); its position shows the outcome of the step when it is "
                "opened again; see the catalog of pyiceberg's configuration"
            )
            raise ServiceError(message) from None


def forbid_retries(table: Table) -> None:
    """Set the property back if somebody raised it; a commit goes by the properties that the table had when it was loaded."""
    if table.properties.get(_NO_RETRIES) != "0":
        with table.transaction() as change:
            change.set_properties({_NO_RETRIES: "0"})


def column_type(column: pa.Field) -> pa.DataType:
    """Return the type of the Iceberg column that holds a column's values.

    Raises:
        ConfigError: Iceberg has no such type.
    """
    kind = column.type
    for is_known, own in _OWN_TYPES:
        if is_known(kind):
            return own
    if pa.types.is_integer(kind):
        return pa.int64() if kind.bit_width == 64 else pa.int32()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", column_type(kind.value_field)))
    if pa.types.is_map(kind):
        return pa.map_(column_type(kind.key_field), column_type(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, column_type(each)) for each in kind])
    if any(check(kind) for check in (pa.types.is_boolean, pa.types.is_floating, pa.types.is_date, pa.types.is_decimal)):
        return kind
    message = (
        f"column {column.name} has type {kind}, which no Iceberg column is made for; leave the sink out, or cast it"
    )
    raise ConfigError(message)


_OWN_TYPES = (
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, pa.timestamp("us", "UTC")),
    (pa.types.is_timestamp, pa.timestamp("us")),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary, pa.binary()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
)
