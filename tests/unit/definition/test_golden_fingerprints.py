"""Each definition of the repository hashes to what it did: a stream that runs would refuse its state otherwise.

After a change on purpose, or for a new definition, run `PYTHONPATH=tests python -m unit.pipeline.test_golden_fingerprints`.
"""

from __future__ import annotations

import json
from pathlib import Path

from homes.project import REPOSITORY
from rivertwice.definition.definition import load_definition
from rivertwice.definition.fingerprint import fingerprint_of

GOLDEN = REPOSITORY / "tests" / "golden" / "fingerprints.json"
ROOTS = (
    "pipelines",
    "pipelines/examples",
    "lab/faults/pipelines",
    *(f"tests/golden/{name}/project/pipelines" for name in ("fold-v2", "savepoint-v1", "savepoint-v2")),
)


def hashes() -> dict[str, dict[str, str]]:
    folders = sorted(path.parent for root in ROOTS for path in (REPOSITORY / root).glob("*/pipeline.yaml"))
    return {str(Path(each).relative_to(REPOSITORY)): fingerprint_of(load_definition(each)).hashes() for each in folders}


def test_each_definition_has_the_fingerprint_that_it_had() -> None:
    now, golden = hashes(), json.loads(GOLDEN.read_text())
    assert len(now) > 50
    assert {name for name in now if now[name] != golden.get(name)} == set()
    assert now.keys() == golden.keys()


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(hashes(), indent=1, sort_keys=True) + "\n")
