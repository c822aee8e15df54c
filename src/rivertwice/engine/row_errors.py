"""On which records the SQL of a definition throws: they are dead letters of the reason `transform`, wherever they are decoded.

SQL runs in ANSI mode, so a wrong cast, a division by zero or a missing element throws. If one record can do that alone, it is
known before any aggregation or join: the expressions that see one record at a time are tried on it, and a record on which one
throws is rejected, as by a rule. So the stream does not stop, and every recompute decides the same.

The expressions are taken from Spark's analysed plan: from a view up to the first node that combines rows. Spark's own
expression `TryEval` tries them; it gives NULL for whatever throws. What needs several records to throw (a sum that overflows)
or a group (a division by a sum) is the fault of no single record; `find_group_risks` names such expressions.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from rivertwice.core import RequestError
from rivertwice.engine.plan_check import class_of, is_source, items, place_of, plan_of, tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_TEXT = 200
_SAME_ROWS = frozenset({"SubqueryAlias", "View", "CTERelationDef"})
_SINGLE = _SAME_ROWS | {"Project", "Filter", "Expand", "WithCTE", "CTERelationRef", "LogicalRDD", "LocalRelation"}
"""Nodes that pass single records on."""
# The result is a value or NULL, whatever the inputs are. Casts and arithmetic are judged by their types; all others may throw.
_SAFE = frozenset(
    {"Alias", "AttributeReference", "Literal", "NamedLambdaVariable", "LambdaFunction", "TryEval"}
    | {"And", "Or", "Not", "IsNull", "IsNotNull", "IsNaN", "EqualTo", "EqualNullSafe", "In", "InSet"}
    | {"LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Between"}
    | {"If", "CaseWhen", "Coalesce", "NullIf", "Nvl", "Nvl2", "NaNvl", "Greatest", "Least"}
    | {
        "Upper",
        "Lower",
        "Concat",
        "ConcatWs",
        "Length",
        "OctetLength",
        "Substring",
        "Contains",
        "StartsWith",
        "EndsWith",
    }
    | {"Like", "StringTrim", "StringTrimLeft", "StringTrimRight", "StringReplace", "StringInstr"}
    | {"CreateNamedStruct", "CreateArray", "GetStructField", "Size", "ArrayContains", "KnownNotNull", "KnownNullable"}
    | {"Year", "Month", "DayOfMonth", "Hour", "Minute", "Second", "TruncTimestamp", "TruncDate"}
    | {"UnixMicros", "UnixMillis", "UnixSeconds", "Murmur3Hash", "XxHash64", "Crc32", "Md5", "Sha2"}
)
_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply"})
_DIVISIONS = frozenset({"Divide", "IntegralDivide", "Remainder", "Pmod"})
_AGGREGATES = frozenset({"Sum", "Average", "Count", "Max", "Min"})
_THROWING = frozenset(
    {
        "ElementAt",
        "GetArrayItem",
        "Elt",
        "ParseToDate",
        "ParseToTimestamp",
        "GetTimestamp",
        "ToUnixTimestamp",
        "UnixTimestamp",
    }
    | {
        "ToNumber",
        "MakeDate",
        "MakeTimestamp",
        "MakeInterval",
        "NextDay",
        "Conv",
        "RaiseError",
        "AssertTrue",
        "UnaryMinus",
        "Abs",
    }
)
_LARGEST = {"byte": 2.0**7, "short": 2.0**15, "integer": 2.0**31, "long": 2.0**63}
_INSTANTS = {"UnixSeconds": 1e12, "UnixMillis": 1e15, "UnixMicros": 1e18}
"""Of an instant between the years 1 and 9999."""
_MOST_DIGITS = 38
_SUMMED = 1e10
"""Records of one sum: what Spark's own type for a sum of decimals leaves room for."""
_NUMBER = re.compile(r"-?\d+(\.\d*)?")


@dataclass(frozen=True)
class Step:
    """An expression that a record comes to.

    Attributes:
        expression: Spark's object. text: its SQL.
        is_condition: the record goes no further unless it is true.
        may_throw: it is tried.
    """

    expression: Any
    text: str
    is_condition: bool
    may_throw: bool

    def is_met(self) -> Column:
        """Return the value of a condition."""
        return _column(self.expression)

    def is_refused(self) -> Column:
        """Return whether the expression throws on a record, or would write out a number of a huge power for minutes."""
        throws = _fails(self.expression)
        texts = [part.child() for part in tree(self.expression) if _reads_decimal(part)]
        if not texts:
            return throws
        stalls = functools.reduce(operator.or_, (_tried(text).rlike(_SMALL_POWER) for text in texts))
        return F.when(F.coalesce(stalls, F.lit(False)), F.lit(True)).otherwise(throws)


@dataclass(frozen=True)
class WrittenStep:
    """A `Step` as SQL, for a session whose plans cannot be walked and which has no `TryEval` of its own.

    Spark writes `try_to_binary` as `TryEval` around its arguments, so it is NULL where these throw.

    Attributes:
        sql: the expression. hashed: SQL of a number that is made of its value.
        numbers: the texts from which it reads decimals.
    """

    sql: str
    hashed: str
    numbers: tuple[str, ...]
    text: str
    is_condition: bool
    may_throw: bool

    def is_met(self) -> Column:
        """Return the value of a condition."""
        return F.expr(self.sql)

    def is_refused(self) -> Column:
        """Return what `Step.is_refused` returns."""
        throws = F.expr(f"try_to_binary(CAST({self.hashed} AS STRING), 'utf-8') IS NULL")
        if not self.numbers:
            return throws
        texts = (F.expr(f"CAST(try_to_binary({text}, 'utf-8') AS STRING)") for text in self.numbers)
        stalls = functools.reduce(operator.or_, (text.rlike(_SMALL_POWER) for text in texts))
        return F.when(F.coalesce(stalls, F.lit(False)), F.lit(True)).otherwise(throws)


@dataclass(frozen=True)
class RowChecks:
    """The expressions that may throw on a record of one view: for each way of a record into the SQL, its steps in order."""

    ways: tuple[tuple[Step | WrittenStep, ...], ...] = ()

    def written(self, rows: DataFrame) -> RowChecks:
        """Return the same checks as SQL, for another session.

        Args:
            rows: without rows, with the columns of a record; texts are read in it, and must mean what they were written from.

        Raises:
            RequestError: an expression cannot be written.
        """
        return RowChecks(tuple(tuple(_written(step, rows) for step in way) for way in self.ways))

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The expressions as text; checks of equal texts reject the same records."""
        return tuple(tuple(step.text for step in way) for way in self.ways)

    def throws(self) -> Column:
        """Return whether an expression throws on a record: never NULL. To be used where a CASE evaluates it on its turn.

        Spark computes what two expressions share once and beforehand, unless they are in a conditional part. There it would
        throw outside of `TryEval`.
        """
        return functools.reduce(operator.or_, map(_throws, self.ways))

    def detail(self) -> Column:
        """Return the text of the expressions that throw on a record, for a conditional part as well."""
        steps = {step.text: step for way in self.ways for step in way if step.may_throw}
        found = (F.when(step.is_refused(), F.lit(text)) for text, step in steps.items())
        return F.concat(F.concat_ws(", ", *found), F.lit(" throws"))


NO_CHECKS = RowChecks()


def find_row_checks(result: DataFrame, fields: Mapping[str, Collection[str]]) -> dict[str, RowChecks]:
    """Return view to what may throw on one of its records.

    Args:
        result: the result of a definition over no rows; its plan is analysed, and not run.
        fields: view to the columns of a record; what the SQL sees beside them (the window's columns) is not looked at.
    """
    found: dict[str, dict[tuple[str, ...], tuple[Step, ...]]] = {view: {} for view in fields}
    for view, way in _Walk(result, fields).ways():
        steps = [
            Step(expression, expression.sql()[:_MOST_TEXT], is_condition, _may_throw(expression))
            for expression, is_condition in way
        ]
        steps = [step for step in steps if step.is_condition or step.may_throw]
        while steps and not steps[-1].may_throw:
            steps.pop()
        if steps:
            found[view][tuple(step.text for step in steps)] = tuple(steps)
    return {view: RowChecks(tuple(ways.values())) for view, ways in found.items()}


def find_key_columns(
    result: DataFrame, fields: Mapping[str, Collection[str]], start: Column, end: Column
) -> dict[str, Column]:
    """Return result column to its value on a record of the group, for each column that has one value for all of them.

    Args:
        result: the result of a transform of one source over no rows; its plan is analysed, and not run.
        fields: the view to the columns of a record; the values are expressions over them.
        start: of the record's window, for columns that are computed of `window()`.
        end: of the record's window, likewise.
    """
    utils, window = _spark_sql().classic.ExpressionUtils, F.named_struct(F.lit("start"), start, F.lit("end"), end)
    walk = _GroupWalk(result, fields, utils.expression(window._jc))
    output = list(items(plan_of(result).output()))
    values = {column.name(): rows.meaning.get(column.exprId().id()) for rows in walk.records() for column in output}
    return {name: _column(value) for name, value in values.items() if value is not None}


def _throws(way: Iterable[Step | WrittenStep]) -> Column:
    case: Any = F
    for step in way:
        if step.may_throw:
            case = case.when(step.is_refused(), F.lit(True))
        if step.is_condition:
            case = case.when(~F.coalesce(step.is_met(), F.lit(False)), F.lit(False))
    found: Column = case.otherwise(F.lit(False))
    return found


def _fails(expression: Any) -> Column:
    """Return whether an expression throws: a struct of its value is NULL only then."""
    return _tried_column(F.struct(_column(expression).alias("value"))).isNull()


def _tried(expression: Any) -> Column:
    """Return the value of an expression, NULL if it throws."""
    return _tried_column(_column(expression))


def _tried_column(value: Column) -> Column:
    tried = _spark_sql().catalyst.expressions.TryEval(_spark_sql().classic.ExpressionUtils.expression(value._jc))
    return ClassicColumn(_spark_sql().classic.ExpressionUtils.column(tried))


def write_column(column: Column, rows: DataFrame) -> str:
    """Return a column as SQL that means the same over `rows`, which has no rows.

    Raises:
        RequestError: it cannot be written.
    """
    return _write(_read_in(rows, column), rows)


def _written(step: Step | WrittenStep, rows: DataFrame) -> WrittenStep:
    assert isinstance(step, Step), "it is made of Spark's objects"
    sql = _write(step.expression, rows)
    numbers = tuple(_write(part.child(), rows) for part in tree(step.expression) if _reads_decimal(part))
    is_map = rows.select(F.expr(sql).alias("value")).schema[0].dataType.typeName() == "map"
    hashed = f"hash(map_entries({sql}))" if is_map else f"hash({sql})"
    if step.may_throw:
        _require_fit(hashed, rows, step.text)
    return WrittenStep(sql, hashed, numbers, step.text, step.is_condition, step.may_throw)


def _require_fit(sql: str, rows: DataFrame, text: str) -> None:
    try:
        len(rows.select(F.expr(sql)).columns)
    except PySparkException as error:
        raise _unwritten(text) from error


def _unwritten(text: str) -> RequestError:
    message = (
        f"whether {text[:_MOST_TEXT]} throws on a record cannot be asked of a Spark Connect server, so records might be judged otherwise there; "
        "write it in another way, or run this without RIVERTWICE_SPARK_REMOTE"
    )
    return RequestError(message)


def _write(expression: Any, rows: DataFrame) -> str:
    """Return an expression as SQL, after Spark has read the text and found the same expression."""
    for whole in (True, False):
        try:
            meant = _plain(_read_in(rows, _column(expression)))
            text = _sql(expression, whole=whole)
            if _plain(_read_in(rows, F.expr(text))).canonicalized().equals(meant.canonicalized()):
                return text
        except (PySparkException, Py4JError):
            continue
    raise _unwritten(str(expression.sql()))


def _read_in(rows: DataFrame, column: Column) -> Any:
    """Return what Spark's analysis makes of a column of `rows`."""
    return plan_of(rows.select(column.alias("value"))).projectList().apply(0).child()


def _plain(expression: Any) -> Any:
    """Return an expression without casts to the type that a value already has: Spark adds them where it reads a text."""
    if class_of(expression) == "With":
        return _plain(_spelled_out(expression))
    children = list(items(expression.children()))
    if class_of(expression) == "Cast" and children[0].dataType().equals(expression.dataType()):
        return _plain(children[0])
    plain = [_plain(child) for child in children]
    if all(each.equals(child) for each, child in zip(plain, children, strict=True)):
        return expression
    return _with_children(expression, plain)


def _spelled_out(common: Any) -> Any:
    """Return a `With` (`nullif`, `between`) with its common expressions where they are used; it does not take unresolved ones."""
    values = {str(each.id()): each.child() for each in items(common.defs())}

    def spelled(expression: Any) -> Any:
        if class_of(expression) == "CommonExpressionRef":
            return values[str(expression.id())]
        children = list(items(expression.children()))
        return _with_children(expression, map(spelled, children)) if children else expression

    return spelled(common.child())


def _with_children(expression: Any, children: Iterable[Any]) -> Any:
    listed = _jvm().java.util.ArrayList()
    for child in children:
        listed.add(child)
    return expression.withNewChildren(_jvm().scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq())


def _sql(expression: Any, *, whole: bool) -> str:
    """Return an expression as SQL. Spark's own text has columns by the views' names, and functions of lambdas that it cannot read.

    Args:
        whole: functions that Spark replaces by others are written as they were called; False: as what they are replaced by.
    """
    name = class_of(expression)
    if name in ("AttributeReference", "UnresolvedAttribute", "NamedLambdaVariable"):
        return f"`{expression.name()}`"
    if name == "LambdaFunction":
        arguments = [_sql(each, whole=whole) for each in items(expression.arguments())]
        named = arguments[0] if len(arguments) == 1 else f"({', '.join(arguments)})"
        return f"{named} -> {_sql(expression.function(), whole=whole)}"
    if name == "RaiseError":
        (_, message) = items(expression.right().children())
        return f"raise_error({_sql(message, whole=whole)})"
    if _is_replaced(expression):
        if not whole:
            return _sql(expression.replacement(), whole=whole)
        parameters = ", ".join(_sql(each, whole=whole) for each in items(expression.parameters()))
        return f"{expression.prettyName()}({parameters})"
    if name == "With":
        return _sql(_spelled_out(expression), whole=whole)
    children = list(items(expression.children()))
    if not children:
        return str(expression.sql())
    unresolved = _spark_sql().catalyst.analysis.UnresolvedAttribute
    is_lambda = [class_of(child) == "LambdaFunction" for child in children]
    places = [child if is_lambda[n] else unresolved.quoted(f"rt_{n}_rt") for n, child in enumerate(children)]
    text = str(_with_children(expression, places).sql())
    for number, child in enumerate(children):
        written = _sql(child, whole=whole)
        place = str(child.sql()) if is_lambda[number] else f"rt_{number}_rt"
        text = text.replace(place, written if is_lambda[number] else f"({written})")
    return text


def _is_replaced(expression: Any) -> bool:
    kind = _jvm().java.lang.Class.forName(
        "org.apache.spark.sql.catalyst.expressions.InheritAnalysisRules",
        False,
        expression.getClass().getClassLoader(),
    )
    return bool(kind.isInstance(expression))


_SMALL_POWER = r"[eE]-\p{Nd}{5}"
"""A text of a number for whose digits Spark's cast to a decimal divides by ten to this power: `1e-30000000` took 11 seconds on 4.2."""


def _reads_decimal(expression: Any) -> bool:
    """Say whether an expression reads a decimal from a text."""
    if class_of(expression) != "Cast" or expression.foldable():
        return False
    before, after = expression.child().dataType().typeName(), expression.dataType().typeName()
    return before == "string" and str(after).startswith("decimal")


def _column(expression: Any) -> Column:
    """Return an expression as a column of any frame that has its fields by name."""
    utils = _spark_sql().classic.ExpressionUtils

    def named(attribute: Any) -> Any:
        return utils.expression(F.col(f"`{attribute.name()}`")._jc)

    return ClassicColumn(utils.column(_rebuilt(expression, named)))


def _jvm() -> Any:
    jvm: Any = SparkContext._jvm
    assert jvm is not None, "there is a session: its plan was analysed"
    return jvm


def _spark_sql() -> Any:
    return _jvm().org.apache.spark.sql


def _rebuilt(expression: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return an expression in which each reference to a column is replaced."""
    if class_of(expression) == "AttributeReference":
        return replaced(expression)
    if class_of(expression) == "With":
        return _rebuilt(_spelled_out(expression), replaced)
    children = [_rebuilt(child, replaced) for child in items(expression.children())]
    if not children:
        return expression
    return _with_children(expression, children)


def _may_throw(expression: Any) -> bool:
    """Say whether an expression could throw on some value, or take minutes: it can unless each part of it is known to be safe."""
    return any(not _is_safe(part) or _reads_decimal(part) for part, _ in _marked_parts(expression, is_input=True))


def _is_safe(expression: Any) -> bool:
    name = class_of(expression)
    if name in _SAFE or name.startswith("Try") or expression.foldable() or _gives_null(expression):
        return True
    if name == "Cast":
        before, after = expression.child().dataType(), expression.dataType()
        return bool(_spark_sql().catalyst.expressions.Cast.canUpCast(before, after))
    if name not in _ARITHMETIC and not (name == "Divide" and _is_never_zero(expression.right())):
        return False
    kind = expression.dataType()
    is_decimal = kind.typeName().startswith("decimal")
    return kind.typeName() in ("double", "float") or (is_decimal and kind.precision() < _MOST_DIGITS)


def _gives_null(expression: Any) -> bool:
    """Say whether an expression is the form of its function that gives NULL where the other throws, as `try_sum` does."""
    return str(expression.sql()).lower().startswith("try_")


def _of_statement(node: Any) -> Iterator[Any]:
    """Yield a node and all below it, down to the views of the sources: what is below prepares the records."""
    yield node
    if not is_source(node):
        for child in items(node.children()):
            yield from _of_statement(child)


class _OpaqueError(Exception):
    """An expression depends on what is not a field of the record."""


@dataclass(frozen=True)
class _Rows:
    """Rows of a node of a plan that are single records of a view.

    Attributes:
        steps: what was tried before, with whether it is a condition.
        meaning: id of a column to its value, as an expression over the record's fields; None if it is not one.
        window: what stands for the record's window; None: nothing does.
    """

    view: str
    steps: tuple[tuple[Any, bool], ...]
    meaning: Mapping[int, Any]
    window: Any = None

    def value(self, expression: Any) -> Any:
        """Return an expression over the record's fields, None if it depends on something else."""

        def replaced(attribute: Any) -> Any:
            known = self.meaning.get(attribute.exprId().id())
            if known is None:
                raise _OpaqueError
            return known

        try:
            return _rebuilt(expression, replaced)
        except _OpaqueError:
            return None


class _Walk:
    """Follows records through an analysed plan, from the views to where rows are combined."""

    def __init__(self, result: DataFrame, fields: Mapping[str, Collection[str]], window: Any = None) -> None:
        self._root = plan_of(result)
        self._fields = fields
        self._window = window
        statement = list(_of_statement(self._root))
        self._definitions = {node.id(): node for node in statement if class_of(node) == "CTERelationDef"}
        self._ended: list[tuple[str, list[tuple[Any, bool]]]] = []
        self._used = {
            attribute.exprId().id()
            for node in statement
            for whole in items(node.expressions())
            for attribute in items(whole.references().toSeq())
        } | {attribute.exprId().id() for attribute in items(self._root.output())}

    def ways(self) -> list[tuple[str, list[tuple[Any, bool]]]]:
        """Return the view and the steps of each way."""
        for rows in self._rows(self._root):
            self._end(rows)
        return self._ended

    def _end(self, rows: _Rows, uses: Iterable[Any] | None = None) -> None:
        """Note what is tried on rows that reach a node which combines them: `uses`, or whatever the plan refers to."""
        if uses is None:
            values = [value for key, value in rows.meaning.items() if value is not None and key in self._used]
        else:
            values = [value for use in uses if (value := rows.value(use)) is not None]
        self._ended.append((rows.view, [*rows.steps, *((value, False) for value in values)]))

    def _rows(self, node: Any) -> list[_Rows]:
        """Return the rows that a node passes on, if each is one record; a node that combines rows passes on none."""
        name = class_of(node)
        if name == "WithCTE":
            return self._rows(node.plan())
        if name == "CTERelationRef":
            return self._referred(node, self._definitions[node.cteId()])
        if is_source(node):
            return [self._entered(node)]
        below = [rows for child in items(node.children()) for rows in self._rows(child)]
        if name in _SAME_ROWS:
            return below
        if name == "Project":
            return [replace(rows, meaning=_projected(rows, node.projectList())) for rows in below]
        if name == "Filter":
            return [kept for rows in below if (kept := self._kept(rows, node)) is not None]
        if name == "Expand":
            return [replace(rows, meaning=_expanded(rows, node)) for rows in below]
        uses = _inputs(node) if name == "Aggregate" else None
        for rows in below:
            self._end(rows, uses)
        return []

    def _entered(self, node: Any) -> _Rows:
        """Return the records that a view shows to the SQL; a column beside their fields has no meaning here."""
        view = node.desc().identifier().table()
        fields = self._fields[view]
        meaning = {each.exprId().id(): each if each.name() in fields else None for each in items(node.output())}
        return _Rows(view, (), meaning, self._window)

    def _referred(self, node: Any, definition: Any) -> list[_Rows]:
        """Return the rows of a CTE under the columns of a reference to it."""
        pairs = zip(items(node.output()), items(definition.output()), strict=True)
        known = {column.exprId().id(): own.exprId().id() for column, own in pairs}
        return [
            replace(rows, meaning={column: rows.meaning.get(own) for column, own in known.items()})
            for rows in self._rows(definition)
        ]

    def _kept(self, rows: _Rows, node: Any) -> _Rows | None:
        """Return the rows with the condition of a filter; None, and they end here, if it asks for more than the record."""
        condition = rows.value(node.condition())
        if condition is None:
            self._end(rows, ())
            return None
        return replace(rows, steps=(*rows.steps, (condition, True)))


class _GroupWalk(_Walk):
    """Follows records through an aggregation too, up to the row of their group: it knows what is the same in the whole group."""

    def records(self) -> list[_Rows]:
        """Return the result's rows, each as any record of its group."""
        return self._rows(self._root)

    def _rows(self, node: Any) -> list[_Rows]:
        if class_of(node) != "Aggregate":
            return super()._rows(node)
        return [
            replace(rows, meaning=_projected(rows, node.aggregateExpressions()))
            for child in items(node.children())
            for rows in self._rows(child)
        ]

    def _kept(self, rows: _Rows, node: Any) -> _Rows:
        """Return the rows as they are: a condition changes no value."""
        del node
        return rows


def _projected(rows: _Rows, columns: Any) -> dict[int, Any]:
    meaning: dict[int, Any] = {}
    for column in items(columns):
        own = column.child() if class_of(column) == "Alias" else column
        is_of_group = any(class_of(part) == "AggregateExpression" for part in tree(own))
        meaning[column.exprId().id()] = rows.window if _is_window(own) else None if is_of_group else rows.value(own)
    return meaning


def _expanded(rows: _Rows, node: Any) -> dict[int, Any]:
    """Return the meaning of columns of which each row is copied (into each hopping window), if all copies have the same."""
    projections = [list(items(each)) for each in items(node.projections())]
    meaning: dict[int, Any] = {}
    for place, column in enumerate(items(node.output())):
        first, *others = (projection[place] for projection in projections)
        is_same = all(other.semanticEquals(first) for other in others)
        meaning[column.exprId().id()] = rows.window if _is_window(first) else rows.value(first) if is_same else None
    return meaning


def _is_window(expression: Any) -> bool:
    """Say whether Spark made an expression for `window()` or `session_window()`: it cannot throw on an accepted event time."""
    return any(class_of(part) == "PreciseTimestampConversion" for part in tree(expression))


def _inputs(aggregate: Any) -> list[Any]:
    """Return what an aggregation computes of each row: its keys, the arguments of its functions and their filters."""
    inputs = list(items(aggregate.groupingExpressions()))
    for whole in items(aggregate.aggregateExpressions()):
        for part in tree(whole):
            if class_of(part) == "AggregateExpression":
                inputs += items(part.aggregateFunction().children())
                inputs += items(part.filter().toList())
    return inputs


def find_group_risks(result: DataFrame, limits: Mapping[str, float]) -> list[str]:
    """Return a sentence for each expression that can throw although no single record is to blame.

    These are sums that overflow, and expressions over the results of an aggregation or a join. Spark computes them for a whole
    batch, so the batch fails. A sum is taken to have at most ten billion records.

    Args:
        result: the result of a definition's SQL; its plan is analysed, and not run.
        limits: field to the largest absolute value that the rules of its source allow.
    """
    root, risks = plan_of(result), dict[str, None]()
    judge = _GroupJudge(root, limits)
    for node, is_combined in _marked_nodes(root):
        is_aggregate = class_of(node) == "Aggregate"
        for whole in items(node.aggregateExpressions() if is_aggregate else node.expressions()):
            for part, is_input in _marked_parts(whole, is_input=not is_combined and not is_aggregate):
                risk = None if part.foldable() else judge.risk(part, is_input=is_input)
                if risk is not None:
                    risks[f"{place_of(part, whole)}{part.sql()[:_MOST_TEXT]} {risk}"] = None
    return list(risks)


def _marked_nodes(node: Any) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes of a statement from the views upwards, each with whether its rows are combined."""
    if is_source(node):
        return
    below = [pair for child in items(node.children()) for pair in _marked_nodes(child)]
    yield from below
    is_combined = any(class_of(each) not in _SINGLE for each, _ in below)
    yield node, is_combined or class_of(node) not in _SINGLE | {"Aggregate"}


def _marked_parts(expression: Any, *, is_input: bool) -> Iterator[tuple[Any, bool]]:
    """Yield the parts of an expression, each with whether it is computed of one record, as the argument of a sum is."""
    yield expression, is_input
    below = is_input or class_of(expression) in _AGGREGATES
    for child in _inputs_of(expression):
        yield from _marked_parts(child, is_input=below)


def _inputs_of(expression: Any) -> list[Any]:
    """Return what an expression is computed of; `try_divide(a, b)` is a division that cannot throw, of `a` and `b`."""
    children = list(items(expression.children()))
    if not class_of(expression).startswith("Try"):
        return children
    return [each for child in children for each in _inputs_of(child)]


class _GroupJudge:
    """Judges expressions over groups by their types, by the rules of fields, and by what a name stands for."""

    def __init__(self, root: Any, limits: Mapping[str, float]) -> None:
        self._limits = limits
        self._meant = {
            whole.exprId().id(): whole.child()
            for node in _of_statement(root)
            for whole in items(node.expressions())
            if class_of(whole) == "Alias"
        }

    def risk(self, part: Any, *, is_input: bool) -> str | None:
        """Return how an expression can throw on a group of records; None if it cannot, or if a single record would make it."""
        name = class_of(part)
        if _gives_null(part):
            return None
        if name in ("Sum", "Average"):
            return self._overflow(part)
        if is_input or name in _SAFE:
            return None
        if name in _DIVISIONS:
            return None if _is_never_zero(part.right(), self._meant) else "throws if the divisor is 0"
        if name in _ARITHMETIC | {"Cast"}:
            most = self._most(part.child() if name == "Cast" else part, by_type=name == "Cast")
            fits = most <= _capacity(part.dataType()) and (name != "Cast" or math.isfinite(most))
            return (
                None if fits or _is_safe(part) else f"throws on what does not fit into {part.dataType().simpleString()}"
            )
        return "throws on some values" if name in _THROWING else None

    def _overflow(self, part: Any) -> str | None:
        kind, child = part.dataType(), next(items(part.children()))
        # An average adds decimals as a sum does; it adds anything else as floating-point numbers.
        limit = _capacity(kind)
        if class_of(part) == "Average":
            limit = float(10**_MOST_DIGITS) if kind.typeName().startswith("decimal") else math.inf
        if self._most(child) * _SUMMED <= limit:
            return None
        return f"overflows if ten billion records have the largest values: their sum does not fit into {kind.simpleString()}"

    def _most(self, expression: Any, *, by_type: bool = True) -> float:
        """Return the largest absolute value of a number, infinity if it is not known; without `by_type`, before it overflows."""
        name, children = class_of(expression), list(items(expression.children()))
        known = math.inf
        if name == "Literal" and _NUMBER.fullmatch(str(expression.value())):
            known = abs(float(str(expression.value())))
        elif name == "Count":
            known = _SUMMED
        elif name == "AttributeReference":
            meant = self._meant.get(expression.exprId().id())
            known = self._limits.get(expression.name(), math.inf) if meant is None else self._most(meant)
        elif name in ("Add", "Subtract"):
            known = sum(map(self._most, children))
        elif name == "Multiply":
            known = math.prod(map(self._most, children))
        elif name == "Sum":
            known = self._most(children[0]) * _SUMMED
        elif name in ("If", "CaseWhen"):
            known = max(map(self._most, _values_of(expression)), default=0)
        elif name in ("Coalesce", "Greatest", "Least"):
            known = max(map(self._most, children))
        elif name == "Divide" and _is_mean(expression):
            known = next(self._most(part.child()) for part in tree(expression.left()) if class_of(part) == "Sum")
        elif name in _INSTANTS:
            known = _INSTANTS[name]
        elif name in ("Cast", "Alias", "AggregateExpression", "WindowExpression", "Max", "Min", "Abs", "UnaryMinus"):
            known = self._most(children[0])
        return min(known, _capacity(expression.dataType())) if by_type else known


def _is_mean(division: Any) -> bool:
    """Say whether a sum is divided by the count of its values, cast or not."""
    inside = (
        "Cast",
        "AggregateExpression",
        "NullIf",
        "With",
        "CommonExpressionDef",
        "CommonExpressionRef",
        "If",
        "EqualTo",
    )
    names = [{class_of(part) for part in tree(side)} - set(inside) for side in items(division.children())]
    return "Sum" in names[0] and "Count" in names[1] and not names[0] & (_ARITHMETIC | _DIVISIONS)


def _values_of(conditional: Any) -> list[Any]:
    """Return the values that an If or a CASE can have, NULL apart."""
    if class_of(conditional) == "If":
        values = [conditional.trueValue(), conditional.falseValue()]
    else:
        branches = [branch._2() for branch in items(conditional.branches())]
        values = branches + list(items(conditional.elseValue().toList()))
    return [value for value in values if not (class_of(value) == "Literal" and value.value() is None)]


def _capacity(kind: Any) -> float:
    """Return the largest absolute value of a type of numbers that overflow; infinity for any other type."""
    name = kind.typeName()
    if name.startswith("decimal"):
        return float(10 ** (kind.precision() - kind.scale()))
    return _LARGEST.get(name, math.inf)


def _is_never_zero(expression: Any, meant: Mapping[int, Any] | None = None) -> bool:
    """Say whether a divisor cannot be 0: a number, the count of a group's records, or what `nullif` makes NULL.

    Args:
        meant: id of a column to what it stands for.
    """
    name = class_of(expression)
    if name in ("Cast", "Alias", "AggregateExpression", "WindowExpression"):
        return _is_never_zero(next(items(expression.children())), meant)
    if name == "AttributeReference":
        own = (meant or {}).get(expression.exprId().id())
        return own is not None and _is_never_zero(own, meant)
    if name == "Literal":
        return str(expression.value()).strip("0.-") != ""
    if name == "Count":
        return all(class_of(child) == "Literal" for child in items(expression.children()))
    return name == "NullIf"
