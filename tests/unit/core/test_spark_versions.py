from __future__ import annotations

import itertools

import pytest

from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.spark_versions import FEATURES, LINES, SparkVersion


@pytest.mark.parametrize(
    ("text", "line"), [("4.0.2", "4.0"), ("4.1.2", "4.1"), ("4.2.0", "4.2"), ("4.0.2+amzn.0", "4.0")]
)
def test_releases_of_a_line_are_one_to_us(text: str, line: str) -> None:
    assert SparkVersion(text).line == line
    assert SparkVersion(text).unsupported == ""


def test_a_line_without_jars_is_not_supported() -> None:
    for text in ("3.5.9", "4.3.0", "4.10.0"):
        assert f"Spark is {text}, and this rivertwice has jars for 4.0, 4.1, 4.2" in SparkVersion(text).unsupported


def test_the_newest_line_lacks_nothing_and_each_line_no_less_than_the_next() -> None:
    lacking = [SparkVersion(f"{line}.0").lacks for line in LINES]
    assert lacking[-1] == []
    for older, newer in itertools.pairwise(lacking):
        assert set(newer) <= set(older)
    assert all(since.line in LINES for since in FEATURES.values())


def test_what_a_version_lacks_is_refused_with_both_versions_and_a_remedy() -> None:
    SparkVersion("4.2.0").require("repartition", "a change", "do without")
    with pytest.raises(RequestError, match=r"^a change needs Spark 4\.2; this is 4\.1\.2; do without$"):
        SparkVersion("4.1.2").require("repartition", "a change", "do without")


def test_spark_s_streaming_classes_have_packages_since_4_1() -> None:
    names = [SparkVersion(f"{line}.2").streaming_class("runtime", "TERMINATED$") for line in LINES]
    root = "org.apache.spark.sql.execution.streaming"
    assert names == [f"{root}.TERMINATED$", *[f"{root}.runtime.TERMINATED$"] * 2]


def test_without_spark_the_line_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rivertwice.core.spark_versions.absence_of", lambda _: "this needs pyspark")
    with pytest.raises(ConfigError, match="this needs pyspark"):
        SparkVersion.installed()
