"""The flight pipeline's files, for tests that change a copy of them."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FLIGHTS = REPOSITORY / "pipelines" / "flight_delays"


def replace(path: Path, old: str, new: str) -> None:
    """Replace the first `old` in a file, which must be there."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
