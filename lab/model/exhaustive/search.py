"""The search: from each state every move, breadth first, equal states once. It knows no protocol.

Processes are the generators of the model, which cannot be copied. So a state is reached by repeating the moves to it from the
beginning, and two states are equal if everything durable is equal and every process stands at the same instruction with equal local
values. Breadth first: the trace to a violation is a shortest one.
"""

from __future__ import annotations

import dis
import gc
import marshal
import pickle
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from hashlib import blake2b
from io import BytesIO
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from lab.model.process import POINTS, Process
from lab.model.rules import Rules
from lab.model.versions.home import VersionWorld
from lab.model.versions.pipeline import Pipeline
from lab.model.violations import ViolationError, fail
from lab.model.world import World
from rivertwice.core.errors import RivertwiceError, UnknownOutcomeError
from rivertwice.core.homes import PipelineHome
from rivertwice.deliver.model import DeliveredRecord, DeliveryStep, Position, View
from rivertwice.stream.checkpoint import PlannedBatch
from rivertwice.timeline.ledger import LedgerRow
from rivertwice.timeline.lineage import Timeline

Move = tuple[str, str]
"""What happens, and to whom: `("step", "driver")`, `("kill", "driver")`, `("time", "")`."""

Bounds = Mapping[str, int]
"""How much harm there is in all, how often a process is started, and what else bounds a scene."""

START, STEP, KILL, LOSE = "start", "step", "kill", "lose"
HARM = frozenset({KILL, LOSE, "stop", "delay", "time out"})
"""Moves that nothing may need in order to come right."""

COMES_RIGHT = "from every state the protocol comes right once nothing fails"
STUMBLES = "nothing stumbles over what it finds"
KEPT_LIVE = 400  # states at the end of the queue whose processes are kept, so that their moves need not be repeated


def harm_in(bounds: Bounds) -> dict[str, int]:
    """Return what is harm in bounds."""
    return {name: times for name, times in bounds.items() if name in HARM}


@dataclass(frozen=True)
class Slot:
    """A place for one process at a time: its kind, its host, and how often it is started in all."""

    kind: str
    host: int = 1
    starts: int = 1


class Scene(ABC):
    """A few processes over something durable, what may happen to them, and what must hold in every state."""

    def __init__(self, slots: Mapping[str, Slot], harm: Mapping[str, int]) -> None:
        """Begin with no process.

        Args:
            slots: by name.
            harm: how many kills, lost answers and so on there are in all.
        """
        self.slots = slots
        self.left = {**harm, **{f"start {name}": slot.starts for name, slot in slots.items()}}
        self.running: dict[str, Process] = {}
        self.said = ""

    @abstractmethod
    def spawn(self, name: str, slot: Slot, pid: int) -> Process:
        """Start a process."""

    @abstractmethod
    def durable(self) -> Any:
        """Return all that outlives a process and may change."""

    @abstractmethod
    def is_good(self) -> bool:
        """Say whether the protocol has reached its end."""

    @abstractmethod
    def check(self) -> None:
        """Check what must hold in every state, beside what the judges check at every effect."""

    def finish(self) -> None:
        """Check a state in which nothing but harm can happen any more; a scene may let calm processes run first."""
        if not self.is_good():
            fail(COMES_RIGHT, "nothing can happen any more, and the end is not reached")

    def end(self, process: Process) -> None:
        """Let a process be gone."""
        process.alive = False

    def now_s(self) -> float:
        """Return the present, by a clock that nobody can set."""
        return 0.0

    def outside(self) -> Iterator[Move]:
        """Return what may happen from outside."""
        yield from ()

    def happen(self, move: Move) -> None:
        """Let it happen."""
        raise NotImplementedError(move)

    def can_step(self, process: Process) -> bool:
        """Say whether a step of a process could change anything."""
        return process.alive

    def can_lose(self, process: Process) -> bool:
        """Say whether the answer to what a process did last can be lost."""
        return process.at >= 0

    def moves(self) -> list[Move]:
        """Return what may happen now."""
        found: list[Move] = []
        for name in self.slots:
            process = self.running.get(name)
            if process is None:
                found += [(START, name)] if self.left[f"start {name}"] else []
                continue
            if process.paused:
                continue
            if self.can_step(process):
                found.append((STEP, name))
            if self.left.get(KILL) and process.at >= 0:
                found.append((KILL, name))
            if self.left.get(LOSE) and self.can_lose(process):
                found.append((LOSE, name))
        return [*found, *self.outside()]

    def perform(self, move: Move) -> None:
        """Do a move.

        Raises:
            ViolationError: an invariant does not hold.
        """
        what, name = move
        try:
            if what == START:
                slot, used = self.slots[name], self.left[f"start {name}"]
                self.left[f"start {name}"] -= 1
                pid = 100 * (1 + list(self.slots).index(name)) + slot.starts - used
                self.running[name] = self.spawn(name, slot, pid)
                self.said = f"{name} starts"
            elif what == STEP:
                self._go(name, lambda steps: next(steps), "")
            elif what == LOSE:
                self.left[LOSE] -= 1
                self._go(name, lambda steps: steps.throw(UnknownOutcomeError("no answer came")), "gets no answer; ")
            elif what == KILL:
                self.left[KILL] -= 1
                self.end(self.running.pop(name))
                self.said = f"{name} is killed"
            else:
                self.said = " ".join(move).strip()
                if what in self.left:
                    self.left[what] -= 1
                self.happen(move)
        except (KeyError, AssertionError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ViolationError(STUMBLES, f"{type(error).__name__}: {error}") from error

    def _go(self, name: str, go: Callable[[Any], int], before: str) -> None:
        process = self.running[name]
        try:
            process.at = go(process.steps)
            self.said = f"{name}: {before}{POINTS[process.at]}"
        except StopIteration:
            self.said = f"{name}: {before}ends"
            self.end(self.running.pop(name))
        except RivertwiceError as error:
            self.said = f"{name}: {before}ends with {type(error).__name__}: {error}"
            self.end(self.running.pop(name))

    def state(self) -> bytes:
        """Return what tells this state from others."""
        freezer = _Freezer(self.now_s())
        frozen = (
            tuple(self.left.values()),
            freezer.freeze(self.durable()),
            tuple((name, freezer.freeze(process)) for name, process in sorted(self.running.items())),
        )
        return blake2b(marshal.dumps(frozen, 2), digest_size=16).digest()


@dataclass(frozen=True)
class Explored:
    """The result of a search.

    Attributes:
        states, transitions: how many different ones. depth: moves to the state that is farthest from the beginning.
        seconds: of one processor. whole: whether nothing was left unexplored.
        violation: the first one found. trace: what happened up to it.
    """

    states: int
    transitions: int
    depth: int
    seconds: float
    whole: bool
    violation: ViolationError | None = None
    trace: tuple[str, ...] = ()


@dataclass
class _Graph:
    """The states found so far: by number the state before and the move to it, and the edges backwards."""

    before: list[tuple[int, Move | None]] = field(default_factory=lambda: [(-1, None)])
    depth: list[int] = field(default_factory=lambda: [0])
    harmless: dict[int, list[int]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    transitions: int = 0

    def path(self, number: int) -> list[Move]:
        moves: list[Move] = []
        while number:
            number, move = self.before[number]
            assert move is not None, "only the first state has no move"
            moves.append(move)
        return moves[::-1]

    def stuck(self) -> int | None:
        """Return the first state from which no end is reached without harm, None if there is none."""
        reached, queue = set(self.ends), deque(self.ends)
        while queue:
            for number in self.harmless.get(queue.popleft(), ()):
                if number not in reached:
                    reached.add(number)
                    queue.append(number)
        return next((number for number in range(len(self.before)) if number not in reached), None)


def explore(begin: Callable[[], Scene], *, most: int = 10_000_000) -> Explored:
    """Explore all that can happen.

    Args:
        begin: returns the scene at its beginning, each time the same and each time another object.
        most: states after which the search gives up.
    """
    began, graph = time.process_time(), _Graph()
    first = begin()
    numbers = {first.state(): 0}
    queue: deque[tuple[int, Scene | None]] = deque([(0, first)])
    while queue:
        number, scene = queue.popleft()
        path = graph.path(number)
        try:
            live = scene if scene is not None else _replay(begin, path)
            if live.is_good():
                graph.ends.append(number)
            is_left = False
            for move in live.moves():
                scene = live if live is not None else _replay(begin, path)
                live = None  # type: ignore[assignment] # a move changes it
                tried = [*path, move]
                scene.perform(move)
                scene.check()
                graph.transitions += 1
                state = scene.state()
                is_new = state not in numbers
                target = numbers.setdefault(state, len(numbers))
                if move[0] not in HARM and target != number:
                    is_left = True
                    graph.harmless.setdefault(target, []).append(number)
                if is_new:
                    graph.before.append((number, move))
                    graph.depth.append(graph.depth[number] + 1)
                    queue.append((target, scene if len(queue) < KEPT_LIVE else None))
            if not is_left:
                tried = path
                _replay(begin, path).finish()
                graph.ends.append(number)
        except ViolationError as error:
            return _found(began, graph, begin, error, tried)
        if len(numbers) > most:
            return Explored(len(numbers), graph.transitions, max(graph.depth), time.process_time() - began, whole=False)
    stuck = graph.stuck()
    if stuck is not None:
        missed = ViolationError(COMES_RIGHT, "no end can be reached from here")
        return _found(began, graph, begin, missed, graph.path(stuck))
    return Explored(len(numbers), graph.transitions, max(graph.depth), time.process_time() - began, whole=True)


def _found(
    began: float, graph: _Graph, begin: Callable[[], Scene], error: ViolationError, moves: Sequence[Move]
) -> Explored:
    seconds = time.process_time() - began
    return Explored(
        len(graph.before), graph.transitions, max(graph.depth), seconds, True, error, tuple(_tell(begin(), moves))
    )


def _tell(scene: Scene, moves: Iterable[Move]) -> Iterator[str]:
    for move in moves:
        try:
            scene.perform(move)
        except ViolationError as error:
            yield f"{' '.join(move)}: {error}"
            return
        yield scene.said


def _replay(begin: Callable[[], Scene], moves: Iterable[Move]) -> Scene:
    scene = begin()
    for move in moves:
        scene.perform(move)
    return scene


# copies of a beginning


class _Keeping(pickle.Pickler):
    """Pickles all but functions and rules, which are the same in every copy."""

    def __init__(self, file: BytesIO, kept: list[Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._kept = kept

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, Rules)):
            self._kept.append(value)
            return len(self._kept) - 1
        return None


def copies_of(value: Any) -> Callable[[], Any]:
    """Return a function that returns a new copy of a value each time; nothing in it may run."""
    file, kept = BytesIO(), []  # type: ignore[var-annotated]
    _Keeping(file, kept).dump(value)
    data = file.getvalue()

    def copy() -> Any:
        unpickler = pickle.Unpickler(BytesIO(data))  # noqa: S301 (it was pickled above)
        unpickler.persistent_load = kept.__getitem__  # type: ignore[method-assign]
        return unpickler.load()

    return copy


# what makes two states equal

_SAME = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, Rules)
_SKIPPED = frozenset(
    {"rules", "actors", "broken", "logs", "cached", "counts", "names", "processes", "parents", "world", "pipeline"}
    | {"steps", "pid", "pids", "name", "forward_s", "heartbeat", "exit", "tables", "judge", "produced", "begin"}
    | {"readers", "reason", "delivered"}
)
"""Attributes that never change in a scene, that nothing explored reads, or that follow from others (names from the slots)."""
_UNORDERED = frozenset({"locks", "owner", "applied", "left"})
"""Attributes with a dict whose order decides nothing."""
_SINCE = frozenset({"since", "renewed_s"})
"""Instants of the clock that nobody can set: only how long ago they are matters, up to `LONG_S`."""
LONG_S = 20.0  # longer than a lease is valid, or kept from others
_SHORT: Mapping[type, Callable[[Any], Any]] = {
    LedgerRow: lambda row: (row.timeline, row.batch, row.epoch, row.bundle, row.offsets_text, row.digest),
    Timeline: lambda line: (line.timeline, line.first_batch, None if line.parent is None else line.parent.timeline),
    PlannedBatch: lambda planned: (planned.batch, planned.text),
    Position: lambda at: (at.timeline, at.batch, at.seq, at.number),
    DeliveredRecord: lambda record: (record.op, record.key, repr(sorted(record.values[0])), record.old is None),
    DeliveryStep: lambda step: (step.kind, step.to.batch, step.to.seq),
    View: lambda view: (view.head.timeline, view.seq, len(view.batches), view.held_closed_ms),
}
"""Records that are the same if these are."""


@dataclass(frozen=True)
class All:
    """All that a world holds; a world that is met elsewhere is only named."""

    of: World


class _Freezer:
    """Makes values that are equal exactly for equal content; an object that is met again is its number.

    Instants by the clock that people set are left out: no decision of the explored protocols reads them.
    """

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        self._seen: dict[int, int] = {}

    def freeze(self, value: Any) -> Any:
        kind = type(value)
        how = _HOW.get(kind)
        if how is None:
            how = _HOW[kind] = _how(kind)
        if how == _PLAIN:
            return value
        if how == _TUPLE:
            return tuple([self.freeze(each) for each in value])
        if how == _SET:
            return ("set", tuple(sorted([self.freeze(each) for each in value], key=repr)))
        if how == _OTHER:
            return self._other(kind, value)
        if how != _FROZEN:
            number = self._seen.setdefault(id(value), len(self._seen))
            if number != len(self._seen) - 1:
                return ("again", number)
            if how == _DICT:
                return tuple([(self.freeze(key), self.freeze(each)) for key, each in value.items()])
            if how == _LIST:
                return tuple([self.freeze(each) for each in value])
        state = value.__dict__
        named = tuple([self._named(name, each) for name, each in state.items() if name not in _SKIPPED])
        return (kind.__name__, named, tuple(self._frames(value.steps)) if isinstance(value, Process) else None)

    def _other(self, kind: type, value: Any) -> Any:
        if kind is All:
            return tuple([self._named(name, each) for name, each in vars(value.of).items() if name not in _SKIPPED])
        if isinstance(value, VersionWorld):
            return value.name
        if kind is GeneratorType:
            return tuple(self._frames(value))
        if kind in _SHORT:
            return _SHORT[kind](value)
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, PurePath):
            return str(value)
        return getattr(value, "__qualname__", kind.__name__)

    def _named(self, name: str, value: Any) -> Any:
        if name in _SINCE and type(value) is float:
            return (name, min(self._now_s - value, LONG_S))
        return (name, self.freeze(tuple(sorted(value.items())) if name in _UNORDERED else value))

    def _frames(self, steps: Any) -> Iterator[Any]:
        """Return where a generator stands: instruction, local values that are read again, and its loops, for each frame."""
        while isinstance(steps, GeneratorType):
            frame = steps.gi_frame
            if frame is None:
                yield "over"
                return
            live = live_names(frame.f_code, frame.f_lasti)
            local = tuple([self._named(name, value) for name, value in frame.f_locals.items() if name in live])
            loops = [each for each in gc.get_referents(steps) if type(each).__name__.endswith("_iterator")]
            yield (steps.__qualname__, frame.f_lasti, local, tuple([self._loop(each) for each in loops]))
            steps = steps.gi_yieldfrom

    def _loop(self, iterator: Any) -> Any:
        _, (what, *_), *at = iterator.__reduce__()
        return self.freeze(tuple(what)), *at


_PLAIN, _TUPLE, _SET, _DICT, _LIST, _FROZEN, _OBJECT, _OTHER = range(8)
_HOW: dict[type, int] = {}


def _how(kind: type) -> int:
    """Return how values of a type are frozen."""
    if kind in (int, float, str, bytes, bool, type(None)):
        return _PLAIN
    same = (*_SAME, Enum, GeneratorType, datetime, timedelta, World, Pipeline, PipelineHome, PurePath, Scene, All)
    if issubclass(kind, same) or kind in _SHORT:
        return _OTHER
    for base, how in ((tuple, _TUPLE), (frozenset, _SET), (set, _SET), (dict, _DICT), (list, _LIST)):
        if issubclass(kind, base):
            return how
    parameters = getattr(kind, "__dataclass_params__", None)
    return _FROZEN if parameters is not None and parameters.frozen else _OBJECT


@cache
def live_names(code: CodeType, at: int) -> frozenset[str]:
    """Return the names of local values that may be read after an instruction: the others make no difference any more."""
    steps = list(dis.get_instructions(code))
    place = {step.offset: number for number, step in enumerate(steps)}
    follows: list[set[int]] = []
    for number, step in enumerate(steps):
        after = set() if step.opname in _NEVER_ON or number + 1 == len(steps) else {number + 1}
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            after.add(place[step.argval])
        follows.append(after)
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined] # there is no public reader of it
        for number, step in enumerate(steps):
            if entry.start <= step.offset < entry.end:
                follows[number].add(place[entry.target])
    live: list[set[str]] = [set() for _ in steps]
    changed = True
    while changed:
        changed = False
        for number in range(len(steps) - 1, -1, -1):
            step, names = steps[number], _joined(live[each] for each in follows[number])
            if step.opname.startswith(("STORE_FAST", "DELETE_FAST")):
                names.discard(step.argval)
            elif step.opname.startswith("LOAD_FAST"):
                names.add(step.argval)
            if names != live[number]:
                live[number], changed = names, True
    read = _joined(live[each] for each in follows[place[at]])
    return frozenset({*read, *code.co_cellvars, *code.co_freevars})


def _joined(sets: Iterable[set[str]]) -> set[str]:
    return {name for each in sets for name in each}


_NEVER_ON = frozenset(
    {"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
)
