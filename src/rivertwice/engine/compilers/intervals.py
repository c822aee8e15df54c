"""Intervals: the stream keeps raw records, and one SQL statement computes each window's rows from them when it closes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rivertwice.definition import RECORD, Definition, Refusals
from rivertwice.engine.compilers.compiler import Compiler
from rivertwice.engine.compilers.tumbling_hopping import GroupedPlanCheck
from rivertwice.engine.interval_rows import (
    IntervalSink,
    RowsOf,
    VersionsAt,
    compute_interval_rows,
    interval_views,
    stream_intervals,
    view_schema,
)
from rivertwice.engine.plan_check import (
    SUBQUERIES,
    class_of,
    items,
    place_of,
    placed_expressions,
    plan_of,
    refusal_of_expression,
    tree,
)
from rivertwice.engine.relations import with_window_end
from rivertwice.engine.views import run_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Prove on Spark's analysed plan that an interval's rows depend only on records of one window, and on no order except a total one.
#
# Each view has a column with the start of the window that a record is seen in. If every join demands that both sides' starts are equal,
# every aggregation groups by the start and every OVER partitions by it, then records of two windows never meet. So one statement over
# the records of many windows gives the same result as one statement per window. Walks the plan through py4j.

_LEFT = ("Inner", "LeftOuter", "LeftSemi", "LeftAnti")
_RIGHT = ("Inner", "RightOuter")
_PLAIN = frozenset(
    {"Project", "Filter", "SubqueryAlias", "View", "WithCTE", "CTERelationDef", "Generate", "ResolvedHint"}
)
_TIE_SAFE = frozenset({"Rank", "DenseRank", "PercentRank", "CumeDist"})
_SORTS = frozenset({"ArraySort", "SortArray"})
_COLLECTS = frozenset({"CollectList", "CollectSet"})
_PICKS = frozenset({"First", "Last", "AnyValue", "NthValue", "CollectList", "MaxBy", "MinBy"})


def find_interval_refusals(result: DataFrame, definition: Definition) -> list[str]:
    """Return a sentence for each part of the plan of `result` that makes intervals inexact; empty if there is none."""
    return _Walk(definition).judge(plan_of(result))


class _Walk:
    """One walk over a plan, from its leaves up; follows the columns of the window's start by their ids."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._start = definition.window.start_column
        self._shared: dict[int, list[tuple[bool, bool]]] = {}
        self._records: set[int] = set()
        self.findings: list[str] = []

    def judge(self, root: Any) -> list[str]:
        starts = self._starts(root)
        start_ids = {attribute.exprId().id() for attribute in items(root.output()) if attribute.name() == self._start}
        if not start_ids & starts:
            self._say(
                f"the result's column {self._start!r} is not a view's own; take both window columns from one view, of a LEFT JOIN "
                "the left one",
                root,
            )
        for node in tree(root):
            for whole, expression in placed_expressions(node):
                why = refusal_of_expression(expression)
                if why not in (None, Refusals.ORDER, Refusals.DISTINCT) and (self._definition.compare or why.always):
                    self._say(f"{class_of(expression)} {why.cause}; {why.remedy}", expression, whole)
                if class_of(expression) in SUBQUERIES:
                    self._say(
                        f"the plan has a subquery ({class_of(expression)}); write it as a JOIN, LEFT SEMI or LEFT ANTI JOIN",
                        expression,
                        whole,
                    )
            for expression, whole in _unordered(node):
                self._say(
                    f"{class_of(expression)} {Refusals.ORDER.cause}; use it OVER (... ORDER BY ..., {RECORD}), or collect_list within "
                    "array_sort",
                    expression,
                    whole,
                )
        return list(dict.fromkeys(self.findings))

    def _say(self, finding: str, node: Any, whole: Any = None) -> None:
        self.findings.append(f"{place_of(node, whole)}{finding}")

    def _starts(self, node: Any) -> set[int]:
        """Return the ids of the node's columns that hold the start of the row's window."""
        kind = class_of(node)
        if kind == "WithCTE":
            for definition in items(node.cteDefs()):
                self._share(definition)
            return self._starts(node.plan())
        if kind == "CTERelationRef":
            return self._referred(node)
        children = list(items(node.children()))
        if not children:
            return self._leaf(node)
        below = [self._starts(child) for child in children]
        if kind == "Join":
            return self._joined(node, *below)
        if kind == "Union":
            return self._united(node, children, below)
        return self._kept(node, kind, set().union(*below))

    def _leaf(self, node: Any) -> set[int]:
        column_ids = {attribute.name(): attribute.exprId().id() for attribute in items(node.output())}
        self._records |= {column_ids[RECORD]} if RECORD in column_ids else set()
        return {column_ids[self._start]} if self._start in column_ids else set()

    def _kept(self, node: Any, kind: str, starts: set[int]) -> set[int]:
        """Return the starts that a node with one child passes on."""
        if kind == "Project":
            return self._passed(node.projectList(), starts)
        if kind == "Aggregate":
            if not _holds(node.groupingExpressions(), starts):
                self._say(
                    f"a GROUP BY leaves {self._start} out, so records of several windows would meet; group by it too",
                    node,
                )
            return self._passed(node.aggregateExpressions(), starts)
        if kind == "Window":
            self._check_window(node, starts)
        elif kind == "Distinct":
            if not starts & _ids(node.output()):
                self._say(
                    f"a DISTINCT leaves {self._start} out, so records of several windows would meet; select it too",
                    node,
                )
        elif kind not in _PLAIN:
            self._say(
                f"the plan has {kind}, for which no exact rule exists; use SELECT, JOIN, GROUP BY, OVER and UNION ALL",
                node,
            )
        return starts

    def _share(self, definition: Any) -> None:
        child = definition.child()
        starts = self._starts(child)
        columns = [attribute.exprId().id() for attribute in items(child.output())]
        self._shared[definition.id()] = [(column_id in starts, column_id in self._records) for column_id in columns]

    def _referred(self, node: Any) -> set[int]:
        marked = list(
            zip(
                (attribute.exprId().id() for attribute in items(node.output())), self._shared[node.cteId()], strict=True
            )
        )
        self._records |= {column_id for column_id, (_, is_record) in marked if is_record}
        return {column_id for column_id, (is_start, _) in marked if is_start}

    def _passed(self, named: Any, starts: set[int]) -> set[int]:
        """Return the starts among named expressions: plain references and their aliases. Record the records' column likewise."""
        passed_starts = set()
        for expression in items(named):
            source = expression.child() if class_of(expression) == "Alias" else expression
            if class_of(source) != "AttributeReference":
                continue
            if source.exprId().id() in self._records:
                self._records.add(expression.exprId().id())
            if source.exprId().id() in starts:
                passed_starts.add(expression.exprId().id())
        return passed_starts

    def _joined(self, node: Any, left: set[int], right: set[int]) -> set[int]:
        how = class_of(node.joinType())
        how = class_of(node.joinType().tpe()) if how in ("UsingJoin", "NaturalJoin") else how
        if how not in {*_LEFT, *_RIGHT}:
            self._say(f"the plan has a join of kind {how}; use JOIN, LEFT, RIGHT, LEFT SEMI or LEFT ANTI JOIN", node)
        condition = node.condition()
        terms = [] if condition.isEmpty() else _conjuncts(condition.get())
        equal = any(class_of(term) == "EqualTo" and _pairs(term, left, right) for term in terms)
        if not equal:
            self._say(
                f"a JOIN does not demand that {self._start} is the same on both sides, so records of two windows would meet; add "
                f"it to ON: l.{self._start} = r.{self._start}",
                node,
            )
        return (left if how in _LEFT else set()) | (right if how in _RIGHT else set())

    def _united(self, node: Any, children: list[Any], below: list[set[int]]) -> set[int]:
        columns = [[attribute.exprId().id() for attribute in items(child.output())] for child in children]
        return {
            attribute.exprId().id()
            for place, attribute in enumerate(items(node.output()))
            if all(ids[place] in starts for ids, starts in zip(columns, below, strict=True))
        }

    def _check_window(self, node: Any, starts: set[int]) -> None:
        if not _holds(node.partitionSpec(), starts):
            self._say(
                f"an OVER does not partition by {self._start}, so records of several windows would meet; add it", node
            )
        ordered = {
            attribute.exprId().id()
            for order in items(node.orderSpec())
            for attribute in items(order.references().toSeq())
        }
        if ordered & self._records:
            return
        for whole in items(node.windowExpressions()):
            for expression in tree(whole):
                name = _tied(expression) if class_of(expression) == "WindowExpression" else None
                if name is not None:
                    self._say(
                        f"{name} OVER depends on the order of rows that tie; end its ORDER BY with {RECORD}, which never ties",
                        expression,
                        whole,
                    )


def _tied(expression: Any) -> str | None:
    """Return the function of an OVER if rows that tie may change its result, else None."""
    function, frame = expression.windowFunction(), expression.windowSpec().frameSpecification()
    aggregates = class_of(function) == "AggregateExpression"
    name = class_of(function.aggregateFunction()) if aggregates else class_of(function)
    by_rows = class_of(frame) == "SpecifiedWindowFrame" and class_of(frame.frameType()) == "RowFrame"
    if name in _TIE_SAFE or (aggregates and not by_rows and name not in _PICKS):
        return None
    return name


def _unordered(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the functions of a node whose result depends on an undefined order of rows, each with its whole expression."""
    if class_of(node) == "Window":
        return
    remaining = [(whole, whole) for whole in items(node.expressions())]
    while remaining:
        expression, whole = remaining.pop()
        sorts = class_of(expression) in _SORTS
        inner = list(items(expression.children()))
        if (
            sorts
            and inner
            and class_of(inner[0]) == "AggregateExpression"
            and class_of(inner[0].aggregateFunction()) in _COLLECTS
        ):
            inner = list(items(inner[0].aggregateFunction().children()))
        if refusal_of_expression(expression) is Refusals.ORDER:
            yield expression, whole
        remaining.extend((child, whole) for child in inner)


def _ids(attributes: Any) -> set[int]:
    return {attribute.exprId().id() for attribute in items(attributes)}


def _holds(expressions: Any, starts: set[int]) -> bool:
    return any(
        class_of(expression) == "AttributeReference" and expression.exprId().id() in starts
        for expression in items(expressions)
    )


def _conjuncts(condition: Any) -> list[Any]:
    if class_of(condition) == "And":
        return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
    return [condition]


def _pairs(term: Any, left: set[int], right: set[int]) -> bool:
    sides = (term.left(), term.right())
    if any(class_of(side) != "AttributeReference" for side in sides):
        return False
    first_id, second_id = (side.exprId().id() for side in sides)
    return (first_id in left and second_id in right) or (first_id in right and second_id in left)


def interval_result(spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
    """Return the result over accepted rows of each view, window by window."""
    pairs = {view: with_window_end(rows[view], definition, view) for view in definition.streams}
    versions = {view: rows[view].withColumn("_index", F.lit(0)) for view in definition.tables}
    return compute_interval_rows(spark, definition, interval_views(definition, pairs, versions))


class IntervalPlanCheck(GroupedPlanCheck):
    """Judges a statement over the records of one window, which must not depend on those of another."""

    def plan(self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame]) -> DataFrame:
        """Return the statement's result over no rows of all the views that it sees."""
        del samples
        views = {view: spark.createDataFrame([], view_schema(definition, view)) for view in definition.sources}
        return run_views(spark, definition.transform_sql, views)

    def find_refusals(self, definition: Definition, plan: DataFrame) -> list[str]:
        """Return what could join records of two windows, or what depends on an order that is not total."""
        return find_interval_refusals(plan, definition)

    def run(
        self, spark: SparkSession, definition: Definition, samples: Mapping[str, DataFrame], plan: DataFrame
    ) -> DataFrame:
        """Return the result window by window."""
        del plan
        return interval_result(spark, definition, samples)


class IntervalCompiler(Compiler):
    """Raw records of a window in the state; Spark's SQL over them when it closes, as in batch."""

    plan_check = IntervalPlanCheck()

    def stream(self, spark: SparkSession, definition: Definition, branches: Mapping[str, DataFrame]) -> DataFrame:
        """Return the records of closed windows: `batch_rows` computes the result from them."""
        del spark
        return stream_intervals(definition, branches)

    def batch(self, spark: SparkSession, definition: Definition, rows: Mapping[str, DataFrame]) -> DataFrame:
        """Return the same result over the records of each window."""
        return interval_result(spark, definition, rows)

    frame_is_result = False

    def batch_rows(self, definition: Definition, versions: VersionsAt) -> RowsOf:
        """Return the function that computes the result from the records of closed windows."""
        return IntervalSink(definition, versions).rows
