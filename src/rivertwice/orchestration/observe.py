"""What supervision, the page and the gate read from the home. Reads only, and imports nothing heavy."""

from __future__ import annotations

from rivertwice.config import Settings
from rivertwice.instants import parse_iso
from rivertwice.orchestration.health import Seen
from rivertwice.store.files import read_json
from rivertwice.stream.lease import lease_owner
from rivertwice.supervise.memory import load_memory
from rivertwice.timeline.intent import read_exit, read_heartbeat, read_intent


def observe_pipeline(settings: Settings, name: str) -> Seen:
    """Return what lies in the home about one pipeline's stream."""
    home = settings.pipeline(name)
    agent = read_json(settings.home / "agent" / "heartbeat.json")
    intent = read_intent(home)
    memory = load_memory(settings, name)
    broken = memory.broken_at is not None and (intent is None or intent.updated_at <= memory.broken_at)
    return Seen(
        intent=intent,
        agent_at=parse_iso(agent["at"]) if agent else None,
        owner=lease_owner(home) is not None,
        heartbeat=read_heartbeat(home),
        last_exit=read_exit(home),
        given_up=memory.broken_because if broken else None,
    )
