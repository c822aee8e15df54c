"""Which Spark is installed, and what its version has and lacks: the one place that knows. No Spark is imported, none is started.

`docs/support.md` has the same as a table, with the tests that tried it.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rivertwice.core.errors import ConfigError, RequestError
from rivertwice.core.extras import absence_of

Feature = Literal[
    "arrow columns",
    "report without an end of the log",
    "packages of streaming",
    "repartition",
    "state read by ids",
    "zone of an arrow schema",
]


@dataclass(frozen=True)
class _Since:
    """Since which line Spark has a feature; what is done without it, empty if nobody sees that."""

    line: str
    without: str


FEATURES: dict[Feature, _Since] = {
    "packages of streaming": _Since("4.1", ""),
    "state read by ids": _Since("4.1", ""),
    "arrow columns": _Since(
        "4.1",
        "Protobuf records and patterns of rules are read by way of pandas: the same values for more CPU",
    ),
    "zone of an arrow schema": _Since("4.2", ""),
    "report without an end of the log": _Since("4.2", ""),
    "repartition": _Since(
        "4.2",
        "a state keeps its number of partitions: an upgrade to another stream.shuffle_partitions is refused",
    ),
}
LINES = ("4.0", "4.1", "4.2")
"""Those whose jars `locks/spark-kafka.json` has, and that `tests/integration/test_support_matrix.py` runs."""


@dataclass(frozen=True)
class SparkVersion:
    """A version of Spark.

    Attributes:
        text: as its package has it, for instance `4.1.2`.
    """

    REMEDY: ClassVar = "run `uv pip install 'pyspark>=4.0.2,<=4.2.0'`"
    text: str

    @classmethod
    def installed(cls) -> SparkVersion:
        """Return that of the installed `pyspark`.

        Raises:
            ConfigError: there is none.
        """
        if absence := absence_of("pyspark"):
            raise ConfigError(absence)
        return cls(importlib.metadata.version("pyspark"))

    @staticmethod
    def is_connect(session: Any) -> bool:
        """Say whether a session is one of a Spark Connect server: it has no JVM in reach, and no context."""
        return type(session).__module__.startswith("pyspark.sql.connect.")

    @classmethod
    def local_path(cls, session: Any, path: Any) -> str:
        """Return a path on a disk as a session takes it: without a scheme a server may take it for one of its own file system."""
        return f"file:{path}" if cls.is_connect(session) else str(path)

    @property
    def line(self) -> str:
        """Its first two numbers, `4.1`. Releases of one line differ in mended faults, and share jars."""
        return ".".join(self.text.split(".")[:2])

    @property
    def unsupported(self) -> str:
        """Why rivertwice does not run on it, with no remedy; empty if it does."""
        return (
            "" if self.line in LINES else f"Spark is {self.text}, and this rivertwice has jars for {', '.join(LINES)}"
        )

    @property
    def lacks(self) -> list[str]:
        """What is done without the features that it has not, a sentence for each."""
        missing = [since for name, since in FEATURES.items() if since.without and not self.has(name)]
        return [f"{since.without} (Spark {since.line} and later)" for since in missing]

    def has(self, feature: Feature) -> bool:
        """Say whether it has a feature."""
        return _numbers(self.line) >= _numbers(FEATURES[feature].line)

    def require(self, feature: Feature, wanted: str, remedy: str) -> None:
        """Refuse what cannot be done without a feature.

        Args:
            wanted: what needs it, as the subject of a sentence.
            remedy: what to do with this Spark, as an order.

        Raises:
            RequestError: it lacks the feature.
        """
        if not self.has(feature):
            message = f"{wanted} needs Spark {FEATURES[feature].line}; this is {self.text}; {remedy}"
            raise RequestError(message)

    @property
    def arrow_in_utc(self) -> dict[str, Any]:
        """What its `to_arrow_schema` is passed for timestamps in UTC, which older ones give without being told."""
        return {"timezone": "UTC"} if self.has("zone of an arrow schema") else {}

    def streaming_class(self, package: str, name: str) -> str:
        """Return the full name of a class of Spark's streaming; since 4.1 these lie in packages of their own."""
        inner = f"{package}." if self.has("packages of streaming") else ""
        return f"org.apache.spark.sql.execution.streaming.{inner}{name}"


def _numbers(line: str) -> tuple[int, ...]:
    return tuple(int(number) for number in line.split("."))
