"""faults list, run, campaign, report: break the product on purpose, and let the oracle judge."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from rivertwice.cli.asking import changes_unasked
from rivertwice.cli.frame import DEFECT, Frame, FriendlyGroup, as_table, example, pass_frame
from rivertwice.core.errors import RequestError
from rivertwice.core.plain import to_plain

RESULTS = "campaign.jsonl"


@click.group(cls=FriendlyGroup, epilog=example("rivertwice faults list", "rivertwice faults run --case F4 --seed 7"))
def faults() -> None:
    """Break a stream on purpose; count what comes out wrong.

    Kills, zombies, damage; an oracle counts what is lost, duplicated or wrong.
    """


@faults.command("list", epilog=example("rivertwice faults list"))
@pass_frame
def faults_list(frame: Frame) -> None:
    """List the cases."""
    from lab.faults.cases import all_cases

    cases = all_cases()
    value = [{"case": each.name, "title": each.title, "seeds": each.seeds, "kills": each.kills} for each in cases]
    rows = [(each.name, each.title, each.seeds, each.kills, "yes" if each.quick else "") for each in cases]
    frame.emit(value, lambda: as_table(("case", "what is done", "seeds", "kills a run", "quick"), rows))


@faults.command("run", epilog=example("rivertwice faults run --case F4 --seed 7 --keep"))
@click.option("--case", "wanted", required=True, help="A case or fault id; several with commas.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Repeats exactly this run.")
@click.option("--keep", is_flag=True, help="Leave the run's folder for a look.")
@click.option("--control", is_flag=True, help="Let the control job go through it instead.")
@changes_unasked("a folder of the lab", because="nothing of a stream")
@pass_frame
def faults_run(frame: Frame, wanted: str, seed: int, keep: bool, control: bool) -> None:
    """Run cases once with one seed.

    Exit 3 if something is lost, duplicated, wrong or unexplained.
    """
    require_oracle()
    from lab.faults.campaign import broker_for, run_case, tell
    from lab.faults.cases import all_cases, select_cases
    from lab.faults.control_cases import control_cases
    from lab.faults.outcomes import CONTROL, OURS

    cases = all_cases()
    chosen = select_cases(control_cases(cases) if control else cases, wanted, exact=True)
    folder = _folder(frame)
    outcomes = []
    with broker_for(frame.settings, folder) as settings:
        for each in chosen:
            frame.progress(f"{each.name} seed {seed}: {each.title} ...")
            job = CONTROL if control else OURS
            outcomes.append(run_case(settings, each, seed, folder / "runs", job=job, keep=keep))
    text = "\n".join(f"{tell(each)}\n    {each.figures}" for each in outcomes)
    frame.emit({"outcomes": [to_plain(each) for each in outcomes]}, text)
    if not control and not all(each.ok for each in outcomes):
        raise SystemExit(DEFECT)


@faults.command(
    "campaign", epilog=example("rivertwice faults campaign --jobs 2", "rivertwice faults campaign --upto 500")
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Seeds of each case; default: the case's own number, one for the control job.",
)
@click.option("--upto", type=click.IntRange(1), help="Continue with further seeds until so many kills are planned.")
@click.option("--only", help="Cases or fault ids with all their variants, with commas.")
@click.option("--variants", is_flag=True, help="The variants of each fault too, not its first case alone.")
@click.option("--no-control", is_flag=True, help="Leave the control job out.")
@click.option("--jobs", type=click.IntRange(1, 16), default=1, show_default=True, help="Runs at the same time.")
@click.option("--across-commits", is_flag=True, help="Exact runs of other code count as done, too.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), help="File of the outcomes.")
@changes_unasked("outcomes of the lab", because="nothing of a stream")
@pass_frame
def faults_campaign(
    frame: Frame,
    seeds: int | None,
    upto: int | None,
    only: str | None,
    variants: bool,
    no_control: bool,
    jobs: int,
    across_commits: bool,
    results: Path | None,
) -> None:
    """Run a case of every fault with several seeds.

    It continues where the last campaign stopped. Exit 3 if a run was not exact. Only runs of this very code count as done: a campaign on other code begins again,
    unless it is to go on across commits; the report names the commit of each run.
    """
    require_oracle()
    from lab.faults.campaign import plan_campaign, run_campaign
    from lab.faults.cases import all_cases, main_cases, select_cases
    from lab.faults.control_cases import control_cases
    from lab.faults.outcomes import CONTROL, OURS, of_this_code, read_outcomes, wall_seconds

    folder = _folder(frame)
    results = results or folder / RESULTS
    cases = all_cases()
    every = control_cases(cases)
    chosen = select_cases(cases, only) if only or variants else main_cases(cases, every)
    faults_chosen = {each.fault for each in chosen}
    controls = [] if no_control else [each for each in every if each.fault in faults_chosen]
    known = read_outcomes(results)
    done = [each for each in known if each.ok or each.job == CONTROL] if across_commits else []
    planned = plan_campaign(chosen, controls, [*done, *of_this_code(known)], seeds=seeds, upto=upto)
    frame.progress(f"{len(planned)} runs, outcomes in {results}")
    run_campaign(frame.settings, planned, results, folder, say=frame.progress, jobs=jobs)
    recorded = of_this_code(read_outcomes(results))
    outcomes = [each for each in recorded if each.job == OURS]
    failed = [each for each in outcomes if not each.ok]
    kills = sum(each.kills for each in outcomes)
    wall = round(wall_seconds(recorded))
    value = {"runs": len(outcomes), "kills": kills, "failed": [to_plain(each) for each in failed], "wall_s": wall}
    frame.emit(
        value, f"{len(outcomes)} runs, {kills} kills, {len(failed)} not exact; {wall / 60:.0f} minutes of wall time"
    )
    if failed:
        raise SystemExit(DEFECT)


@faults.command("report", epilog=example("rivertwice faults report --file lab/docs/fault-report.md"))
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), help="File of the outcomes.")
@click.option("--file", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file instead.")
@changes_unasked("with --file a page", because="nothing of a stream")
@pass_frame
def faults_report(frame: Frame, results: Path | None, file: Path | None) -> None:
    """Print the results of campaigns as a page of Markdown.

    It says what was found, which code ran, and what each case did to it and to the control job.
    """
    from lab.faults.cases import all_cases
    from lab.faults.control_cases import CONTROL
    from lab.faults.outcomes import read_outcomes
    from lab.faults.report import render_report

    outcomes = read_outcomes(results or _folder(frame) / RESULTS)
    page = render_report([*CONTROL, *all_cases()], outcomes)
    if file is None:
        frame.emit({"outcomes": [to_plain(each) for each in outcomes]}, page.rstrip("\n"))
    else:
        file.write_text(page)
        frame.emit({"file": str(file), "runs": len(outcomes)}, f"wrote {file}: {len(outcomes)} runs")


def require_oracle() -> None:
    """Refuse to break anything if its outcome cannot be judged.

    Raises:
        RequestError: DuckDB, by which the oracle reads tables, is not installed.
    """
    if importlib.util.find_spec("duckdb") is None:
        message = "DuckDB is not installed, by which the oracle judges a run, so nothing was run; `make setup-dev` installs it"
        raise RequestError(message)


def _folder(frame: Frame) -> Path:
    return frame.settings.home / "faults"
