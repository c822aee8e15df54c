"""Checks of Spark's analysed plan of a transform. Walks the plan through py4j."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rivertwice.definition import FunctionRefusal, Refusals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW_NODES = frozenset({"Project", "Filter", "SubqueryAlias", "View", "WithCTE", "CTERelationDef", "CTERelationRef"})
RESULT_NODES = ROW_NODES | {"Aggregate"}
# Spark copies a row into each of its hopping windows. (Grouping sets do so too; they group by one expression more.)
HOPPING_NODES = frozenset({"Expand"})
_CLASSES: dict[str, FunctionRefusal] = {
    **dict.fromkeys(
        ("CurrentTimestamp", "Now", "CurrentDate", "CurrentTime", "LocalTimestamp", "CurrentBatchTimestamp"),
        Refusals.CLOCK,
    ),
    **dict.fromkeys(("CurrentUser", "CurrentDatabase", "CurrentCatalog", "CurrentTimeZone"), Refusals.CLOCK),
    "SparkVersion": Refusals.WHO,
    **dict.fromkeys(("Rand", "Randn", "RandStr", "Uniform", "Uuid", "Shuffle"), Refusals.RANDOM),
    **dict.fromkeys(
        ("First", "Last", "AnyValue", "MaxBy", "MinBy", "CollectList", "CollectSet", "ListAgg", "Mode"), Refusals.ORDER
    ),
    **dict.fromkeys(("ApproximatePercentile", "HyperLogLogPlusPlus", "CountMinSketchAgg"), Refusals.SKETCH),
    **dict.fromkeys(("MonotonicallyIncreasingID", "SparkPartitionID", "InputFileName"), Refusals.PLACE),
    **dict.fromkeys(("CallMethodViaReflection", "ScalaUDF", "PythonUDF", "PythonUDAF", "HiveSimpleUDF"), Refusals.JAVA),
}
_WRITTEN = {"GlobalLimit": "LIMIT", "LocalLimit": "LIMIT", "Sort": "ORDER BY"}
"""Nodes of a plan that a user knows by another word."""
SUBQUERIES = frozenset({"ScalarSubquery", "Exists", "InSubquery", "ListQuery", "LateralSubquery"})
# Their result depends on the order of the additions, whatever the input's type.
_MOMENTS = frozenset(
    {"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis", "Corr", "CovPopulation"}
    | {"CovSample", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrSXX", "RegrSYY"}
)


def find_plan_refusals(frame: DataFrame, allowed: frozenset[str], *, compared: bool) -> list[str]:
    """Return a sentence for each part of the analysed plan of `frame` that is refused, with its line and column."""
    root = plan_of(frame)
    refusals: list[str] = []
    for node in tree(root):
        name = class_of(node)
        if name not in allowed and node.children().size():
            refusals.append(
                f"{place_of(node)}the plan has {_WRITTEN.get(name, name)}, for which no exact rule exists; use SELECT with GROUP BY over the source"
            )
        for whole, expression in placed_expressions(node):
            why = refusal_of_expression(expression)
            kind = class_of(expression)
            if why is not None and (compared or why.always):
                refusals.append(f"{place_of(expression, whole)}{kind} {why.cause}; {why.remedy}")
            if kind in SUBQUERIES:
                refusals.append(
                    f"{place_of(expression, whole)}the plan has a subquery ({kind}), for which no exact rule exists; "
                    "use SELECT with GROUP BY over the source"
                )
    if sum(class_of(node) == "Aggregate" for node in tree(root)) > 1:
        refusals.append("the plan aggregates twice, for which no exact late rule exists; write one GROUP BY")
    return list(dict.fromkeys(refusals))


def place_of(node: Any, whole: Any = None) -> str:
    """Return the place of a node or an expression in the SQL, as the beginning of a sentence; empty if Spark has none.

    Args:
        whole: the whole expression that contains it; its alias names the column.
    """
    origin = node.origin()
    if origin.line().isEmpty() and whole is not None:
        origin = whole.origin()
    result = f"result column {whole.name()!r}: " if whole is not None and class_of(whole) == "Alias" else ""
    if origin.line().isEmpty():
        return result
    start = origin.startPosition()
    column = f", column {start.get() + 1}" if start.isDefined() else ""
    return f"line {origin.line().get()}{column}: {result}"


def leaf_columns(frame: DataFrame) -> list[list[str]]:
    """Return the column names of each relation that the plan of `frame` reads."""
    leaves = [
        node for node in tree(plan_of(frame)) if not node.children().size() and class_of(node) != "CTERelationRef"
    ]
    return [[attribute.name() for attribute in items(node.output())] for node in leaves]


def grouping_sizes(frame: DataFrame) -> list[int]:
    """Return by how many expressions each aggregation in the plan of `frame` groups."""
    return [node.groupingExpressions().size() for node in tree(plan_of(frame)) if class_of(node) == "Aggregate"]


def computed_keys(frame: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return which of `keys` are not plain fields of the relation that the plan of `frame` reads."""
    root = plan_of(frame)
    fields: dict[int, str] = {}
    for node in tree(root):
        if not node.children().size():
            fields |= {attribute.exprId().id(): attribute.name() for attribute in items(node.output())}
    plain = {
        attribute.name()
        for attribute in items(root.output())
        if fields.get(attribute.exprId().id()) == attribute.name()
    }
    return [key for key in keys if key not in plain]


def inexact_columns(frame: DataFrame) -> dict[str, str]:
    """Return the result columns whose value depends on the order in which floating-point numbers are added, with their place."""
    root = plan_of(frame)
    tainted: dict[int, str] = {}
    for node in reversed(list(tree(root))):
        for expression in items(node.expressions()):
            parts = list(tree(expression))
            refers = [attribute.exprId().id() for attribute in items(expression.references().toSeq())]
            adding = next((part for part in parts if _adds_doubles(part)), None)
            before = next((tainted[column_id] for column_id in refers if column_id in tainted), None)
            if class_of(expression) == "Alias" and (adding is not None or before is not None):
                place = before if adding is None else place_of(adding)
                tainted[expression.exprId().id()] = place or place_of(expression)
    outputs = ((attribute.name(), attribute.exprId().id()) for attribute in items(root.output()))
    return {name: tainted[column_id] for name, column_id in outputs if column_id in tainted}


_HOW = ("IDENTITY", "TRANSFORMATION", "AGGREGATION")
"""How a column comes from another one, in OpenLineage's words; of several steps the last in this order counts."""
ROWS = ""
"""Stands for a column: what decides which rows there are."""


def column_sources(frame: DataFrame) -> dict[str, list[tuple[str, str, str]]]:
    """Return result column to the fields that its value comes from: view, field, and how (a word of OpenLineage).

    Under `ROWS` are the fields of conditions and groups, with `FILTER`, `JOIN` or `GROUP_BY`. What Spark's nodes do that are not
    known here leaves columns without sources.
    """
    root = plan_of(frame)
    known: dict[int, set[tuple[str, str, str]]] = {}
    rows: set[tuple[str, str, str]] = set()

    def of(expression: Any, least: str = _HOW[0]) -> set[tuple[str, str, str]]:
        ids = [attribute.exprId().id() for attribute in items(expression.references().toSeq())]
        found = (source for column_id in ids for source in known.get(column_id, ()))
        return {(view, field, max(how, least, key=_HOW.index)) for view, field, how in found}

    def decided(expressions: Iterable[Any], how: str) -> None:
        rows.update((view, field, how) for each in expressions for view, field, _ in of(each))

    for node in reversed(list(tree(root))):
        name, output = class_of(node), list(items(node.output()))
        if is_source(node):
            view = node.desc().identifier().table()
            known |= {each.exprId().id(): {(view, each.name(), _HOW[0])} for each in output}
            continue
        for own, value in _computed(node, output, root):
            parts = {class_of(part) for part in tree(value)}
            least = _HOW[2] if "AggregateExpression" in parts else _HOW[parts != {"AttributeReference"}]
            known.setdefault(own.exprId().id(), set()).update(of(value, least))
        if name == "Filter":
            decided([node.condition()], "FILTER")
        elif name == "Join":
            decided(items(node.condition().toList()), "JOIN")
        elif name == "Aggregate":
            decided(items(node.groupingExpressions()), "GROUP_BY")
    found = {each.name(): sorted(known.get(each.exprId().id(), ())) for each in items(root.output())}
    return {**found, ROWS: sorted(rows)}


def _computed(node: Any, output: list[Any], root: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each column that a node makes, with an expression that gives its value; several for one that has several."""
    name = class_of(node)
    if name == "Expand":
        for listed in items(node.projections()):
            yield from zip(output, items(listed), strict=True)
    elif name == "Union":
        for child in items(node.children()):
            yield from zip(output, items(child.output()), strict=True)
    elif name == "CTERelationRef":
        definitions = (each for each in tree(root) if class_of(each) == "CTERelationDef")
        defined = next(each for each in definitions if each.id() == node.cteId())
        yield from zip(output, items(defined.output()), strict=True)
    elif name == "Generate":
        yield from ((own, node.generator()) for own in items(node.generatorOutput()))
    else:
        yield from ((each, each.child()) for each in items(node.expressions()) if class_of(each) == "Alias")


def is_source(node: Any) -> bool:
    """Say whether a node is the view of a source; a view over another one is the result of `rows.sql`."""
    return class_of(node) == "View" and not any(class_of(below) == "View" for below in tree(node.child()))


def unfit_keys(frame: DataFrame, keys: Sequence[str], event_time: str) -> dict[str, str]:
    """Return key to the reason why it does not divide the work: it has one value only, or is the event time itself."""
    root = plan_of(frame)
    means: dict[int, Any] = {}
    for node in tree(root):
        means |= {
            alias.exprId().id(): alias.child() for alias in items(node.expressions()) if class_of(alias) == "Alias"
        }
    reasons = {}
    for output in items(root.output()):
        expression, name = output, output.name()
        while class_of(expression) == "AttributeReference" and expression.exprId().id() in means:
            expression = means[expression.exprId().id()]
        if name in keys and expression.foldable():
            reasons[name] = "it has the same value in every row, so all records meet in one task"
        elif name in keys and class_of(expression) == "AttributeReference" and expression.name() == event_time:
            reasons[name] = "it is the event time itself, so nearly every record is a separate group"
    return reasons


def find_functions(frame: DataFrame) -> set[tuple[str, str]]:
    """Return the classes of the aggregate functions in the plan of `frame`, each with the type of its first argument."""
    found = set()
    for node in tree(plan_of(frame)):
        for _, expression in placed_expressions(node):
            if class_of(expression) == "AggregateExpression":
                function = expression.aggregateFunction()
                arguments = list(items(function.children()))
                found.add((class_of(function), str(arguments[0].dataType().typeName()) if arguments else ""))
    return found


def refusal_of_expression(expression: Any) -> FunctionRefusal | None:
    """Return why an expression of a plan is refused, or None."""
    name = class_of(expression)
    if name == "AggregateExpression" and expression.isDistinct():
        return Refusals.DISTINCT
    if name in _CLASSES:
        return _CLASSES[name]
    if name.startswith(("Hll", "Kll", "Theta", "Bitmap", "Approx")):
        return Refusals.SKETCH
    leaf = expression.children().size() == 0
    return Refusals.RANDOM if leaf and not expression.deterministic() else None


def _adds_doubles(expression: Any) -> bool:
    name = class_of(expression)
    if name in _MOMENTS:
        return True
    if name not in ("Sum", "Average"):
        return False
    kind = expression.children().apply(0).dataType().typeName()
    return kind in ("double", "float") or (name == "Average" and kind == "long")


def plan_of(frame: DataFrame) -> Any:
    """Return the analysed plan of a frame."""
    return frame._jdf.queryExecution().analyzed()


def class_of(node: Any) -> str:
    """Return the simple name of a Scala object's class."""
    return str(node.getClass().getSimpleName()).rstrip("$")


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)


def tree(node: Any) -> Iterator[Any]:
    """Yield a plan's node, or an expression, and all below it."""
    yield node
    for child in items(node.children()):
        yield from tree(child)


def placed_expressions(plan_node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every expression of a plan's node and all its parts, each after the whole expression that contains it."""
    for whole in items(plan_node.expressions()):
        for expression in tree(whole):
            yield whole, expression
