"""How Spark computes each kind of windows: one module for each. `kinds` describes them, and needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping

from rivertwice.definition import Definition, Intervals, Kind, Sessions, Stateful, TumblingHopping
from rivertwice.engine.compilers.compiler import Compiler
from rivertwice.engine.compilers.intervals import IntervalCompiler
from rivertwice.engine.compilers.sessions import SessionCompiler
from rivertwice.engine.compilers.stateful import StatefulCompiler
from rivertwice.engine.compilers.tumbling_hopping import WindowCompiler

__all__ = ["Compiler", "compiler_of"]

COMPILERS: Mapping[type[Kind], Compiler] = {
    TumblingHopping: WindowCompiler(),
    Sessions: SessionCompiler(),
    Intervals: IntervalCompiler(),
    Stateful: StatefulCompiler(),
}


def compiler_of(definition: Definition) -> Compiler:
    """Return the compiler of a definition's kind of windows."""
    return COMPILERS[type(definition.window.kind)]
