"""`rivertwice.yaml`: a project's settings, which the environment overrides."""

from __future__ import annotations

from pathlib import Path

import pytest

from rivertwice.core.errors import ConfigError
from rivertwice.core.settings import Settings


def settings_of(folder: Path, text: str, **env: str) -> Settings:
    (folder / "rivertwice.yaml").write_text(text)
    return Settings.from_env({"RIVERTWICE_PROJECT": str(folder), **env})


def test_the_file_says_what_no_variable_says(tmp_path: Path) -> None:
    text = "bootstrap: broker:9092\nspark_master: local[3]\nhome: state\nverdicts_kept: 7 days\n"
    settings = settings_of(tmp_path, text, RIVERTWICE_SPARK_MASTER="local[1]")
    assert settings.bootstrap == "broker:9092"
    assert settings.spark_master == "local[1]"
    assert settings.home == tmp_path / "state"
    assert settings.verdicts_kept.days == 7


def test_kafka_has_its_own_mapping(tmp_path: Path) -> None:
    text = "kafka: {protocol: SASL_SSL, mechanism: PLAIN, username: ann, password_file: secrets/kafka}\n"
    kafka = settings_of(tmp_path, text).kafka
    assert (kafka.protocol, kafka.username) == ("SASL_SSL", "ann")
    assert kafka.password_file == tmp_path / "secrets" / "kafka"


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "# later\n") == Settings.from_env({"RIVERTWICE_PROJECT": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bootstap: x", r"bootstap is an unknown setting; did you mean bootstrap\?"),
        ("kafka: {protocoll: SSL}", r"kafka\.protocoll is an unknown setting.*did you mean kafka\.protocol\?"),
        ("kafka: {password: x}", r"kafka\.password would be a secret.*RIVERTWICE_KAFKA_PASSWORD"),
        ("bootstrap: [a, b]", r"bootstrap is \['a', 'b'\].*write one text"),
        ("- bootstrap", r"the file is \['bootstrap'\].*write keys with values"),
        ("bootstrap: 'x", r"cannot be read, so no setting of the project is known: .*line 1, column 12"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        settings_of(tmp_path, text)
    assert str(tmp_path / "rivertwice.yaml") in str(refused.value)
