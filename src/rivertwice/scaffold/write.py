"""The files of a project: which there are, and writing those that are absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rivertwice.config.shipped import find_shipped
from rivertwice.scaffold import texts
from rivertwice.scaffold.first_case import make_cases
from rivertwice.scaffold.first_suite import make_suite, suite_path
from rivertwice.scaffold.guess import YAML, Guess, Wishes, make_guess
from rivertwice.scaffold.orders import BATCH, TOPIC, orders_sample, orders_text
from rivertwice.scaffold.produce import SAMPLE_FILE
from rivertwice.scaffold.render import render_sql, render_yaml

SUITES = ("expectations/balance.json", "expectations/verdicts.json")


@dataclass(frozen=True)
class WrittenFile:
    """One file of a project.

    Attributes:
        path: below the project.
        text: what is written, or would be.
        state: `written`, `would be written`, `exists` (it was left as it is), or `left out` (its pipeline exists without it).
    """

    path: str
    text: str
    state: str


def pipeline_files(guess: Guess, zone: str | None) -> dict[str, str]:
    """Return the files of a guessed pipeline: path below the project to text."""
    folder = f"pipelines/{guess.name}"
    files = {
        f"{folder}/pipeline.yaml": render_yaml(guess),
        f"{folder}/transform.sql": render_sql(guess),
        **{f"{folder}/{path}": text for path, text in guess.sample.encoding.files.items()},
        **{f"{folder}/cases/{name}": text for name, text in make_cases(guess).items()},
        suite_path(guess.name): make_suite(guess),
    }
    return files | ({f"{folder}/produce.py": texts.render_produce(guess, zone)} if guess.sample.is_file else {})


def sample_files() -> tuple[Guess, dict[str, str]]:
    """Return the guess of the generated sample and the files of its pipeline, with the records that `rivertwice up --sample` sends."""
    text = orders_text()
    guess = make_guess(TOPIC, orders_sample(text), Wishes())
    files = pipeline_files(guess, None)
    folder = f"pipelines/{guess.name}"
    del files[f"{folder}/produce.py"]  # `rivertwice up --sample` sends the records
    files[f"{folder}/{YAML}"] += (
        "\n# Small batches, so that the sample has several: a record is late by the watermark of the batch before its own.\n"
        f"stream: {{max_offsets_per_trigger: {BATCH}}}\n"
    )
    return guess, files | {f"{folder}/{SAMPLE_FILE}": text}


def project_files(guess: Guess | None, project: Path, *, has_sample: bool = False) -> dict[str, str]:
    """Return the files around the pipelines: path below the project to text."""
    return {
        "rivertwice.yaml": texts.SETTINGS,
        "README.md": texts.render_readme(guess, has_sample=has_sample),
        **{name: find_shipped(project, name).read_text(encoding="utf-8") for name in SUITES},
        "expectations/README.md": texts.EXPECTATIONS,
        "docker-compose.yml": texts.COMPOSE,
        ".github/workflows/rivertwice.yml": texts.CI,
        ".gitignore": texts.GITIGNORE,
    }


def write_files(project: Path, files: Mapping[str, str], *, dry_run: bool) -> list[WrittenFile]:
    """Write the files that are absent, and return all of them. No file that exists is changed.

    A pipeline whose `pipeline.yaml` exists is left as it is: what it lacks would belong to another guess.
    """
    kept = {path.removesuffix(YAML) for path in files if path.endswith(f"/{YAML}") and (project / path).exists()}
    kept |= {suite_path(Path(folder).name) for folder in kept}
    # pipeline.yaml comes last: a run that is interrupted before it is completed by the next one.
    ordered = sorted(files.items(), key=lambda item: item[0].endswith(f"/{YAML}"))
    written = []
    for path, text in ordered:
        target = project / path
        if target.exists():
            state = "exists"
        elif any(path.startswith(folder) for folder in kept):
            state = "left out"
        else:
            state = "would be written" if dry_run else _write(target, text)
        written.append(WrittenFile(path, text, state))
    return written


def _write(target: Path, text: str) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return "exists"
    return "written"
