"""Result columns beside the count: exact sums, means, smallest and largest values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from rivertwice.errors import RequestError
from rivertwice.nearest import did_you_mean
from rivertwice.scaffold.fields import COLUMN, FieldGuess
from rivertwice.scaffold.times import is_time_name, words_of

FUNCTIONS = ("sum", "mean", "min", "max")
SUM_DIGITS, MOST_DIGITS = 28, 18
MEAN_DECIMALS = 4
_COUNTED = {"id", "code", "zip", "postcode", "year", "month", "day", "hour", "port", "version", "lat", "lon", "lng", "latitude", "longitude",
            "number", "no", "seq", "sequence", "offset", "partition", "phone", "x", "y", "index", "pid", "major", "minor", "firmware", "build", "serial"}  # fmt: skip
_FIGURES = {"amount", "price", "total", "value", "duration", "distance", "quantity", "count", "cost", "fare", "fee", "bytes", "size", "temperature",
            "celsius", "speed", "weight", "score", "latency", "delay", "seconds", "ms", "km", "meters", "kwh", "power", "revenue", "tip", "humidity",
            "energy", "wh", "watt", "watts", "load", "usage", "consumption", "volume", "pressure", "voltage", "balance", "tax", "discount", "units"}  # fmt: skip
_EXACT = Context(prec=76, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Measure:
    """A result column.

    Attributes:
        field: what it is computed from.
        function: one of FUNCTIONS.
        kind: the field's type.
        why: why it was chosen.
    """

    field: str
    function: str
    kind: str
    why: str = ""

    @property
    def column(self) -> str:
        """The column's name."""
        return f"{self.field}_{self.function}"

    @property
    def text(self) -> str:
        """The column in words."""
        return f"{self.function} of {self.field}"

    @property
    def scale(self) -> int:
        """Digits after the point of a sum."""
        return int(self.kind.partition(",")[2].rstrip(")")) if self.kind.startswith("decimal") else 0

    def expression(self, quoted: str) -> str:
        """Return the expression, exact whatever the order of the rows.

        Args:
            quoted: the field as SQL writes it.
        """
        if self.function in ("min", "max"):
            return f"{self.function}({quoted})"
        # A bigint is added as a decimal: a sum of bigints that overflows stops the stream.
        added = quoted if self.kind.startswith("decimal") else f"CAST({quoted} AS DECIMAL(20, 0))"
        total = f"CAST(sum({added}) AS DECIMAL({SUM_DIGITS}, {self.scale}))"
        if self.function == "sum":
            return total
        mean = f"{total} / nullif(CAST(count({quoted}) AS DECIMAL(10, 0)), 0)"
        return f"CAST({mean} AS DECIMAL({SUM_DIGITS}, {self.scale + MEAN_DECIMALS}))"

    def compute(self, values: Sequence[Any]) -> Any:
        """Return the column over values that are not null, as the SQL has to give it; None without values."""
        if not values:
            return None
        if self.function in ("min", "max"):
            return (min if self.function == "min" else max)(values)
        total = sum((self._rounded(value, self.scale) for value in values), Decimal(0))
        if self.function == "sum":
            return total
        return self._rounded(_EXACT.divide(total, Decimal(len(values))), self.scale + MEAN_DECIMALS)

    @staticmethod
    def _rounded(value: Any, decimals: int) -> Decimal:
        return Decimal(value).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP, context=_EXACT)


def _is_number(kind: str | None) -> bool:
    """Say whether a type can be added without a loss: a decimal of more digits could overflow, which stops the stream."""
    if kind in ("bigint", "int", "double"):
        return True
    return (kind or "").startswith("decimal(") and int(
        (kind or "").removeprefix("decimal(").partition(",")[0]
    ) <= MOST_DIGITS


def functions_of(kind: str) -> tuple[str, ...]:
    """Return which functions are exact for a type."""
    return ("min", "max") if kind == "double" else FUNCTIONS


def choose_measures(fields: Sequence[FieldGuess], event: FieldGuess | None, keys: Sequence[str]) -> tuple[Measure, ...]:
    """Return sum and mean of the field that looks most like a figure, or its smallest and largest value if it is a double."""
    candidates = [
        each
        for each in fields
        if _is_number(each.kind)
        and each is not event
        and each.name not in keys
        and not words_of(each.name) & _COUNTED
        and not is_time_name(each.name)
        and len(each.name) <= 58
        and each.distinct > 1
    ]
    if not candidates:
        return ()
    best = max(
        candidates,
        key=lambda each: (
            bool(words_of(each.name) & _FIGURES),
            each.kind != "double",
            each.complete,
            each.distinct,  # a figure has many values, and a number that names something has few
        ),
    )
    kind = best.kind or ""
    chosen = ("min", "max") if kind == "double" else ("sum", "mean")
    why = (
        "a double: its sum would be inexact, its smallest and largest values are not"
        if kind == "double"
        else "numbers that look like a figure; added as decimals, which is exact"
    )
    return tuple(Measure(best.name, each, kind, why) for each in chosen)


def parse_measures(asked: Sequence[str], fields: Sequence[FieldGuess]) -> tuple[Measure, ...]:
    """Return the columns that a person asked for.

    Raises:
        RequestError: one names no number of the sample, or a function that is not exact for it.
    """
    numbers = {each.name: each for each in fields if _is_number(each.kind)}
    measures: list[Measure] = []
    for text in asked:
        name, _, function = text.partition(":")
        if name not in numbers:
            message = f"--columns {text}: {name!r} is no field with numbers, so nothing was written; {did_you_mean(name, numbers)}"
            raise RequestError(message)
        kind = numbers[name].kind or ""
        exact = functions_of(kind)
        if function and function not in exact:
            message = (
                f"--columns {text}: of {name}, a {kind}, a definition can have {', '.join(exact)}, so nothing was written; "
                f"{did_you_mean(function, exact)}"
            )
            raise RequestError(message)
        wanted = (function,) if function else exact[:2]
        measures += [Measure(name, each, kind, "") for each in wanted]
    unique = tuple(dict.fromkeys(measures))
    for each in unique:
        if not COLUMN.match(each.column):
            message = f"--columns {each.field}: the column {each.column} would have more than 64 characters, so nothing was written; write it yourself"
            raise RequestError(message)
    return unique
