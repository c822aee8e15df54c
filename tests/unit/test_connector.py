"""The connector's configuration and the pipelines that read its topics name the same things."""

from __future__ import annotations

import json

from homes.project import REPOSITORY
from rivertwice.definition.definition import load_definition

CONFIG = json.loads((REPOSITORY / "docker" / "debezium" / "prod-db.json").read_text())["config"]


def test_every_table_of_the_connector_is_read_as_change_events() -> None:
    tables = CONFIG["table.include.list"].split(",")
    assert tables == ["public.orders", "public.products"]
    for table, name in zip(tables, ("prod_orders", "prod_products"), strict=True):
        _, source = load_definition(REPOSITORY / "pipelines" / "examples" / name).source
        assert source.topic == f"{CONFIG['topic.prefix']}.{table}"
        assert (source.envelope, source.tombstones) == ("debezium", "delete")


def test_it_is_what_the_scenario_says_and_holds_no_secret() -> None:
    assert (CONFIG["plugin.name"], CONFIG["slot.name"], CONFIG["snapshot.mode"]) == (
        "pgoutput",
        "debezium_slot",
        "initial",
    )
    assert CONFIG["database.password"] == "${env:PROD_DB_PASSWORD}"
