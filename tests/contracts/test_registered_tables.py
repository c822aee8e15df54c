"""A catalog names the files of a table in an object store: the newest version, read by others from the store."""

from __future__ import annotations

import uuid

import pytest

from contracts.conftest import BUCKET, World
from homes.catalogs import CatalogHome, sqlite_catalog, use_catalog
from homes.delivery import fill
from rivertwice.storage.table_care import TableCare


@pytest.mark.long
@pytest.mark.proves("howto-delivery.md#without-a-copy")
def test_a_table_in_an_object_store_is_read_through_a_catalog(
    best_s3: World, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
    store = {
        "s3.endpoint": best_s3.env["AWS_ENDPOINT_URL"],
        "s3.access-key-id": best_s3.keys["aws_access_key_id"],
        "s3.secret-access-key": best_s3.keys["aws_secret_access_key"],
        "s3.region": "us-east-1",
    }
    use_catalog(monkeypatch, {**sqlite_catalog(tmp_path), "warehouse": f"{root}/warehouse", **store})
    world = CatalogHome(tmp_path, shared=root)
    fill(world, "t1", range(4), keys=3)
    world.serve()
    world.register()
    assert world.shows_newest()
    world.publish(1, 3, [(1, "k00000", 7), (2, "new", 1)])
    world.begin("t2", ("t1", 2))
    fill(world, "t2", range(3, 5), keys=2)
    world.move_head("t2")
    world.serve()
    TableCare(world.home.tables.served).compact()
    world.register()
    assert world.shows_newest()
    assert all(task.file.file_path.startswith(f"{root}/pipelines/p/") for task in world.table().scan().plan_files())
    world.register("log")
    assert world.table("log").scan().to_arrow().num_rows == 16
