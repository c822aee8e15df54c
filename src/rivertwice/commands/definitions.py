"""pipelines, test: the definitions of a project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from rivertwice.commands.frame import DEFECT, REFUSED, Frame, as_table, example, pass_frame, to_plain
from rivertwice.commands.options import name_argument
from rivertwice.commands.warm import on_engine
from rivertwice.config import require_name


@click.command(epilog=example("rivertwice pipelines"))
@pass_frame
def pipelines(frame: Frame) -> None:
    """List the pipelines that the project defines.

    Topics, window and watermarks of each are shown. Exit 1 if a definition cannot be loaded.
    """
    from rivertwice.pipeline.definition import load_each

    definitions, broken = load_each(frame.settings.definitions)
    rows = []
    for name, definition in definitions.items():
        streams = definition.streams.values() if definition.window.kind.has_watermark else []
        delays = ", ".join(str(source.watermark) for source in streams) or "none"
        rows.append((name, ", ".join(definition.topics), definition.window.text, delays, ", ".join(definition.keys)))
    value: list[Any] = [
        item.model_dump(mode="json", exclude={"transform_sql", "rows_sql", "fold_py"}) for item in definitions.values()
    ]
    value += [{"name": name, "error": error} for name, error in broken.items()]
    headers, none = ("pipeline", "topic", "window", "watermark", "keys"), f"none in {frame.settings.definitions}"
    frame.emit(value, lambda: as_table(headers, rows) if value else f"{none}; run it in the project, or give --project")
    frame.report_broken(broken)
    if broken:
        raise SystemExit(REFUSED)


@click.command("test", epilog=example("rivertwice test", "rivertwice test flight_delays", "rivertwice test --examples"))
@name_argument(required=False)
@click.option("--examples", is_flag=True, help="Those in pipelines/examples/, which nothing starts, instead.")
@on_engine()
@pass_frame
def test_cases(frame: Frame, name: str | None, examples: bool) -> None:
    """Check definitions and run their cases.

    Without NAME all pipelines are checked. Each case runs as a stream and as a batch. Exit 3 if a definition is refused or a case fails; the others are run all the same.
    """
    from rivertwice.pipeline.engine import FEW_RECORDS, spark_on_demand
    from rivertwice.pipeline.files import YAML_FILE

    settings = frame.settings
    folder = settings.definitions / "examples" if examples else settings.definitions
    if name is None:
        in_folder = sorted(path.parent.name for path in folder.glob(f"*/{YAML_FILE}"))
        names = in_folder if examples else frame.chosen_pipelines(None)
    else:
        names = [require_name(name, "pipeline") if examples else frame.known_pipeline(name)]
    with spark_on_demand(settings.with_local_spark(), "rivertwice-test", extra=FEW_RECORDS, quick=True) as spark:
        results = [result for each in names for result in _test_one(frame, folder / each, spark)]
    failed = [result for result in results if result["differences"]]
    rows = [(result["pipeline"], result["case"], "FAILED" if result["differences"] else "passed") for result in results]
    text = as_table(("pipeline", "case", "result"), rows)
    for result in failed:
        text += f"\n{result['pipeline']}: {result['case']}: {'; '.join(result['differences'])}"
    frame.emit({"cases": results, "failed": len(failed)}, text)
    if failed:
        raise SystemExit(DEFECT)


def _test_one(frame: Frame, folder: Path, spark: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """Yield the result of a pipeline's definition, and of each of its cases if the definition holds."""
    from rivertwice.instants import utc_now
    from rivertwice.pipeline.cases import run_cases
    from rivertwice.pipeline.checked import judge_folder
    from rivertwice.pipeline.lint_model import HOLDS

    frame.progress(f"definition and cases of {folder.name} ...")
    judged = judge_folder(frame.settings, folder, spark, utc_now(), again=True)
    differences = [*judged.broken, *(judged.unchecked if judged.verdict is None else ())]
    yield {"pipeline": folder.name, "case": "(definition)", "state": judged.state, "differences": differences}
    if judged.bundle is None or judged.state != HOLDS:
        return
    for problem in judged.unchecked:
        frame.progress(f"{folder.name}: not checked: {problem}")
    for result in run_cases(spark(), folder, judged.bundle.definition):
        frame.progress(f"{result.case}: {'passed' if result.passed else 'FAILED'}")
        yield {"pipeline": folder.name, **to_plain(result)}
