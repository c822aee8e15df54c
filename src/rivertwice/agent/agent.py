"""The agent: one per home, keeps every pipeline in its desired state and `served` up to date.

Each pass, for each pipeline that has an intent:
1. observe (reads only), and count an end that happened since the last pass;
2. decide (pure);
3. record the intended action, then act, then record that it is done.

Its death does no harm: drivers run in their own sessions, and the next agent adopts them by pid, start
and epoch. SIGTERM to the agent leaves the drivers running, unless it was started to drain them (containers).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TextIO

import psutil

from rivertwice.agent.act import ask_to_drain, page, page_over, record_event, start_driver, start_fall_back
from rivertwice.agent.alert_kinds import AGENT_DEAD
from rivertwice.agent.alert_sender import SenderThread
from rivertwice.agent.alerting import AlertKeeper, AlertScan, end_stream_alerts
from rivertwice.agent.archiver import RetentionKeeper
from rivertwice.agent.backoff import needs_own_jvm
from rivertwice.agent.by_schedule import Plan, Run, is_open
from rivertwice.agent.decide import BY_SCHEDULE, QUEUED, Action, ActionKind, Observed, Quiet, decide, runs_as_wanted
from rivertwice.agent.delivery import DeliveryKeeper
from rivertwice.agent.disk import DiskWatch
from rivertwice.agent.drain import drain_all, end_fast_paths
from rivertwice.agent.fast import FastKeeper
from rivertwice.agent.keeper import Keeper, LogKeeper
from rivertwice.agent.listening import ListenKeeper
from rivertwice.agent.memory import (
    DIED,
    RESTORED,
    Intended,
    Memory,
    lasting_pages,
    load_memory,
    remember_fall_back,
    save_memory,
)
from rivertwice.agent.metrics_http import serve_metrics
from rivertwice.agent.observe import observe, observe_fall_back
from rivertwice.agent.samples import SampleKeeper
from rivertwice.agent.savepoints import SavepointKeeper
from rivertwice.agent.served import ServedKeeper
from rivertwice.core import (
    PIPELINE,
    DamagedFileError,
    RivertwiceError,
    ServiceError,
    Settings,
    hide_addresses,
    log_to_stdout,
    open_locked,
    own_start,
    stop_on_signals,
    to_iso,
    utc_now,
)
from rivertwice.definition import load_draft
from rivertwice.deliver import tables_behind
from rivertwice.storage import replace_json
from rivertwice.timeline import Intent, UpkeepState, keep_up_if_due

# Look after the tables of every supervised pipeline, apart from supervision, which must not wait for it.

AGAIN = timedelta(minutes=10)
"""Upkeep that failed, or that another writer was faster than, is tried again after this time."""


class UpkeepKeeper(Keeper):
    """Merges and sweeps the tables when it is due (`timeline.upkeep.is_due`); an error is recorded, and the agent continues."""

    what, every_s = "upkeep", 30.0

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        super().__init__(settings, names, stop)
        self._since: dict[str, datetime] = {}
        self._not_before: dict[str, datetime] = {}

    def look(self, name: str, now: datetime) -> list[UpkeepState]:
        """Look after one pipeline's tables if that is due, and record what was done."""
        since = self._since.setdefault(name, now)
        if now < self._not_before.get(name, now):
            return []
        self._not_before[name] = now + AGAIN
        try:
            done = keep_up_if_due(
                self._settings.pipeline(name),
                since=since,
                now=now,
                verdicts_kept=self._settings.verdicts_kept,
                unswept=lambda: tables_behind(self._settings, name),
            )
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            message = f"upkeep failed, tried again in {AGAIN.total_seconds():.0f} s: {text}"
            record_event(self._settings, "upkeep_failed", name, message, now)
            raise
        if not any(table_report.is_outrun for table_report in done):
            del self._not_before[name]
        worked = [
            table_report
            for table_report in done
            if table_report.deleted or table_report.files_after < table_report.files_before
        ]
        if worked:
            text = ", ".join(
                f"{table_report.table} {table_report.files_before} to {table_report.files_after} files, {table_report.deleted} deleted"
                for table_report in worked
            )
            record_event(self._settings, "upkeep", name, text, now)
        return done


LOG = logging.getLogger(__name__)
FORMAT = 1
PASS_S = 0.5
BEAT_S = 1.0
ALONE_AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
"""Runs by schedule of streams without a group that may be at work at a time; of a group it is one."""


def supervised_names(settings: Settings) -> list[str]:
    """Return the pipelines with an intent, sorted; folders whose name could not be a pipeline's are left alone."""
    names = (path.parent.name for path in (settings.home / "pipelines").glob("*/intent.json"))
    return sorted(name for name in names if PIPELINE.match(name))


class Agent:
    """Supervises all pipelines of one home; one pass at a time."""

    def __init__(self, settings: Settings, look_at: Callable[[str], AlertScan | None] = lambda _name: None) -> None:
        """Create an agent; it does nothing until `run_pass`.

        Args:
            look_at: returns the newest look at a pipeline's log.
        """
        self._settings = settings
        self._look_at = look_at
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._memories: dict[str, Memory] = {}
        self._positions: dict[str, tuple[tuple[str, int | None], datetime]] = {}
        self._spoken: dict[str, tuple[ActionKind, str]] = {}
        self._plans: dict[str, tuple[tuple[int, int], Plan | None]] = {}
        self._broken_names: dict[str, str] = {}
        self.actions: dict[str, Action] = {}

    def run_pass(self, now: datetime) -> None:
        """Observe, decide and act once for every pipeline; one that fails does not stop the others."""
        for name in supervised_names(self._settings):
            try:
                self.actions[name] = self._supervise(name, now)
                self._broken_names.pop(name, None)
                page_over(self._settings, {DamagedFileError.reason}, name, "its records can be read again", now)
            except (RivertwiceError, OSError, ValueError, KeyError, TypeError, psutil.Error) as error:
                text = f"{type(error).__name__}: {error}"
                if self._broken_names.get(name) != text:
                    LOG.exception("supervising %s failed; tried again in the next pass", name)
                self.actions[name] = Action(ActionKind.WAIT, f"supervision failed: {text}")
                if self._broken_names.get(name) != text:
                    self._broken_names[name] = text
                    record_event(self._settings, "error", name, text, now)
                    if isinstance(error, DamagedFileError):
                        page(self._settings, error.reason, name, str(error), now)

    def _supervise(self, name: str, now: datetime) -> Action:
        settings, home = self._settings, self._settings.pipeline(name)
        memory = self._memories.get(name) or load_memory(settings, name)
        observed, ended = observe(
            settings, name, memory, partial(self._reap, name), now, self._positions.get(name, (None, None))[1]
        )
        memory = observed.memory
        if ended is not None:
            kind = "drained" if ended.clean else "exit"
            fields = {"epoch": ended.driver.epoch, "pid": ended.driver.pid, "class": str(ended.failure)}
            record_event(settings, kind, name, ended.message, now, **fields)
            LOG.info("%s: driver pid %s ended (%s): %s", name, ended.driver.pid, ended.failure, ended.message)
            save_memory(settings, name, memory)
        memory = self._end_fall_back(name, memory, now)
        planned = self._plan_of(name, memory, now)
        if planned != memory.plan:
            memory = replace(memory, plan=planned)
            save_memory(settings, name, memory)
        if memory.asleep_since is not None and observed.drain is not None and observed.drain.held:
            memory = replace(memory, asleep_since=None)  # an operation changes where the stream is
            save_memory(settings, name, memory)
        look = self._look_at(name)
        quiet = None if look is None else Quiet(look.hibernate, look.measures.lag_records, look.at)
        intent = Intent.load(home)
        observed = replace(observed, memory=memory, quiet=quiet, ahead=self._find_ahead(name, memory, intent))
        self._memories[name] = memory
        self._track(name, observed, now)
        action = decide(intent, observed, now)
        end_stream_alerts(settings, name, action, runs_as_wanted(action, observed), now)
        if action.kind is ActionKind.WAIT:
            self._say_once(name, action, now)
            if observed.owner is None and observed.launched is None and observed.drain and observed.drain.by_agent:
                home.drain.unlink(missing_ok=True)
            return action
        memory = replace(memory, intended=Intended(str(action.kind), action.reason, now, done=False))
        if action.kind is ActionKind.START and memory.plan is not None and intent is not None:
            # Before the start: an agent that dies in between makes the run again.
            memory = replace(memory, run=Run.begin(memory.run, intent, now))
        save_memory(settings, name, memory)
        memory = self._act(name, action, observed, memory, now)
        if memory.intended is not None:
            memory = replace(memory, intended=replace(memory.intended, done=True))
        save_memory(settings, name, memory)
        self._memories[name] = memory
        self._spoken[name] = (action.kind, action.reason)
        return action

    def _plan_of(self, name: str, memory: Memory, now: datetime) -> Plan | None:
        """Return whether the definition lets the stream run by schedule; one that cannot be read leaves it as it was."""
        folder = self._settings.definition_folder(name)
        try:
            stat = (folder / "pipeline.yaml").stat()
            seen = (stat.st_mtime_ns, stat.st_size)
            if name not in self._plans or self._plans[name][0] != seen:
                pins = load_draft(folder).stream
                plan = None if pins.runs_at is None else Plan(pins.runs_at, pins.group, now)
                self._plans[name] = (seen, plan)
        except (OSError, RivertwiceError):
            return memory.plan
        plan, known = self._plans[name][1], memory.plan
        if plan is not None and known is not None and (plan.schedule, plan.group) == (known.schedule, known.group):
            return known
        return plan

    def _find_ahead(self, name: str, memory: Memory, intent: Intent | None) -> str | None:
        """Return the stream whose run comes before this one's: streams by schedule run in turn, the first that was asked for first."""
        if memory.plan is None or intent is None or not is_open(intent, memory.run):
            return None
        group = memory.plan.group
        others = {
            other: each
            for other, each in sorted(self._memories.items())
            if other != name and each.plan is not None and each.plan.group == group
        }
        at_work = [other for other, each in others.items() if each.driver is not None]
        free = (1 if group else ALONE_AT_ONCE) - len(at_work)
        if free <= 0:
            return at_work[0]
        before = [other for other, each in others.items() if self._waits(other, each, intent.asked_at)]
        return before[0] if len(before) >= free else None

    def _waits(self, name: str, memory: Memory, before: datetime) -> bool:
        """Say whether a run was asked for before an instant and could start now; one in its backoff lets the others go first."""
        action = self.actions.get(name)
        if action is None or not action.reason.startswith((BY_SCHEDULE, QUEUED)):
            return False
        intent = Intent.load(self._settings.pipeline(name))
        return (
            intent is not None
            and intent.desired == "running"
            and is_open(intent, memory.run)
            and intent.asked_at < before
        )

    def _act(self, name: str, action: Action, observed: Observed, memory: Memory, now: datetime) -> Memory:
        settings = self._settings
        LOG.info("%s: %s: %s", name, action.kind, action.reason)
        fields: dict[str, int | None] = {}
        event = str(action.kind)
        if action.kind is ActionKind.START:
            if memory.broken_at is not None:
                memory = replace(memory, failures=(), broken_at=None, broken_because="", fall_back=None)
            driver, child = start_driver(settings, name, now, own_jvm=needs_own_jvm(memory.failures))
            self._children[name] = child
            memory = replace(memory, driver=driver, last_start_at=now, paged=lasting_pages(memory), asleep_since=None)
            fields["pid"] = driver.pid
        elif action.kind is ActionKind.ADOPT:
            known = memory.driver
            same = known is not None and observed.owner is not None and known.pid == observed.owner.pid
            memory = replace(memory, driver=observed.owner, paged=memory.paged if same else (), asleep_since=None)
            event = "lease" if same else event
            if observed.owner is not None:
                fields |= {"pid": observed.owner.pid, "epoch": observed.owner.epoch}
        elif action.kind in (ActionKind.DRAIN, ActionKind.HIBERNATE):
            ask_to_drain(settings.pipeline(name), "agent", now)
            memory = replace(memory, asleep_since=now if action.kind is ActionKind.HIBERNATE else None)
        elif action.kind is ActionKind.RESTORE:
            before = memory.fall_back
            attempt = before.attempt + 1 if before is not None and before.outcome == DIED else 1
            started, child = start_fall_back(settings, name, attempt, memory.failures[-1].at, now)
            self._children[f"{name}/fall-back"] = child
            memory = replace(memory, fall_back=started)
            fields |= {"pid": started.pid, "attempt": attempt}
        elif action.kind is ActionKind.PAGE:
            page(settings, action.page, name, action.reason, now)
            memory = replace(memory, paged=(*memory.paged, action.page))
        elif action.kind is ActionKind.STOP_AND_PAGE:
            page(settings, action.page, name, action.reason, now)
            memory = replace(memory, broken_at=now, broken_because=action.reason)
        record_event(settings, event, name, action.reason, now, **fields)
        return memory

    def _end_fall_back(self, name: str, memory: Memory, now: datetime) -> Memory:
        self._reap_fall_back(name)
        ended = observe_fall_back(self._settings, name, memory)
        if ended is None:
            return memory
        memory = remember_fall_back(memory, ended)
        save_memory(self._settings, name, memory)
        LOG.info("%s: the fall-back ended (%s): %s", name, ended.outcome, ended.message)
        record_event(self._settings, f"fall_back_{ended.outcome}", name, ended.message, now)
        if ended.outcome == RESTORED:
            page(self._settings, "fell_back", name, ended.message, now, severity="warning")
        return memory

    def _reap_fall_back(self, name: str) -> None:
        child = self._children.get(f"{name}/fall-back")
        if child is not None and child.poll() is not None:
            del self._children[f"{name}/fall-back"]

    def _reap(self, name: str, pid: int) -> int | None:
        child = self._children.get(name)
        return child.poll() if child is not None and child.pid == pid else None

    def _track(self, name: str, observed: Observed, now: datetime) -> None:
        beat = observed.heartbeat
        position = ("", None) if beat is None else (beat.timeline, beat.batch)
        if name not in self._positions or self._positions[name][0] != position:
            self._positions[name] = (position, now)

    def _say_once(self, name: str, action: Action, now: datetime) -> None:
        if not action.reason.startswith(("backoff", "given up", "somebody holds", "the agent ended")):
            return
        if self._spoken.get(name) != (action.kind, action.reason):
            self._spoken[name] = (action.kind, action.reason)
            record_event(
                self._settings, "backoff" if action.reason.startswith("backoff") else "wait", name, action.reason, now
            )


def run_agent(settings: Settings, stop: threading.Event, drain_s: float | None = None) -> None:
    """Supervise until `stop` is set.

    Args:
        drain_s: seconds in which its drivers are drained before it ends; None leaves them running.

    Raises:
        ServiceError: another agent already supervises this home, or a driver did not drain in time.
    """
    folder = settings.home / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder)
    try:
        names = partial(supervised_names, settings)
        alerts = AlertKeeper(settings, names, stop)
        agent = Agent(settings, alerts.newest_of)
        kinds = (ServedKeeper, RetentionKeeper, UpkeepKeeper, SavepointKeeper, FastKeeper, DeliveryKeeper)
        keepers: list[Keeper] = [kind(settings, names, stop) for kind in kinds]
        keepers += [alerts, SampleKeeper(settings, names, stop, alerts.newest_of), ListenKeeper(settings, stop)]
        for keeper in keepers:
            keeper.start()
        end_metrics = serve_metrics(settings, alerts.newest, utc_now)
        LogKeeper(settings, stop).start()
        sender = SenderThread(settings, stop)
        sender.start()
        disk = DiskWatch(settings)
        disk.keep_reserve()
        with disk.noted():
            page_over(settings, {AGENT_DEAD}, None, f"agent pid {os.getpid()} runs", utc_now())
            record_event(settings, "agent_start", None, f"agent pid {os.getpid()} starts", utc_now())
        last_beat: datetime | None = None
        while not stop.is_set():
            now = utc_now()
            try:
                agent.run_pass(now)
                if last_beat is None or (now - last_beat).total_seconds() >= BEAT_S:
                    _beat(folder / "heartbeat.json", agent, now)
                    disk.wrote(now)
                    last_beat = now
            except OSError as error:
                disk.failed(error, now)
            stop.wait(PASS_S)
        drivers_state = "drivers are left running" if drain_s is None else _drain(settings, drain_s)
        for keeper in keepers:
            keeper.join(keeper.join_s)
        sender.join(timeout=15.0)
        if end_metrics is not None:
            end_metrics()
        with disk.noted():
            record_event(settings, "agent_stop", None, f"agent stops; {drivers_state}", utc_now())
    finally:
        lock.close()


def _drain(settings: Settings, seconds: float) -> str:
    """Drain all drivers and end the fast paths; return a text about it."""
    names = supervised_names(settings)
    fast = end_fast_paths(settings, names)
    drained = drain_all(settings, names, "agent stop", seconds, LOG.info)
    return f"drained: {', '.join(drained) or 'nothing ran'}" + (
        f"; ended fast paths: {', '.join(fast)}" if fast else ""
    )


def _lock(folder: Path) -> TextIO:
    lock = open_locked(folder / "lock")
    if lock is None:
        message = f"another agent supervises {folder.parent}; this one ends; see `rivertwice agent status`"
        raise ServiceError(message)
    return lock


def _beat(path: Path, agent: Agent, now: datetime) -> None:
    replace_json(
        path,
        {
            "format": FORMAT,
            "pid": os.getpid(),
            "pid_started": own_start(),
            "at": to_iso(now),
            "pipelines": {
                name: {"action": str(action.kind), "reason": action.reason} for name, action in agent.actions.items()
            },
        },
    )


def main(drain_s: float | None = None) -> int:
    """Run the agent in this process; the environment names the home. Return the exit code.

    Args:
        drain_s: seconds in which SIGTERM drains the drivers; None leaves them running.
    """
    log_to_stdout()
    hide_addresses()
    stop = stop_on_signals()
    try:
        run_agent(Settings.from_env(), stop, drain_s)
    except RivertwiceError as error:
        LOG.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
