"""Findings about the pitfalls that depend on the kind of windows. The base class is for windows written in SQL."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from rivertwice.definition.lint_finding import LintFinding, LintLevel
from rivertwice.definition.parts import format_duration
from rivertwice.definition.refusals import FunctionRefusal, Refusals, find_refused

if TYPE_CHECKING:
    from rivertwice.definition.lint_finding import CheckReport
    from rivertwice.definition.model import Definition

DAY = timedelta(days=1)
DEFINITION = "definition"
GLOBAL_ORDER = "global order assumed"
PROCESSING_TIME = "processing-time windows"
REPARTITION = "wrong repartition key"
LATE_DROPS = "unmeasured late drops"
UNBOUNDED = "unbounded state"
IDLE = "idle source"
FIT = "stream or batch"
ERRORS = "a value on which the code throws"


class WindowLint:
    """One method for each pitfall; each takes a definition, and the result of the checks of its plan or None.

    Attributes:
        per_window: whether the SQL sees the records of one window at a time, so that some functions depend on no order.
        grouped: what the SQL does with the keys, in words.
    """

    per_window: ClassVar[bool] = False
    grouped: ClassVar[str] = "are columns of the result, grouped by exactly"

    def loaded(self, definition: Definition) -> list[LintFinding]:
        """Return the findings for passed checks. The first one reports that the definition holds."""
        text = (
            f"Spark resolves every view, column and function, the result has the columns {', '.join(definition.result_columns)}, "
            "and the plan has no part for which stream and recompute could differ"
        )
        return [LintFinding(DEFINITION, LintLevel.HOLDS, text)]

    def order(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return P4: whether results depend on the order of rows."""
        return self._refused(definition, verdict, GLOBAL_ORDER, Refusals.ORDER, "depends on the order of rows")

    def clock(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return whether results depend on when they are computed."""
        return self._refused(definition, verdict, PROCESSING_TIME, Refusals.CLOCK, "reads the clock")

    def _refused(
        self, definition: Definition, verdict: CheckReport | None, check: str, why: FunctionRefusal, does: str
    ) -> LintFinding:
        """Judge by the text, and by Spark's plan where the checks ran, whether an SQL file has a function of a kind."""
        texts = [text for text in (definition.transform_sql, definition.rows_sql) if text]
        calls = [call for text in texts for call in find_refused(text, compared=True, per_window=self.per_window)]
        named = [name for name, cause in calls if cause is why]
        if named and not definition.compare:
            text = f"compare is false, and the SQL calls {', '.join(dict.fromkeys(named))}, which {does}"
            return LintFinding(
                check, LintLevel.BROKEN, text, f"{why.remedy.partition(', or')[0]}, and leave compare out"
            )
        if verdict is None or not verdict.holds:
            text = f"the text names no function that {does}; Spark's plan of it was not looked at"
            return LintFinding(
                check, LintLevel.NOT_CHECKED, text, f"run `rivertwice lint {definition.name}` where Spark starts"
            )
        if not definition.compare:
            return lifted(definition, check)
        return LintFinding(
            check, LintLevel.HOLDS, f"neither the text nor Spark's plan of it has a function that {does}"
        )

    def keys(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return P5: whether keys are columns, in the GROUP BY, and divide the records; how evenly, only the data shows."""
        name, keys = definition.name, ", ".join(definition.keys)
        if not keys:
            text = "keys is empty: all records of a window meet in one task, whatever the number of cores; how many, the data shows"
            return LintFinding(
                REPARTITION, LintLevel.NOT_CHECKED, text, f"{shows_lag(name)}; add a key if records are many"
            )
        if verdict is None or not verdict.holds:
            text = f"whether the result has the keys {keys} and groups by exactly them was not looked at"
            return LintFinding(
                REPARTITION, LintLevel.NOT_CHECKED, text, f"run `rivertwice lint {name}` where Spark starts"
            )
        if verdict.keys:
            text = "; ".join(f"key {key!r}: {why}" for key, why in verdict.keys.items())
            return LintFinding(REPARTITION, LintLevel.BROKEN, text, "group by a field that divides the records")
        return LintFinding(
            REPARTITION, LintLevel.HOLDS, f"{keys} {self.grouped}; none is constant or the event time itself"
        )

    def late_measured(self, definition: Definition) -> LintFinding:
        """Return whether late records are counted."""
        if not definition.compare:
            return LintFinding(
                LATE_DROPS,
                LintLevel.BROKEN,
                "compare is false: late records are dropped and not counted",
                "let the pipeline be compared, or count late records elsewhere",
            )
        text = (
            "compare is on, so a reconcile names every late record by address; late.alert_share is "
            f"{definition.late.alert_share:g}, per partition too"
        )
        return LintFinding(LATE_DROPS, LintLevel.HOLDS, text)

    def state_bound(self, definition: Definition) -> LintFinding:
        """Return P8: windows close by the watermark, which a silent source can hold back."""
        window = definition.window
        if len(definition.streams) > 1 and definition.watermark_policy == "min":
            text = "windows close when the slowest source has passed them: one that falls silent keeps all; whether one does, the data shows"
            remedy = f"{shows_state(definition.name)}; or say watermark_policy: max"
            return LintFinding(UNBOUNDED, LintLevel.NOT_CHECKED, text, remedy)
        ahead = max(source.watermark + source.max_future for source in definition.streams.values())
        at_once = math.ceil((window.length + ahead) / window.step) + 1
        text = (
            f"at most about {at_once} windows per key are open at once (length, watermark and max_future over "
            f"{format_duration(window.step)}); then the watermark closes them"
        )
        return LintFinding(UNBOUNDED, LintLevel.HOLDS, text)

    def idle_source(self, definition: Definition) -> list[LintFinding]:
        """Return the effect of a silent source on the watermark; empty if there is only one source."""
        if len(definition.streams) == 1:
            return []
        shows = f"`rivertwice status {definition.name} --why` names a silent one"
        if definition.watermark_policy == "min":
            text = "the slowest source holds the watermark back, so a source that falls silent keeps every window open"
            remedy = f"{shows}; let it send a record now and then, or say watermark_policy: max"
            return [LintFinding(IDLE, LintLevel.NOT_CHECKED, text, remedy)]
        text = "the fastest source drives the watermark, so records of a slower one are dropped as late"
        remedy = f"{shows}; say watermark_policy: min if no source may lose records to another"
        return [LintFinding(IDLE, LintLevel.NOT_CHECKED, text, remedy)]

    def errors(self, definition: Definition, verdict: CheckReport | None) -> LintFinding:
        """Return whether a value can stop the stream: by a record on which the SQL throws, or by several together."""
        if definition.on_error == "stop":
            text = "on_error is stop: a record on which the SQL throws stops the stream, at every start"
            return LintFinding(ERRORS, LintLevel.WARNS, text, "leave on_error out; then such a record is a dead letter")
        if verdict is None or not verdict.holds:
            text = "whether several records together can make the SQL throw was not looked at"
            return LintFinding(
                ERRORS, LintLevel.NOT_CHECKED, text, f"run `rivertwice lint {definition.name}` where Spark starts"
            )
        if verdict.risks:
            remedy = (
                "bound the fields by range rules, or sum a DECIMAL of at most 28 digits: CAST(field AS DECIMAL(28, 0)); where NULL is "
                "a right result, write try_sum, try_divide or try_cast"
            )
            return LintFinding(
                ERRORS, LintLevel.WARNS, f"this would stop the stream: {'; '.join(verdict.risks)}", remedy
            )
        text = "a record on which the SQL throws is a dead letter (transform), and nothing was found on which only several throw"
        return LintFinding(ERRORS, LintLevel.HOLDS, text)

    def fit(self, definition: Definition) -> LintFinding:
        """Return whether a daily batch would give the same rows in time."""
        window, limit = definition.window.length, definition.alerts.latency
        if window >= DAY and (limit is None or limit >= timedelta(hours=1)):
            return LintFinding(
                FIT,
                LintLevel.NOT_CHECKED,
                f"windows of {format_duration(window)} and no promise of latency below an hour: a daily batch gives the same rows; "
                "whether somebody reads open windows is not in a definition",
                f"if nobody does, keep the definition and run only `rivertwice backfill run {definition.name}`",
            )
        text = f"windows of {format_duration(window)} end soon: no daily batch gives their rows in time"
        return LintFinding(FIT, LintLevel.HOLDS, text)

    def effect_of_partitions(self, definition: Definition) -> str | None:
        """Return what partitions that are added while the stream runs do to the results; None: nothing."""
        del definition
        return None

    def remedy_for_partitions(self, partitions: int) -> str:
        """Return what to do about a topic that now has more partitions than the definition declares."""
        return f"write partitions: {partitions}; results do not depend on order here, readers of the topic may"


def lifted(definition: Definition, check: str) -> LintFinding:
    """Return the finding that `compare: false` lifts a refusal, so the plan was not checked."""
    text = "compare is false, so a function that a recompute would not repeat is not refused in the plan"
    remedy = f"leave compare out, then run `rivertwice lint {definition.name}`"
    return LintFinding(check, LintLevel.NOT_CHECKED, text, remedy)


def shows_lag(name: str) -> str:
    """Return which command shows whether keys divide the work."""
    return f"`rivertwice status {name} --why` shows a stream that cannot follow"


def shows_state(name: str) -> str:
    """Return which command shows how large the state is."""
    return f"`rivertwice agent metrics {name}` shows the rows and bytes of the state"
