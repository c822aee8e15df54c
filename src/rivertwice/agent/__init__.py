"""Keeps pipelines in their desired state and tells people: decisions, health, alerts, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rivertwice.agent.act import record_event
    from rivertwice.agent.agent import main, supervised_names
    from rivertwice.agent.alert_gates import judge_gate, record_gate
    from rivertwice.agent.alert_kinds import (
        AGENT_DEAD,
        KINDS,
        PIPELINE,
        STREAM_KINDS,
        TASK_FAILED,
        body_of,
        is_about_stream,
        meaning_of,
        next_command,
        title_of,
    )
    from rivertwice.agent.alert_model import Alert, AlertCause, AlertPhase, AlertSeverity, Report, State, due
    from rivertwice.agent.alert_routes import Routes, config_file, load_routes
    from rivertwice.agent.alert_sender import Sender
    from rivertwice.agent.alert_store import alerts_of
    from rivertwice.agent.awaiting import Wait, WaitState, decide_wait, last_failure, look
    from rivertwice.agent.backoff import REACTIONS, next_attempt
    from rivertwice.agent.decide import HUNG_AFTER
    from rivertwice.agent.diagnose import find_causes
    from rivertwice.agent.drain import drain_all
    from rivertwice.agent.figures import Measures
    from rivertwice.agent.health import (
        AGENT_SILENT,
        SPEAKS_WITHIN,
        Condition,
        StreamObservation,
        choose_grace,
        observe_stream,
    )
    from rivertwice.agent.launch import agent_status, start_agent, stop_agent
    from rivertwice.agent.memory import load_memory
    from rivertwice.agent.metrics import measure
    from rivertwice.agent.objectives import ObjectivesView
    from rivertwice.agent.observe import has_room
    from rivertwice.agent.prometheus import AlertState, alerting_rules, dashboard, exposition, firing, judge_alerts
    from rivertwice.agent.ring import CURVES, LEVELS, STATES, RingLevel, Slots, lags_of
    from rivertwice.agent.served import definition_of_head
    from rivertwice.agent.view import (
        PipelineView,
        QualityView,
        StreamView,
        Unreadable,
        view_first_load,
        view_pipeline,
        view_quality,
        view_stream,
        view_stream_load,
    )
else:
    from rivertwice.core.face import lazy_names

    __getattr__ = lazy_names(__name__)
