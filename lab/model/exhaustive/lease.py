"""The lease in a store: taken by replacing the version that was read, renewed, lost; two hosts whose clocks run at different rates.

It has a world of its own: the rest of the model takes and renews a lease in one step. Instants are ages, so that states repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lab.model.exhaustive.search import COMES_RIGHT, LOSE, START, STEP, Bounds, Move, Scene, Slot, harm_in
from lab.model.mutation import Mutation
from lab.model.process import Process, Steps, point
from lab.model.rules import Rules
from lab.model.violations import fail
from rivertwice.core.errors import LeaseLostError, UnknownOutcomeError
from rivertwice.storage.lease_terms import VALID_SHARE, LeaseRecord, Takeover, Terms, decide_takeover

LOOKED = point("lease: read by a start")
ASKED = point("lease: take sent")
TOOK = point("lease: take arrived")
RENEWS = point("lease: a renewal begins")
READ = point("lease: read by its holder")
RENEWED = point("lease: renewal arrived")
RELEASED = point("lease: release arrived")
ONE = "at most one process may write"
RISE = "epochs rise"
TERMS = Terms(renew_s=2.0, missed=2)
OLD_S = {"watched_s": TERMS.takeover_s, "sent_s": 4.5, "renewed_s": 4.5}
"""Ages beyond these are alike, because no decision tells them apart; an age that nothing counts any more is as old."""
RATES = {1: 1.0, 2: 1.5}  # seconds that a host's clock counts in a second: within what the terms allow
INVARIANTS = (ONE, RISE, COMES_RIGHT)


@dataclass
class Seen:
    """A version of the object, as somebody read it."""

    is_current: bool = True


@dataclass
class Store:
    """The object, and requests to replace it that have lost their sender."""

    held: LeaseRecord | None = None
    readers: list[Seen] = field(default_factory=list)
    late: list[tuple[Seen, LeaseRecord]] = field(default_factory=list)

    def get(self) -> tuple[Seen, LeaseRecord | None]:
        """Return the version and the content."""
        self.readers.append(Seen())
        return self.readers[-1], self.held

    def replace(self, seen: Seen, held: LeaseRecord) -> bool:
        """Replace the version that was seen; return False if it is another one."""
        if not seen.is_current:
            return False
        if self.held is not None and held.epoch < self.held.epoch:
            fail(RISE, f"{held.epoch} after {self.held.epoch}")
        if self.held is not None and held.epoch == self.held.epoch and held.home != self.held.home:
            fail(RISE, f"epoch {held.epoch} is used again, by {held.home}")
        self.held = held
        for reader in self.readers:
            reader.is_current = False
        self.readers.clear()
        return True


@dataclass
class Claimant(Process):
    """A process that wants the lease, or has it; ages are by its host's clock.

    Attributes:
        watched_s: since when it has seen the object unchanged. sent_s: since it sent its last request. renewed_s: since it sent the last one
            that was answered.
        request: that is on its way.
    """

    watched_s: float = OLD_S["watched_s"]
    sent_s: float = OLD_S["sent_s"]
    renewed_s: float = OLD_S["renewed_s"]
    is_lost: bool = False
    request: tuple[Seen, LeaseRecord] | None = None


class LeaseScene(Scene):
    """Processes of two hosts."""

    def __init__(self, rules: Rules, broken: str, slots: Mapping[str, Slot], harm: Mapping[str, int]) -> None:
        """Begin with no lease."""
        super().__init__(slots, harm)
        self.rules = rules
        self.broken = broken
        self.store = Store()

    def spawn(self, name: str, slot: Slot, pid: int) -> Process:
        """Start a process."""
        claimant = Claimant(pid, name, slot.kind, slot.host)
        claimant.steps = _run(self, claimant)
        return claimant

    def durable(self) -> Any:
        """Return the object and late requests."""
        return self.store.held, tuple(self.store.late)

    def outside(self) -> Iterator[Move]:
        """Let time pass, a holder leave, and late requests arrive."""
        yield ("time", "")
        for name, process in self.running.items():
            if self.left.get("leave") and process.epoch and not process.asked:
                yield ("leave", name)
        for number in range(len(self.store.late)):
            yield ("arrive", str(number))

    def happen(self, move: Move) -> None:
        """Let it happen."""
        what, name = move
        if what == "arrive":
            self.store.replace(*self.store.late.pop(int(name)))
        elif what == "leave":
            self.running[name].asked = True
        else:
            for process in self.running.values():
                rate = RATES[process.host]
                for age, old_s in OLD_S.items():
                    setattr(process, age, min(old_s, getattr(process, age) + rate))

    def perform(self, move: Move) -> None:
        """Do a move; a request whose sender is gone, or gave up waiting, may still arrive."""
        process = self.running.get(move[1])
        request = getattr(process, "request", None)
        if request is not None and move[0] in (LOSE, "kill"):
            self.store.late.append(request)
        super().perform(move)
        self.store.late = [late for late in self.store.late if late[0].is_current]

    def can_lose(self, process: Process) -> bool:
        """Answers are lost of requests that replace the object."""
        return getattr(process, "request", None) is not None or process.at in (TOOK, RENEWED)

    def may_write(self, process: Process) -> bool:
        """Say whether a process's check passes."""
        assert isinstance(process, Claimant), "the scene has no others"
        age_s = process.renewed_s * VALID_SHARE if self.broken == "valid as long as kept" else process.renewed_s
        must_stop = self.rules.must_stop(renewed_at=-age_s, now=0.0, terms=TERMS)
        return process.epoch > 0 and not process.is_lost and not must_stop

    def check(self) -> None:
        """Check that at most one process may write."""
        writers = [process.name for process in self.running.values() if self.may_write(process)]
        if len(writers) > 1:
            fail(ONE, writers)

    def is_good(self) -> bool:
        """Say whether somebody may write."""
        return any(self.may_write(process) for process in self.running.values())

    def finish(self) -> None:
        """Let one more start take the lease."""
        self.left["start a"] = 1
        self.running.clear()
        self.perform((START, "a"))
        for _ in range(30):
            if self.is_good() or "a" not in self.running:
                break
            self.perform((STEP, "a"))
            if self.running.get("a", Process(0, "", "")).at == LOOKED:
                self.perform(("time", ""))
        super().finish()


def begin(rules: Rules, broken: str, bounds: Bounds) -> Callable[[], Scene]:
    """Return what begins the scene."""
    slots = {"a": Slot("a", 1, bounds["starts"]), "b": Slot("b", 2, bounds["starts"])}
    harm = {**harm_in(bounds), "leave": bounds["leave"]}
    return lambda: LeaseScene(rules, broken, slots, harm)


def _run(scene: LeaseScene, me: Claimant) -> Steps:
    """Take the lease as `take_claim` does, renew it as `StoreClaim` does, and leave when asked."""
    yield from _take(scene, me)
    while not me.asked:
        with_answer = True
        try:
            with_answer = yield from _renew(scene, me)
        except UnknownOutcomeError:
            me.request, me.sent_s = None, OLD_S["sent_s"]
        if not with_answer and not scene.may_write(me):
            message = "it may not write any more"
            raise LeaseLostError(message)
    seen, held = scene.store.get()
    yield READ
    assert held is not None, "it was taken"
    me.epoch = 0
    if scene.broken == "released whoever has it" or not scene.rules.is_lost(held, held.epoch):
        scene.store.replace(seen, replace(held, released=True))
    yield RELEASED


def _take(scene: LeaseScene, me: Claimant) -> Steps:
    store, home = scene.store, f"home{me.host}"
    seen, held = store.get()
    me.watched_s = 0.0
    while True:
        decision = scene.rules.decide_takeover(held, home=home, unchanged_s=me.watched_s)
        yield LOOKED
        if decision.take:
            break
        if not seen.is_current and scene.broken != "a start watches on though the lease was renewed":
            message = "its holder renews it"
            raise LeaseLostError(message)
        seen, held = store.get()
    me.watched_s, me.sent_s = OLD_S["watched_s"], 0.0
    me.request = (seen, LeaseRecord(decision.epoch, home, TERMS, released=False))
    yield ASKED
    request, me.request = me.request, None
    if scene.broken == "replaced without its version":
        request[0].is_current = True
    is_taken = store.replace(*request)
    yield TOOK
    if not is_taken:
        message = "another start was faster"
        raise LeaseLostError(message)
    me.epoch, me.renewed_s, me.sent_s = decision.epoch, me.sent_s, OLD_S["sent_s"]


def _renew(scene: LeaseScene, me: Claimant) -> Any:
    me.sent_s = 0.0
    yield RENEWS
    seen, held = scene.store.get()
    if scene.rules.is_lost(held, me.epoch):
        me.is_lost = True
        return False
    assert held is not None, "it is not lost"
    me.request = (seen, held)
    yield READ
    request, me.request = me.request, None
    if scene.broken == "replaced without its version":
        request[0].is_current = True
    is_renewed = scene.store.replace(*request)
    yield RENEWED
    if is_renewed:
        me.renewed_s = 0.0 if scene.broken == "a renewal counts from its answer" else me.sent_s
    me.sent_s = OLD_S["sent_s"]
    return is_renewed


def _never(held: Any, **_: Any) -> Takeover:
    return Takeover(held is None, 1, "only the first one")


def _taken(held: Any, **_: Any) -> Takeover:
    return Takeover(True, 1 + (0 if held is None else held.epoch), "taken")


def _same_epoch(held: Any, **observed: Any) -> Takeover:
    return replace(decide_takeover(held, **observed), epoch=1 if held is None else held.epoch)


MUTATIONS = (
    Mutation("the lease of a store is taken while its holder lives", rules={"decide_takeover": _taken}),
    Mutation("an epoch is used again", rules={"decide_takeover": _same_epoch}),
    Mutation("a holder that cannot renew continues writing", rules={"must_stop": lambda **_: False}),
    Mutation("a holder that lost the lease renews it", rules={"is_lost": lambda *_: False}),
    Mutation("a renewal counts from its answer", "a renewal counts from its answer"),
    Mutation("the object is replaced whatever version it has", "replaced without its version"),
    Mutation("a lease is valid for as long as it is kept from others", "valid as long as kept"),
    Mutation("a lease that nobody renews is never taken", rules={"decide_takeover": _never}),
    Mutation("a start watches on though the lease was renewed", "a start watches on though the lease was renewed"),
)
