"""How Spark computes each kind of windows: one module for each. `kinds` describes them, and needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping

from rivertwice.pipeline.compilers.compiler import Compiler
from rivertwice.pipeline.compilers.intervals import IntervalCompiler
from rivertwice.pipeline.compilers.sessions import SessionCompiler
from rivertwice.pipeline.compilers.stateful import StatefulCompiler
from rivertwice.pipeline.compilers.tumbling_hopping import WindowCompiler
from rivertwice.pipeline.kinds import Kind
from rivertwice.pipeline.kinds.intervals import Intervals
from rivertwice.pipeline.kinds.sessions import Sessions
from rivertwice.pipeline.kinds.stateful import Stateful
from rivertwice.pipeline.kinds.tumbling_hopping import TumblingHopping
from rivertwice.pipeline.model import Definition

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
