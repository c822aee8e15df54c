"""What Spark's analysed plan of a transform may hold. Walks the plan through py4j."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from rivertwice.pipeline.refusals import CLOCK, DISTINCT, JAVA, ORDER, PLACE, RANDOM, SKETCH, Refusal

ROW_NODES = frozenset({"Project", "Filter", "SubqueryAlias", "View", "WithCTE", "CTERelationDef", "CTERelationRef"})
RESULT_NODES = ROW_NODES | {"Aggregate"}
# Spark copies a row into each of its hopping windows. (Grouping sets do so too; they group by one expression more.)
HOPPING_NODES = frozenset({"Expand"})
_CLASSES: dict[str, Refusal] = {
    **dict.fromkeys(
        ("CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp", "CurrentBatchTimestamp"), CLOCK
    ),
    **dict.fromkeys(("CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone"), CLOCK),
    **dict.fromkeys(("Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle"), RANDOM),
    **dict.fromkeys(
        ("First", "Last", "AnyValue", "MaxBy", "MinBy", "CollectList", "CollectSet", "ListAgg", "Mode"), ORDER
    ),
    **dict.fromkeys(("ApproximatePercentile", "HyperLogLogPlusPlus", "CountMinSketchAgg"), SKETCH),
    **dict.fromkeys(("MonotonicallyIncreasingID", "SparkPartitionID", "InputFileName"), PLACE),
    **dict.fromkeys(("CallMethodViaReflection", "ScalaUDF", "PythonUDF", "PythonUDAF", "HiveSimpleUDF"), JAVA),
}
# Their result depends on the order of the additions, whatever the input's type.
_MOMENTS = frozenset(
    {"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis", "Corr", "CovPopulation"}
    | {"CovSample", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrSXX", "RegrSYY"}
)


def find_plan_refusals(frame: DataFrame, allowed: frozenset[str], *, compared: bool) -> list[str]:
    """Return a sentence for each thing in the analysed plan of `frame` that may not be there."""
    root = _plan(frame)
    found: list[str] = []
    for node in _tree(root):
        name = _class(node)
        if name not in allowed and node.children().size():
            found.append(
                f"the plan has {name}, for which no exact rule exists; use SELECT with GROUP BY over the source"
            )
        for expression in _expressions(node):
            why = _refusal(expression)
            if why is not None and (compared or why.always):
                found.append(f"{_class(expression)} {why.cause}; {why.remedy}")
    if sum(_class(node) == "Aggregate" for node in _tree(root)) > 1:
        found.append("the plan aggregates twice, for which no exact late rule exists; write one GROUP BY")
    return list(dict.fromkeys(found))


def leaf_columns(frame: DataFrame) -> list[list[str]]:
    """Return the column names of each relation that the plan of `frame` reads."""
    leaves = [node for node in _tree(_plan(frame)) if not node.children().size() and _class(node) != "CTERelationRef"]
    return [[attribute.name() for attribute in _items(node.output())] for node in leaves]


def grouping_sizes(frame: DataFrame) -> list[int]:
    """Return by how many expressions each aggregation in the plan of `frame` groups."""
    return [node.groupingExpressions().size() for node in _tree(_plan(frame)) if _class(node) == "Aggregate"]


def computed_keys(frame: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return which of `keys` are not plain fields of the relation that the plan of `frame` reads."""
    root = _plan(frame)
    fields: dict[int, str] = {}
    for node in _tree(root):
        if not node.children().size():
            fields |= {attribute.exprId().id(): attribute.name() for attribute in _items(node.output())}
    plain = {one.name() for one in _items(root.output()) if fields.get(one.exprId().id()) == one.name()}
    return [key for key in keys if key not in plain]


def inexact_columns(frame: DataFrame) -> set[str]:
    """Return the result columns whose value depends on the order in which floating-point numbers are added."""
    root = _plan(frame)
    tainted: set[int] = set()
    for node in reversed(list(_tree(root))):
        for expression in _items(node.expressions()):
            parts = list(_tree(expression))
            refers = {attribute.exprId().id() for attribute in _items(expression.references().toSeq())}
            if _class(expression) == "Alias" and (any(map(_adds_doubles, parts)) or refers & tainted):
                tainted.add(expression.exprId().id())
    return {attribute.name() for attribute in _items(root.output()) if attribute.exprId().id() in tainted}


def _refusal(expression: Any) -> Refusal | None:
    name = _class(expression)
    if name == "AggregateExpression" and expression.isDistinct():
        return DISTINCT
    if name in _CLASSES:
        return _CLASSES[name]
    if name.startswith(("Hll", "Kll", "Theta", "Bitmap", "Approx")):
        return SKETCH
    leaf = expression.children().size() == 0
    return RANDOM if leaf and not expression.deterministic() else None


def _adds_doubles(expression: Any) -> bool:
    name = _class(expression)
    if name in _MOMENTS:
        return True
    if name not in ("Sum", "Average"):
        return False
    kind = expression.children().apply(0).dataType().typeName()
    return kind in ("double", "float") or (name == "Average" and kind == "long")


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName()).rstrip("$")


def _items(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _tree(node: Any) -> Iterator[Any]:
    yield node
    for child in _items(node.children()):
        yield from _tree(child)


def _expressions(plan_node: Any) -> Iterator[Any]:
    for expression in _items(plan_node.expressions()):
        yield from _tree(expression)
