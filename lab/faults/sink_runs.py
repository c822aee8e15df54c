"""What the cases of sinks share: a stream with many small steps to deliver, deliverers that are struck, and the judgement of a sink."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lab.faults.errors import require
from lab.faults.lab import PIPELINE, Lab
from lab.faults.lab_project import edit_definition
from lab.faults.processes import signal_group
from lab.faults.proxy import FaultProxy, Swallow
from lab.faults.savepoint_runs import command_log
from lab.faults.strikes import AFTER, BEFORE, Hold, Strike, start_struck, strike_command
from lab.oracle.delivered import Holding, Place, Values, read_served
from rivertwice.core.settings import Settings
from rivertwice.timeline.served import rebuild_served

ONE_BATCH = {"rivertwice.deliver.plan:Limits.__init__.__defaults__": [1, 10_000]}
"""A step has one batch, so that a short stream has a step for each strike."""
PATIENCE = 5
_DELIVER = "rivertwice.deliver.deliver"


def struck(
    name: str, function: str, when: str = AFTER, count: int = 1, values: Mapping[str, Any] | None = None
) -> Strike:
    """Return a strike in a deliverer whose steps have one batch."""
    return Strike(name, function, when, count, ONE_BATCH | dict(values or {}))


NOTED = (
    struck("the step is done, its refusals not settled", f"{_DELIVER}:AsideStore.settle", BEFORE),
    struck("the step is done, not noted", f"{_DELIVER}:write_note", BEFORE),
    struck("noted", f"{_DELIVER}:write_note"),
)
"""Behind the position, of any sink: what is stored of the step in the home alone."""
WHOLE = struck("nothing", f"{_DELIVER}:write_note", count=0)


@dataclass
class SinkRun:
    """A sink, and its deliverers.

    Attributes:
        lab: the run.
        name: the sink's, and of its place.
        look: compares what the sink holds now with what is served.
    """

    lab: Lab
    name: str
    look: Callable[[Mapping[Place, Values]], Holding]

    @property
    def words(self) -> tuple[str, ...]:
        """The command that delivers all."""
        return "deliver", "run", PIPELINE, "--sink", self.name, "--until-end"

    def kill(self, strike: Strike) -> None:
        """Let a deliverer be killed at a call; what the sink has then may be too little, and nothing else."""
        strike_command(self.lab, strike, *self.words)
        self.require_sound(strike.name)

    def kill_at(self, name: str, proxy: FaultProxy, what: Swallow, *, lose: bool) -> None:
        """Kill a deliverer when the proxy sees something of it, which reaches the sink or is lost."""
        proxy.swallow, proxy.lose = what, lose
        killed = self.lab.kill_when(self.start(), what.seen.is_set)
        proxy.swallow = None
        require(killed, f"the deliverer ended before '{name}'; {command_log(self.lab)}")
        self.require_sound(name)

    def start(self, strike: Strike = WHOLE, settings: Settings | None = None) -> subprocess.Popen[bytes]:
        """Start a deliverer that nobody kills."""
        return start_struck(self.lab, strike, *self.words, settings=settings)

    def deliver(self, strike: Strike = WHOLE, settings: Settings | None = None) -> int:
        """Run a deliverer that nobody kills, and return its exit code."""
        return self.lab.wait(self.start(strike, settings))

    def refused(self, when: str, strike: Strike) -> None:
        """Run a deliverer that cannot end well."""
        code = self.deliver(strike)
        require(code > 0, f"{when}: a deliverer ended with {code}: {command_log(self.lab)}")
        self.require_sound(when)

    def overtake(self, strike: Strike) -> None:
        """Stop a deliverer inside its step (SIGSTOP); another host delivers all; then the first one writes nothing."""
        with self._stopped_at(strike) as first:
            codes = self.to_the_end(another_host(self.lab))
            self.require_exact(f"another host delivered, the first deliverer standing at '{strike.name}'")
        code = self.lab.wait(first)
        require(
            code > 0, f"a deliverer that was overtaken at '{strike.name}' ended with {code}: {command_log(self.lab)}"
        )
        self.require_exact(f"the overtaken deliverer continued at '{strike.name}'")
        self.lab.fact(f"{self.name}: ends", [code, *codes])

    def stand_still(self, strike: Strike, seconds: float) -> None:
        """Stop a deliverer inside its step until the sink has ended its transaction, of which nothing counts then."""
        with self._stopped_at(strike) as process:
            time.sleep(seconds)
        code = self.lab.wait(process)
        require(code > 0, f"a deliverer whose transaction had ended, ended with {code}: {command_log(self.lab)}")
        self.require_sound(strike.name)

    @contextmanager
    def _stopped_at(self, strike: Strike) -> Iterator[subprocess.Popen[bytes]]:
        hold = Hold(self.lab, strike)
        process = hold.start(*self.words)
        hold.await_held()
        signal_group(process, signal.SIGSTOP)
        yield process
        signal_group(process, signal.SIGCONT)
        hold.release()

    def race(self) -> None:
        """Let two hosts deliver at once."""
        elsewhere = another_host(self.lab)
        both = [self.start(), self.start(settings=elsewhere)]
        self.lab.fact(f"{self.name}: race", [self.lab.wait(process) for process in both])
        self.require_sound("two hosts delivered at once")

    def finish(self) -> None:
        """Deliver the rest, and require that the sink has exactly what is served."""
        self.to_the_end()
        holding = self.require_exact("the end")
        self.lab.fact(
            f"{self.name}: sink", {name: value for name, value in asdict(holding).items() if name != "findings"}
        )

    def to_the_end(self, settings: Settings | None = None) -> list[int]:
        """Run deliverers until one ends well; return how each ended."""
        codes: list[int] = []
        while not codes or codes[-1]:
            require(len(codes) < PATIENCE, f"deliverers of {self.name} ended with {codes}: {command_log(self.lab)}")
            codes.append(self.deliver(settings=settings))
        return codes

    def require_sound(self, when: str) -> None:
        """Require that the sink has nothing doubled, wrong or unexplained."""
        holding = self._holding()
        require(holding.is_sound, f"{self.name}, {when}: {holding}")

    def require_exact(self, when: str) -> Holding:
        """Require that the sink has what is served, each row once."""
        holding = self._holding()
        is_exact = holding.is_sound and not holding.lost
        require(is_exact and holding.served > 0, f"{self.name}, {when}: {holding}")
        return holding

    def _holding(self) -> Holding:
        return self.look(read_served(Path(str(self.lab.home.place))))


def define_sinks(lab: Lab, sinks: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the run's pipeline sinks, and small batches."""

    def change(document: dict[str, Any]) -> None:
        document["deliver"] = {name: dict(sink) for name, sink in sinks.items()}
        document["stream"] |= {"max_offsets_per_trigger": 20}

    edit_definition(lab.settings, change)


def stream(lab: Lab, records: int, *, closing: bool = False) -> None:
    """Stream the next chapter of the story, and build what is served."""
    lab.produce(lab.next_plan(records=records, closing=closing))
    lab.run_to_end()
    rebuild_served(lab.home, lab.definition)


def another_host(lab: Lab) -> Settings:
    """Return the settings of another host with the same tables: the lock of a home does not reach it."""
    home = Path(tempfile.mkdtemp(prefix="another-host-", dir=lab.folder))
    shutil.copytree(lab.settings.home, home, dirs_exist_ok=True)
    return replace(lab.settings, home=home)


def shuffled(lab: Lab, *what: Callable[[], None]) -> None:
    """Do all of this in an order that the seed decides."""
    for each in lab.random.sample(what, len(what)):
        each()
