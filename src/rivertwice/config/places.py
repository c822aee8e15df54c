"""Names that are safe in paths, and places: folders or addresses on S3."""

from __future__ import annotations

import re
from pathlib import Path

from rivertwice.errors import ConfigError

NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}\Z")
PIPELINE = re.compile(r"^[a-z0-9][a-z0-9_-]{0,63}(@v([2-9]|[1-9][0-9]{1,3}))?\Z")
"""Names of pipelines: a name, or `NAME@v2` for the second version of a pipeline's definition (`config.versions`)."""
TOPIC = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,248}\Z")
"""Names that Kafka allows for a topic, except with a leading dot or hyphen: so it is a safe part of a path, and no option."""

_ODD = re.compile(r"[%*?\[\]{}\\^|]")
"""Characters that Spark takes for a pattern of names, or that Delta cannot write into an address; each was tried."""

Place = Path | str
"""A local folder, or an `s3://bucket/prefix` as text."""


def is_s3(place: Place) -> bool:
    """Say whether a place is an address on S3, not a folder."""
    return str(place).startswith("s3://")


def below(place: Place, *parts: str) -> Place:
    """Return the place of `parts` under `place`."""
    return place.joinpath(*parts) if isinstance(place, Path) else "/".join([place.rstrip("/"), *parts])


def parse_place(text: str, setting: str = "the place") -> Place:
    """Return the place that a setting names: `s3://bucket/prefix`, or a folder.

    Args:
        text: the setting's value.
        setting: its variable, as messages name it.

    Raises:
        ConfigError: it is an address of another kind, or the name of the folder is not allowed.
    """
    if is_s3(text) and text.strip("/") != "s3:":
        return text.rstrip("/")
    if "://" in text:
        message = f"{setting} is {text!r}, which names no place, so nothing could be stored; write a folder or s3://bucket/prefix"
        raise ConfigError(message)
    return require_folder(Path(text).resolve())


def require_folder(path: Path) -> Path:
    """Return `path` if it can hold tables.

    Raises:
        ConfigError: Spark or Delta would read its name as another one.
    """
    odd = sorted(set(_ODD.findall(str(path))))
    if odd:
        message = (
            f"state cannot be stored in {str(path)!r}: Spark or Delta would misread {' '.join(odd)} in it, and not find "
            "their files; choose a folder without it (RIVERTWICE_HOME, --home)"
        )
        raise ConfigError(message)
    return path


def explain_topic(value: str) -> str:
    """Return why a text cannot name a topic, as a sentence."""
    return (
        f"{value[:80]!r} cannot name a topic; names start with a letter, a digit or _ and hold at most 249 of A-Z, a-z, 0-9, "
        "'.', _ and -"
    )


def require_topic(value: str) -> str:
    """Return `value` if it is a topic's name that is safe in paths (`TOPIC`).

    Raises:
        ConfigError: it is no such name.
    """
    if not TOPIC.match(value):
        raise ConfigError(explain_topic(value))
    return value


def require_name(value: str, what: str) -> str:
    """Return `value` if it is a safe opaque name (`^[a-z0-9][a-z0-9_-]{0,63}$`).

    Raises:
        ConfigError: the value could leave its folder or reach a shell or an expression.
    """
    if not NAME.match(value):
        message = (
            f"{value[:80]!r} cannot name a {what}; names start with a lower-case letter or digit and hold at most "
            "64 of a-z, 0-9, _ and -"
        )
        raise ConfigError(message)
    return value


def require_pipeline(value: str) -> str:
    """Return `value` if it is the name of a pipeline, or of a version of one (`PIPELINE`).

    Raises:
        ConfigError: it is no such name.
    """
    if not PIPELINE.match(value):
        require_name(value, "pipeline")
    return value
