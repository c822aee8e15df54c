"""Which extra of rivertwice brings a package that the base does without, and the refusal where it is absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rivertwice.core.errors import ConfigError

EXTRAS: dict[str, tuple[str, ...]] = {
    "spark": ("deltalake", "numpy", "pandas", "prometheus_client", "py4j", "pyarrow", "pyspark", "starlette", "uvicorn"),
    "quality": ("great_expectations",),
    "airflow": ("airflow",),
    "cloud": ("obstore",),
    "iceberg": ("pyiceberg",),
    "mcp": ("mcp",),
    "msk": ("aws_msk_iam_sasl_signer",),
    "openlineage": ("openlineage",),
    "otel": ("opentelemetry",),
    "polars": ("polars",),
    "postgres": ("psycopg",),
    "query": ("duckdb",),
    "s3": ("boto3", "botocore"),
}  # fmt: skip
"""Extra to the modules that rivertwice imports of it, as `pyproject.toml` has them."""


def absence_of(module: str) -> str:
    """Return that a module is not installed, with the line that installs its extra; empty: it is. Nothing is imported."""
    try:
        return _named(module) if find_spec(module) is None else ""
    except (ModuleNotFoundError, ValueError):  # a finder or `sys.modules` refuses it
        return _named(module)


@contextmanager
def naming_extras(*modules: str) -> Iterator[None]:
    """Refuse what needs a package that is absent, with the line that installs it.

    Args:
        modules: those that must be there before the block begins.

    Raises:
        ConfigError: one of them is absent, or the block imports one of an extra that is absent.
    """
    for absence in filter(None, map(absence_of, modules)):
        raise ConfigError(absence)
    try:
        yield
    except ModuleNotFoundError as error:
        absence = _named(str(error.name).replace("-", "_"))  # a distribution's version may be asked for, too
        if not absence:
            raise
        raise ConfigError(absence) from error


def _named(module: str) -> str:
    """Return the sentence about a module that is absent; empty if no extra has it. Pure."""
    top = module.partition(".")[0]
    extra = next((name for name, owned in EXTRAS.items() if top in owned), None)
    return (
        "" if extra is None else f"this needs {top}, which is not installed; run `uv pip install 'rivertwice[{extra}]'`"
    )
