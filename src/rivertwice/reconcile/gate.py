"""The gate: which alerts a reconcile raises and whether it passes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rivertwice.core import counted, to_plain
from rivertwice.log import Part, name_parts
from rivertwice.reconcile.model import SERVED, Account, DefectFinding
from rivertwice.timeline import Verdict

CRITICAL = "critical"
WARNING = "warning"
QUALITY = "quality"
"""Kind of the alerts of users' own suites: the rows are what the log gives, the data are not what somebody expects."""
FOREIGN_WRITE = "foreign_write"
"""Kind of the warning that another program wrote to a table, though no row is wrong by it."""
DEAD_SHARE = "dead_share"
"""Kind of the warning that too many of the newest records are dead letters; also of the agent's rule."""
MOST_GAPS = 10  # each names offsets; the verdicts hold them all


@dataclass(frozen=True)
class GateAlert:
    """One thing a person should know.

    Attributes:
        severity: `critical` or `warning`.
        kind: stable word: defect, finding, gap, balance, late_share, not_comparable, nothing_compared, suite,
            suite_errored, quality, foreign_write, dead_share.
        pair: the pair whose rows it is about, `stream` or `served`; empty: it is about no single pair.
        repeats: kind of the gate's own alert that says the same; a person hears of it once.
    """

    severity: str
    kind: str
    message: str
    pair: str = ""
    repeats: str = ""


@dataclass(frozen=True)
class SuiteOutcome:
    """The result of a Great Expectations suite; an expectation that could not be run is errored, not failed."""

    name: str
    declared: int
    passed: int
    failed: tuple[GateAlert, ...] = ()
    errored: tuple[GateAlert, ...] = ()


@dataclass(frozen=True)
class GateInput:
    """What the gate decides on.

    Attributes:
        counts: pair to verdict to number of result rows.
        alert_share: late share above which a warning is raised, in total or in any one partition.
        older: pair to the rows among the NOT_COMPARABLE that need not be compared.
        compare: whether the definition asks for a comparison; where it does, a run that could compare nothing fails.
        acknowledged: pair to the words of a person who knows that nothing of it can be compared.
        dead: that too many of the newest records are dead letters, in words (`timeline.dead_summary`); empty: they are not.
    """

    counts: Mapping[str, Mapping[str, int]]
    total: Account
    partitions: Mapping[Part, Account]
    alert_share: float
    findings: Sequence[DefectFinding] = ()
    suites: Sequence[SuiteOutcome] = ()
    gaps: Sequence[str] = ()
    older: Mapping[str, int] = field(default_factory=dict)
    compare: bool = True
    acknowledged: Mapping[str, str] = field(default_factory=dict)
    dead: str = ""


@dataclass(frozen=True)
class Gate:
    """The decision: it passes unless a critical alert was raised."""

    alerts: tuple[GateAlert, ...] = ()
    suites: tuple[SuiteOutcome, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether no alert is critical."""
        return all(alert.severity != CRITICAL for alert in self.alerts)

    def with_alerts(self, alerts: Sequence[GateAlert]) -> Gate:
        """Return the gate with further alerts."""
        return replace(self, alerts=(*self.alerts, *alerts))

    def to_json(self) -> dict[str, Any]:
        """Return the gate as stored in `reconciles.gate`."""
        return {"passed": self.passed, **to_plain(self)}


def warn_of_foreign(gate: Gate, foreign: str | None, before: Mapping[str, Any] | None) -> Gate:
    """Return the gate of a run over everything with a warning of another program's commit, if it passes all the same.

    What did not pass has its own alerts, which name what is wrong. Nor is it news once its rows were repaired.

    Args:
        foreign: the commit, in words; None: there is none.
        before: the run before, as stored; if it saw the commit, a person has heard of it.
    """
    if foreign is None or not gate.passed or (before is not None and foreign in before["gate"].get("reason", "")):
        return gate
    message = f"{foreign}; everything was judged again, and no row is a DEFECT"
    return gate.with_alerts([GateAlert(WARNING, FOREIGN_WRITE, message)])


def decide_gate(report: GateInput) -> Gate:
    """Decide which alerts a reconcile raises."""
    alerts: list[GateAlert] = []
    for pair, counts in report.counts.items():
        if counts.get(Verdict.DEFECT):
            alerts.append(_defect(pair, counts[Verdict.DEFECT]))
        left_out = counts.get(Verdict.NOT_COMPARABLE, 0) - report.older.get(pair, 0)
        if left_out > 0:
            alerts.append(_not_comparable(pair, left_out, counts, report))
    alerts.extend(
        GateAlert(CRITICAL, "finding", finding.message, repeats=_repeated_by(finding, report.counts))
        for finding in report.findings
    )
    alerts.extend(GateAlert(WARNING, "gap", reason) for reason in report.gaps[:MOST_GAPS])
    alerts.extend(_balance_alerts(report))
    alerts.extend(dead_alerts(report.dead))
    for suite in report.suites:
        alerts.extend(suite.failed)
        alerts.extend(suite.errored)
    return Gate(tuple(alerts), tuple(report.suites))


def dead_alerts(dead: str) -> list[GateAlert]:
    """Return the warning that too many of the newest records are dead letters; none if the text is empty."""
    return [GateAlert(WARNING, DEAD_SHARE, dead)] if dead else []


def _defect(pair: str, rows: int) -> GateAlert:
    which = counted(rows, f"row of the pair {pair} is", f"rows of the pair {pair} are")
    message = f"{which} not what the log gives ({Verdict.DEFECT}); `rivertwice verdicts NAME --verdict {Verdict.DEFECT}` shows which"
    return GateAlert(CRITICAL, "defect", message, pair)


def _repeated_by(finding: DefectFinding, counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the kind of the alert that says the same as a finding: a served row that another program changed is a DEFECT, too."""
    return "defect" if finding.kind == SERVED and counts.get(SERVED, {}).get(Verdict.DEFECT) else ""


def _not_comparable(pair: str, rows: int, counts: Mapping[str, int], report: GateInput) -> GateAlert:
    """Return the alert about rows that cannot be compared: a warning, unless the run had to compare rows and compared none.

    It is a warning even then if a person has accepted it.
    """
    if report.compare and not any(counts.get(verdict) for verdict in (Verdict.AGREES, Verdict.LATE, Verdict.DEFECT)):
        if pair in report.acknowledged:
            message = f"none of the {rows} rows of the pair {pair} could be compared, as accepted by {report.acknowledged[pair]}"
            return GateAlert(WARNING, "not_comparable", message, pair)
        message = (
            f"none of the {rows} rows of the pair {pair} could be compared, so this run shows nothing about them; "
            "see the reasons with `rivertwice verdicts`, --verdict NOT_COMPARABLE; if they are known, its --accept lets "
            "the gate pass"
        )
        return GateAlert(CRITICAL, "nothing_compared", message, pair)
    return GateAlert(WARNING, "not_comparable", f"{rows} rows of the pair {pair} cannot be compared", pair)


def _balance_alerts(report: GateInput) -> list[GateAlert]:
    accounts = {"all partitions": report.total}
    accounts |= {f"partition {name}": report.partitions[part] for part, name in name_parts(report.partitions).items()}
    alerts = [
        GateAlert(CRITICAL, "balance", f"{account.unexplained} of {_describe_total(account)} of {name} have no cause")
        for name, account in accounts.items()
        if account.unexplained
    ]
    alerts.extend(
        GateAlert(
            WARNING,
            "late_share",
            f"{account.late_share:.1%} of the records of {name} came too late; the pipeline's limit is {report.alert_share:.1%}",
        )
        for name, account in accounts.items()
        if account.late_share > report.alert_share
    )
    return alerts


def _describe_total(account: Account) -> str:
    if account.windows == 1:
        return f"{account.read} records"
    return f"{account.read * account.windows} (record, window) pairs"
