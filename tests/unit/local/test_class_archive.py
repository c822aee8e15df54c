"""The class archive: named after what it was made of, used when it is there, and never a reason to fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from homes.project import REPOSITORY, settings_with_a_jar
from rivertwice.core.settings import Settings
from rivertwice.definition.definition import load_definition
from rivertwice.engine import class_archive
from rivertwice.engine.class_archive import TRAINING, archive_file, class_options, train_archive
from rivertwice.engine.java import java_env
from rivertwice.engine.jvm import start_confs


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_with_a_jar(tmp_path)


def test_another_jar_has_another_archive(settings: Settings) -> None:
    before = archive_file(settings)
    assert archive_file(settings) == before
    (settings.spark_jars / "connector.jar").write_bytes(b"another")
    assert archive_file(settings) != before


def test_a_project_that_links_another_s_jars_shares_its_archive(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = tmp_path / "jars" / "spark-core.jar"
    spark.parent.mkdir()
    spark.write_bytes(b"core")
    monkeypatch.setattr(class_archive, "_spark_home", lambda: tmp_path)
    linked = Settings(project=tmp_path / "a folder before that of Spark's jars", home=tmp_path / "home")
    linked.project.mkdir()
    linked.build.symlink_to(settings.build)
    assert archive_file(linked).name == archive_file(settings).name


def test_spark_s_jars_put_there_anew_have_another_archive(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"core")
    monkeypatch.setattr(class_archive, "_spark_home", lambda: tmp_path)
    before = archive_file(settings)
    os.utime(jar, (1, 1))
    assert archive_file(settings) != before


def test_the_option_is_given_only_where_the_archive_is(settings: Settings) -> None:
    assert class_options(settings) == ""
    assert "SharedArchiveFile" not in start_confs(settings, [])["spark.driver.extraJavaOptions"]
    archive_file(settings).parent.mkdir(parents=True)
    archive_file(settings).write_bytes(b"classes")
    option = f"-XX:SharedArchiveFile={archive_file(settings)}"
    assert start_confs(settings, [])["spark.driver.extraJavaOptions"].endswith(option)


def test_an_archive_that_the_jvm_refuses_is_told_on_stderr(tmp_path: Path) -> None:
    """Stdout is a command's results; a JVM would say it there."""
    settings = Settings(REPOSITORY, tmp_path / "home")
    (found,) = settings.spark_jars.glob("commons-pool2*.jar")
    jar, archive = Path(shutil.copy(found, tmp_path)), tmp_path / "classes.jsa"
    java = [str(Path(java_env(settings)["JAVA_HOME"]) / "bin" / "java")]
    loads = ["-cp", str(jar), "org.apache.commons.pool2.PoolUtils"]  # it has no main: loaded, told, and left
    subprocess.run([*java, f"-XX:ArchiveClassesAtExit={archive}", *loads], check=False, capture_output=True)
    assert archive.exists()
    os.utime(jar, (1, 1))
    said = start_confs(settings, [])["spark.driver.extraJavaOptions"].split()
    own = [option for option in said if not option.startswith(("-XX:SharedArchiveFile", "-Dlog4j2"))]
    refused = [*java, *own, f"-XX:SharedArchiveFile={archive}", *loads]
    done = subprocess.run(refused, check=False, capture_output=True, text=True)
    assert done.stdout == ""
    assert "[warning][cds" in done.stderr
    assert "Main method not found" in done.stderr


def test_a_path_with_a_blank_is_left_out(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path / "a project", home=tmp_path / "home")
    archive_file(settings).parent.mkdir(parents=True)
    archive_file(settings).write_bytes(b"classes")
    assert class_options(settings) == ""


def test_a_training_that_fails_is_told_and_leaves_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Settings, archive: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([str(archive)], 1, "", "trace\nServiceError: no broker")

    monkeypatch.setattr(class_archive, "_training", refuse)
    assert train_archive(settings) == "none: ServiceError: no broker; starts take a few seconds longer"
    assert not archive_file(settings).exists()


def test_new_archives_take_the_place_of_old_ones_and_leave_those_of_other_environments(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = archive_file(settings).parent
    folder.mkdir(parents=True)
    for age in range(class_archive.KEPT):
        (folder / f"spark-000{age}.jsa").write_bytes(b"old")
        os.utime(folder / f"spark-000{age}.jsa", (1_000 - age, 1_000 - age))

    def dump(_: Settings, archive: Path) -> subprocess.CompletedProcess[str]:
        archive.write_bytes(b"x" * 2_000_000)
        return subprocess.CompletedProcess([str(archive)], 0, "", "")

    monkeypatch.setattr(class_archive, "_training", dump)
    assert train_archive(settings) == "2 MB"
    assert train_archive(settings) == "there"
    left = {f"spark-000{age}.jsa" for age in range(class_archive.KEPT - 1)}
    assert {each.name for each in folder.iterdir()} == {archive_file(settings).name, *left}


def test_the_training_run_is_part_of_the_product_and_its_pipeline_valid(tmp_path: Path) -> None:
    """It is run by its name, and a failure is only told: neither would be seen elsewhere."""
    training = import_module(TRAINING)
    (tmp_path / training.NAME).mkdir()
    for name, text in training.DEFINITION.items():
        (tmp_path / training.NAME / name).write_text(text)
    assert load_definition(tmp_path / training.NAME).columns.keys() == {"n", "total"}
