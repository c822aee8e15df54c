"""Keep the archive ahead of Kafka's deletion, and report near deadlines. A thread of the agent; supervision never waits.

Each pass, for each supervised pipeline: observe its retention, write it down for `status`, page what is critical once,
and start the archive job where `decide_archive` decides so: a process in its own session, without Spark, one at a time in
the home. If the job is killed half done, nothing is lost: chunks are commits, and the next pass sees what is missing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime

from rivertwice.agent.act import page, page_over, record_event
from rivertwice.agent.keeper import Job, Keeper
from rivertwice.core import RequestError, Settings
from rivertwice.definition import load_bundle_definition
from rivertwice.log import RaceLevel, is_archiving, kafka, parse_limit
from rivertwice.retention import (
    FORMAT,
    RetentionView,
    TopicView,
    decide_archive,
    retention_file,
    summary_of,
    topics_in,
    view_retention,
)
from rivertwice.storage import read_json, replace_json
from rivertwice.stream import added_since, describe_added, has_effect
from rivertwice.timeline import Timeline, head_path

ADDED = "partitions_added"
FOREVER_EVERY_S = 120.0  # a topic that Kafka never deletes from is looked at this often only
JOB = (sys.executable, "-m", "rivertwice.log.archive_job")


class ArchiveJob(Job):
    """The job of one topic, and when its end offsets were seen, and which."""

    seen: tuple[float, Mapping[int, int]] | None = None


class RetentionKeeper(Keeper):
    """Looks at every pipeline's retention."""

    what, every_s = "retention", 10.0

    def __init__(self, settings: Settings, names: Callable[[], list[str]], stop: threading.Event) -> None:
        super().__init__(settings, names, stop)
        self._jobs: dict[str, ArchiveJob] = {}
        self._looked: dict[str, float] = {}
        self._bad: dict[str, set[str]] = {}
        self._added: dict[tuple[str, str], list[int]] = {}

    def look(self, name: str, now: datetime) -> RetentionView | None:
        """Look at one pipeline; return what was seen, or None if it is not its turn."""
        for topic, job in self._jobs.items():
            self._reap(name, topic, job, now)
        if not self._due(name):
            return None
        earlier = {topic: job.seen for topic, job in self._jobs.items() if job.seen is not None}
        try:
            view = view_retention(self._settings, name, now, earlier=earlier)
        except RequestError:  # it never ran
            return None
        self._looked[name] = time.monotonic()
        replace_json(retention_file(self._settings, name), {"format": FORMAT, **view.to_plain(now)})
        self._page(name, view, now)
        for topic_view in view.topics:
            job = self._jobs.setdefault(topic_view.log.topic, ArchiveJob())
            job.seen = (time.monotonic(), topic_view.log.end)
            self._note_added(name, topic_view, now)
            self._archive(name, topic_view, job, now)
        return view

    def _note_added(self, name: str, view: TopicView, now: datetime) -> None:
        """Report partitions that a topic got since the pipeline's first timeline began, as soon as they are there."""
        home, topic = self._settings.pipeline(name), view.log.topic
        path = head_path(home)
        if not path:
            return
        root = Timeline.load(home, path[0].timeline)
        added = added_since(root.genesis.get(topic, {}), view.log.end)
        if not added or self._added.get((name, topic)) == added:
            return
        self._added[name, topic] = added
        definition = load_bundle_definition(home.bundles, Timeline.load(home, path[-1].timeline).bundle)
        text = describe_added(definition, topic, added, root.timeline)
        record_event(self._settings, ADDED, name, text, now)
        if has_effect(definition):
            page(self._settings, ADDED, name, text, now, severity="warning", subject=topic)

    def _due(self, name: str) -> bool:
        """Say whether to look now: the whole view costs table reads, so a topic that is kept for ever is looked at rarely."""
        looked = self._looked.get(name)
        if looked is None or time.monotonic() - looked >= FOREVER_EVERY_S:
            return True
        plain = read_json(retention_file(self._settings, name)) or {}
        topics = [topic_view["topic"] for topic_view in topics_in(plain) if "topic" in topic_view]
        return not topics or any(self._is_finite(topic) for topic in topics)

    def _is_finite(self, topic: str) -> bool:
        config = kafka.topic_config(self._settings, topic)
        return any(parse_limit(config.get(key)) is not None for key in ("retention.ms", "retention.bytes"))

    def _page(self, name: str, view: RetentionView, now: datetime) -> None:
        bad = {lease.topic for lease in view.leases if lease.level >= RaceLevel.CRITICAL}
        text = (summary_of(view.to_plain(now)) if bad else "") or "retention is critical"
        for topic in sorted(bad):
            page(
                self._settings,
                "retention",
                name,
                f"{text}; see `rivertwice admin retention {name}`",
                now,
                subject=topic,
            )
        for topic in sorted(bad - self._bad.get(name, set())):
            record_event(self._settings, "retention", name, f"{topic}: {text}", now)
        self._bad[name] = bad
        lasts = bad | {
            ""
        }  # without a topic it is about a stream that is not restarted any more, which is over when it runs
        page_over(self._settings, {"retention"}, name, "nothing that is needed is about to be deleted", now, but=lasts)

    def _archive(self, name: str, view: TopicView, job: ArchiveJob, now: datetime) -> None:
        topic = view.log.topic
        busy = any(other.process is not None for other in self._jobs.values()) or is_archiving(self._settings, topic)
        attempts = replace(job.attempts, busy=busy)
        decision = decide_archive(view.log.finite, view.waiting, view.unarchived, attempts, now)
        if decision.start:
            pid = job.start(
                self._settings, [*JOB, "--topic", topic], self._settings.home / "agent" / "archive.log", now
            )
            record_event(self._settings, "archive", name, f"archiving {topic}: {decision.reason}", now, pid=pid)

    def _reap(self, name: str, topic: str, job: ArchiveJob, now: datetime) -> None:
        code = job.reap(now)
        if code is None:
            return
        text = f"the archive of {topic} is done" if code == 0 else f"the archive of {topic} failed with {code}"
        record_event(self._settings, "archived" if code == 0 else "archive_failed", name, text, now)
        failures = job.attempts.failures
        if failures >= 3:
            times = f"{text}, {failures} times in a row; read HOME/agent/archive.log"
            page(self._settings, "archive", name, times, now, subject=topic)
        if code == 0:
            page_over(self._settings, {"archive"}, name, text, now, subject=topic)
