"""`rivertwice send`: a file is read twice, once to check and digest it and once to send it."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from histories.kinds import definition_files
from homes.project import make_project
from rivertwice.cli.main import cli
from rivertwice.core.settings import Settings
from rivertwice.local import produce
from rivertwice.local.read_file import DigestedFile, file_lines, sniff
from rivertwice.log.send import Sent

ROWS = [{"k": f"key {n}", "at": f"2026-01-01T{n % 24:02}:00:00Z", "x": n} for n in range(20_000)]
CSV = "k,at,x\n" + "".join(f"{row['k']},{row['at']},{row['x']}\n" for row in ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=4_000, compression="none", use_dictionary=False)


def write_packed(path: Path) -> None:
    with pa.output_stream(str(path), compression="zstd") as file:
        file.write(CSV.encode())


FILES: dict[str, Callable[[Path], Any]] = {
    "f.csv": lambda path: path.write_text(CSV),
    "f.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV.encode(), 1)),
    "f.csv.zst": write_packed,
    "f.jsonl": lambda path: path.write_text(LINES),
    "f.json": lambda path: path.write_text(f"[{','.join(LINES.splitlines())}]{' ' * 700_000}"),
    "f.parquet": write_parquet,
}


def bytes_read() -> int:
    """Return how many bytes this process has read of files, whatever read them."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let Kafka be a list of the records that were sent."""
    records: list[Any] = []

    def send(_: Settings, __: str, chunk: list[Any]) -> list[Sent]:
        records.extend(chunk)
        return []

    monkeypatch.setattr(produce, "send_records", send)
    monkeypatch.setattr(produce.kafka, "end_offsets", lambda *_: {0: 0})
    monkeypatch.setattr(produce.kafka, "topic_id", lambda *_: "topic id")
    monkeypatch.setattr("rivertwice.definition.topics.create_topics", lambda *_: None)
    return records


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_once_to_check_it_and_once_to_send_it(tmp_path: Path, sent: list[Any], name: str) -> None:
    settings = make_project(tmp_path / "project", {"histories": definition_files("tumbling")})
    path = tmp_path / name
    FILES[name](path)
    next(file_lines(path, sniff(path)))  # what reads it is imported
    before = bytes_read()
    sniff(path)
    sniffed = bytes_read() - before
    words = ["--output", "json", "send", "histories", str(path)]
    result = CliRunner().invoke(cli, words, env=settings.to_env())
    read = bytes_read() - before - 2 * sniffed
    assert result.exit_code == 0, result.output
    assert [json.loads(record.value) for record in sent] == ROWS
    assert read < 2.3 * path.stat().st_size
    assert json.loads(result.stdout)["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_record_is_sent_if_the_last_line_holds_none(tmp_path: Path, sent: list[Any]) -> None:
    settings = make_project(tmp_path / "project", {"histories": definition_files("tumbling")})
    (tmp_path / "f.csv").write_text(CSV + "1,2,3,4\n")
    result = CliRunner().invoke(cli, ["send", "histories", str(tmp_path / "f.csv")], env=settings.to_env())
    assert (result.exit_code, sent) == (1, []), result.output
    assert f"line {len(ROWS) + 2:,}: 4 fields, and the header names 3" in result.stderr


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120)), max_size=12))
def test_the_digest_is_that_of_all_bytes_in_whatever_order_they_are_read(reads: list[tuple[int, int]]) -> None:
    data = bytes(range(100))
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "f").write_bytes(data)
        with DigestedFile(path) as file:
            for start, count in reads:
                file.seek(start)
                assert file.read(count) == data[start : start + count]
        assert file.sha256() == hashlib.sha256(data).hexdigest()
