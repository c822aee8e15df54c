from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from rivertwice.core.errors import ConfigError, ServiceError
from rivertwice.core.spark_versions import LINES, SparkVersion
from rivertwice.local import install
from rivertwice.local.install import Jar, fetch_jars, load_lock, select_strangers, select_wrong

GOOD = Jar("g", "good", "1", hashlib.sha256(b"good").hexdigest())
ABSENT = Jar("g", "absent", "2", "00")


def test_missing_and_damaged_jars_are_wrong_and_unnamed_ones_strangers() -> None:
    have = {"good-1.jar": GOOD.sha256, "absent-2.jar": "ff", "stray-3.jar": "aa"}
    assert select_wrong([GOOD, ABSENT], have) == [ABSENT]
    assert select_wrong([GOOD, ABSENT], {}) == [GOOD, ABSENT]
    assert select_strangers([GOOD, ABSENT], have) == ["stray-3.jar"]


def test_the_locks_name_each_jar_once(project: Path) -> None:
    for name, count in (("kafka-broker", 46), ("spark-kafka", 6), ("kafka-connect", 55), ("iceberg-rest", 28)):
        lock = load_lock(project / "locks" / f"{name}.json")
        assert len({jar.file_name for jar in lock}) == len(lock) == count
        assert all(len(jar.sha256) == 64 for jar in lock)


@pytest.mark.parametrize("line", LINES)
def test_each_jar_of_spark_is_of_the_line_that_runs_it(project: Path, line: str) -> None:
    lock = load_lock(project / "locks" / "spark-kafka.json", SparkVersion(f"{line}.2"))
    versions = {jar.artifact: jar.version for jar in lock if jar.group == "org.apache.spark"}
    assert (len(lock), len(versions)) == (6, 3)
    assert {SparkVersion(version).line for version in versions.values()} == {line}, versions


def test_a_spark_without_jars_in_the_lock_is_refused(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"Spark is 4\.3\.0, and this rivertwice has jars for 4\.0, .*uv pip install"):
        load_lock(project / "locks" / "spark-kafka.json", SparkVersion("4.3.0"))


def test_nothing_is_fetched_when_every_jar_is_right_and_strangers_go(tmp_path: Path) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(f'[{{"g": "g", "a": "good", "v": "1", "sha256": "{GOOD.sha256}"}}]')
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "good-1.jar").write_bytes(b"good")
    (folder / "stray-3.jar").write_bytes(b"stray")
    assert fetch_jars(lock, folder, {"JAVA_HOME": "/nowhere"}, cache=tmp_path / "ivy") == 0
    assert [path.name for path in folder.iterdir()] == ["good-1.jar"]


def test_a_jar_that_came_with_another_hash_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text('[{"g": "g", "a": "good", "v": "1", "sha256": "%s"}]' % ("0" * 64))
    folder = tmp_path / "jars"
    monkeypatch.setattr(install, "_run_ivy", lambda *_: (folder / "good-1.jar").write_bytes(b"other"))
    with pytest.raises(ServiceError, match=r"good-1\.jar"):
        fetch_jars(lock, folder, {"JAVA_HOME": "/nowhere"}, cache=tmp_path / "ivy")
    assert list(folder.iterdir()) == []


def test_jars_that_arrive_are_counted_while_ivy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_POLL_S", 0.05)
    jars = [Jar("g", name, "1", "0" * 64) for name in ("one", "two")]
    code = f"import time, pathlib; pathlib.Path({str(tmp_path / 'one-1.jar')!r}).touch(); time.sleep(1)"
    process = subprocess.Popen([sys.executable, "-c", code])
    lines: list[str] = []
    install._await(process, jars, tmp_path, lines.append)
    assert process.returncode == 0
    assert lines[-1] == "1 of 2 jars"
