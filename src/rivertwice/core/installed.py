"""Files that rivertwice brings along (DAG files, jobs, suites, example pipelines, the plugin, locks), and the names of a pipeline's versions.

A project may have its own of each, and then that one counts. Else it is the one in the installed package, which the wheel holds in
`rivertwice/shipped`. A clone has them at its top level, from where the wheel takes them.
"""

from __future__ import annotations

from pathlib import Path

from rivertwice.core.errors import ConfigError

INSTALLED = Path(__file__).resolve().parent.parent / "shipped"
CLONE = Path(__file__).resolve().parents[3]
"""The clone that this package is run from, if it is run from one."""


def find_shipped(project: Path | None, name: str) -> Path:
    """Return the file or folder that counts for a project.

    Args:
        project: the user's project; None: a project cannot have its own.
        name: path below it, for instance `spark_jobs/reconcile.py` or `dags`.

    Raises:
        ConfigError: neither the project nor the package has it.
    """
    for place in (*([] if project is None else [project / name]), INSTALLED / name, CLONE / name):
        if place.exists():
            return place
    message = (
        f"{name} is neither in the project ({project}) nor in the installed package ({INSTALLED}); install "
        "rivertwice again"
    )
    raise ConfigError(message)


def is_clone(project: Path) -> bool:
    """Say whether a project is a clone of rivertwice, whose own locks say what belongs into its environment."""
    return (project / "locks").is_dir() and (project / "requirements.lock").is_file()


# Names of a pipeline's versions. Pure.
#
# The first version has the pipeline's own name, `flight_delays`; the others have a number: `flight_delays@v2`. Each has its own home,
# so a version can be named wherever a pipeline can.

MARK = "@v"
FIRST = 1


def split_version(name: str) -> tuple[str, int]:
    """Return the pipeline's name and the version's number."""
    base, mark, number = name.partition(MARK)
    return (base, int(number)) if mark else (base, FIRST)


def base_of(name: str) -> str:
    """Return the name of the pipeline that a version belongs to."""
    return split_version(name)[0]


def version_name(base: str, number: int) -> str:
    """Return the name of a version of a pipeline."""
    return base if number == FIRST else f"{base}{MARK}{number}"
