"""Compare what is wanted, pins of a clone or ranges of the package, with the installed packages. Pure; the caller reads the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;#]+)")


def normalized(name: str) -> str:
    """Return a package's name as packaging compares it: lower case, one dash between words."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_pins(text: str) -> dict[str, str]:
    """Return normalized name to version of the exact pins in a requirements file."""
    matches = (_PIN.match(line.strip()) for line in text.splitlines())
    return {normalized(pin.group(1)): pin.group(2) for pin in matches if pin}


def select_mismatched(pins: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return one text per package that is missing or has another version than its pin.

    `pyspark` and `pyspark-client` are pinned to one version: they own the same files, and whichever is installed last
    overwrites the other's.
    """
    wrong = []
    for name, wanted in sorted(pins.items()):
        actual = installed.get(name)
        if actual != wanted:
            wrong.append(f"{name} is {actual or 'not installed'}, not {wanted}")
    return wrong


def select_unfit(wanted: Iterable[str], installed: Mapping[str, str]) -> list[str]:
    """Return one text per package whose version does not fit a range.

    What only an extra needs may be missing; if it is installed, its version has to fit: the two pyspark packages are among these.

    Args:
        wanted: requirements as the metadata of a package has them, for instance `pyspark-client==4.2.*; extra == "airflow"`.
        installed: normalized name to version.
    """
    wrong = []
    for requirement in sorted(map(Requirement, wanted), key=lambda each: each.name):
        actual = installed.get(normalized(requirement.name))
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if (actual is None and is_needed) or (actual is not None and not requirement.specifier.contains(actual, True)):
            wrong.append(f"{requirement.name} is {actual or 'not installed'}, not {requirement.specifier}")
    return sorted(set(wrong))
