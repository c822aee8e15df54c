"""Compare the direct pins of `requirements.txt` with the installed packages. Pure; the caller reads the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
