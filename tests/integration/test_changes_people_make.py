"""Eight changes of a definition under a running stream, each by at most two commands: what people change, and what is served then."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from homes.project import replace_text
from running.own_folder import Run, own_folder

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.faults]
START, RECORDS = datetime(2026, 3, 2, tzinfo=UTC), 1_200


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run a command line in a folder of its own."""
    with own_folder(tmp_path / "own") as command:
        yield command


def write_sales(file: Path, first: int = 0) -> None:
    """Write sales, one a minute."""
    with file.open("w") as out:
        for n in range(first, first + RECORDS):
            at = (START + timedelta(minutes=n)).isoformat().replace("+00:00", "Z")
            sale = {
                "n": n,
                "at": at,
                "shop": f"s{n % 3}",
                "clerk": f"c{n % 5}",
                "cents": n * 7919 % 10_000,
                "test": n % 100 == 7,
            }
            out.write(json.dumps(sale) + "\n")


class Shop:
    """The running pipeline, and how a change comes to serve."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.folder, self.figures = run, folder, dict[str, float]()
        self.version = 1

    def edit(self, *changes: tuple[str, str, str]) -> None:
        for file, old, new in changes:
            replace_text(self.folder / "pipelines" / "sales" / file, old, new)

    def upgrade(self, name: str) -> None:
        """One command: the stream continues with the change."""
        plan = self.run("upgrade", "sales", "--unproved", "--dry-run")  # no DAG takes and proves savepoints here
        assert any(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in plan["diff"]), plan
        began = time.monotonic()
        self.run("upgrade", "sales", "--unproved", "--yes")
        self.figures[name] = time.monotonic() - began

    def serve(self, name: str, *accept: str, meanwhile: Callable[[str], object] = str) -> dict[str, int]:
        """Two commands: a version beside the one that serves, and the switch to it. Returns its verdicts."""
        self.version += 1
        began, version = time.monotonic(), f"sales@v{self.version}"
        self.run("upgrade", "sales", "--new-version", "--yes")
        meanwhile(version)
        if accept:
            self.run("version", "serve", version, "--yes", code=3)  # shows what would be served, and switches nothing
        done = self.run("version", "serve", version, *accept, "--yes")
        assert (done["version"], done["changed"]) == (version, True)
        self.figures[name] = time.monotonic() - began
        counts: dict[str, int] = self.run("reconcile", version)["counts"]["served"]
        if self.version > 2:
            old = f"sales@v{self.version - 1}"
            self.run("stop", old, "--wait")
            self.run("version", "drop", old, "--yes")
        return counts

    def rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = self.run("show", "sales", "--limit", "5000")["rows"]
        return rows


def test_what_people_change_takes_at_most_two_commands(
    run: Run, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    file = tmp_path / "sales.jsonl"
    write_sales(file)
    run(
        "init",
        "sales",
        "--from-file",
        str(file),
        "--key",
        "shop",
        "--columns",
        "cents:sum",
        "--window",
        "1 hour",
        "--watermark",
        "5 minutes",
    )
    run("up")
    run("start", "sales")
    run("send", "sales", str(file), "--close")
    shop = Shop(run, tmp_path / "own")
    hours = RECORDS // 60
    assert len(shop.rows()) == 3 * hours

    shop.edit(("pipeline.yaml", "    watermark: 5 minutes", "    watermark: 10 minutes"))
    shop.upgrade("another watermark")
    write_sales(file, RECORDS)
    run("send", "sales", str(file), "--close")
    rows_sql = tmp_path / "own" / "pipelines" / "sales" / "rows.sql"
    rows_sql.write_text("SELECT * FROM sales WHERE NOT test\n")
    shop.upgrade("a filter")
    write_sales(file, 2 * RECORDS)
    run("send", "sales", str(file), "--close")
    served = shop.rows()
    assert len(served) == 9 * hours
    assert sum(int(str(row["records"])) for row in served) == 3 * RECORDS - RECORDS // 100  # from the filter on
    report = run("reconcile", "sales")["counts"]
    assert (report["served"]["DEFECT"], report["stream"]["DEFECT"]) == (0, 0)

    rows_sql.unlink()
    shop.edit(("transform.sql", "  count(*) AS records", "  count(*) AS records,\n  max(cents) AS dearest"))
    shop.edit(
        ("pipeline.yaml", "  records: {compare: exact}", "  records: {compare: exact}\n  dearest: {compare: exact}")
    )
    counts = shop.serve("a column more", "--accept-different", "--reason", "the filter goes, too")
    assert (counts["DEFECT"], counts["AGREES"]) == (0, 9 * hours)
    assert sum(int(str(row["records"])) for row in shop.rows()) == 3 * RECORDS
    assert {"dearest"} <= set(shop.rows()[0])

    shop.edit(("transform.sql", "'1 hour'", "'2 hours'"), ("pipeline.yaml", "size: 1 hour", "size: 2 hours"))
    counts = shop.serve("another window", "--accept-different", "--reason", "two hours are enough")
    assert (counts["DEFECT"], counts["AGREES"]) == (0, 3 * 3 * hours // 2)

    shop.edit(("transform.sql", "  shop,\n", "  clerk,\n"), ("transform.sql", "'2 hours'), shop", "'2 hours'), clerk"))
    shop.edit(("pipeline.yaml", "keys: [shop]", "keys: [clerk]"))
    run(
        "upgrade", "sales", "--new-version", "--yes", code=1
    )  # before anything is computed: a suite names the key of before
    suites = tmp_path / "own" / "expectations"
    for version in range(4, 8):
        shutil.copytree(suites / "sales", suites / f"sales@v{version}")
        suite = suites / f"sales@v{version}" / "windows.json"
        suite.write_text(suite.read_text().replace('"shop"', '"clerk"'))
    counts = shop.serve("another key", "--accept-different", "--reason", "by clerk")
    assert (counts["DEFECT"], counts["AGREES"]) == (0, 5 * 3 * hours // 2)

    shop.edit(("pipeline.yaml", "      cents: bigint", "      cents: decimal(18,2)"))
    counts = shop.serve("another type", "--accept-different", "--reason", "cents may have parts")
    assert (counts["DEFECT"], counts["AGREES"]) == (0, 5 * 3 * hours // 2)

    shop.edit(("pipeline.yaml", "      clerk: string", "      clerk: string\n      seller: string"))
    shop.edit(("transform.sql", "  clerk,\n", "  coalesce(seller, clerk) AS clerk,\n"))
    shop.edit(("transform.sql", "'2 hours'), clerk", "'2 hours'), coalesce(seller, clerk)"))
    counts = shop.serve("a column renamed by the producer")
    assert (counts["DEFECT"], counts["AGREES"]) == (0, 5 * 3 * hours // 2)

    shop.edit(("pipeline.yaml", 'topic: "sales"', 'topic: "sales_eu"'))
    write_sales(file, 3 * RECORDS)
    counts = shop.serve(
        "another topic", "--accept-different", "--reason", "the shops of Europe",
        meanwhile=lambda version: run("send", version, str(file), "--close"),
    )  # fmt: skip
    assert (counts["DEFECT"], counts["AGREES"]) == (0, 5 * hours // 2)

    for name, seconds in shop.figures.items():
        record_property(name, round(seconds, 1))
