"""The protocol model: seeded crash schedules over the product's own decisions, and every rule broken once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.model.campaign import describe_failure, render, run_campaign, uncovered
from lab.model.mutation import run_mutation
from lab.model.mutations import MUTATIONS
from lab.model.process import POINTS
from lab.model.schedule import run_schedule
from lab.model.stories import STORIES, Focus
from lab.model.versions.mutations import VERSIONS
from running.tiers import LANDING

VERSION_POINTS = ("begin: ", "compare: ", "drop: ", "serve: ", "served of a version: ")


def check(result):
    assert not result.failures, "\n".join(describe_failure(outcome) for outcome in result.failures[:2])
    return result


@pytest.mark.proves("lab/docs/protocol-model.md#invariants", "guarantees.md#what-everything-needs")
@pytest.mark.parametrize(
    ("first", "schedules"),
    [pytest.param(0, 300, id="300"), pytest.param(4000 * LANDING, 4000, marks=pytest.mark.long, id="4000 others")],
)
def test_no_invariant_breaks_in_so_many_crash_schedules(first, schedules):
    result = check(run_campaign(first, schedules))
    assert result.coverage.schedules == schedules
    assert result.states > 33 * schedules
    assert result.coverage.endings["the end of the log"] > 0.83 * schedules
    assert "never killed at" in render(result)
    others = [point for point in uncovered(result.coverage) if not point.startswith(VERSION_POINTS)]
    assert len(others) <= (8 if schedules > 300 else len(POINTS) // 2), others


@pytest.mark.proves("guarantees.md#version-switch")
def test_two_versions_live_break_no_invariant_in_sixty_schedules():
    result = check(run_campaign(0, 60, focus=VERSIONS))
    assert result.coverage.endings["the end of the log"] > 50
    reached = dict(zip(POINTS, result.coverage.reached, strict=True))
    assert not [point for point, times in reached.items() if point.startswith(VERSION_POINTS) and not times]
    killed = [point for point in uncovered(result.coverage) if point.startswith(VERSION_POINTS)]
    assert len(killed) <= 14, killed


@pytest.mark.long
@pytest.mark.proves("lab/docs/protocol-model.md#mutations")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_rule_that_is_broken_on_purpose_is_caught(mutation):
    verdict = run_mutation(mutation, seed=0, most=2000)
    assert verdict.caught, f"{mutation.name} survived {verdict.schedules} schedules"
    assert verdict.invariant


SEALED = Focus(stories=tuple(story for story in STORIES if "reconcile" in story))


@pytest.mark.parametrize("schedules", [100, pytest.param(500, marks=pytest.mark.long)])
def test_what_a_seal_lets_be_left_out_is_right_in_each_schedule(schedules):
    outcomes = [run_schedule(seed, focus=replace(SEALED, crowd=seed % 2 == 0)) for seed in range(schedules)]
    assert not [outcome.violation for outcome in outcomes if outcome.violation is not None]


def test_a_seed_repeats_its_schedule_step_by_step():
    first, again = (run_schedule(17, trace=True) for _ in range(2))
    assert first.trace == again.trace
    assert first.decisions == again.decisions
    assert run_schedule(17, decisions=first.decisions, trace=True).trace == first.trace


def test_a_failure_tells_its_seed_and_a_trace_smaller_than_it_was():
    broken = "late by the own watermark"
    outcome = next(
        found for found in (run_schedule(seed, broken=broken) for seed in range(200)) if found.violation is not None
    )
    text = describe_failure(outcome, broken=broken)
    assert f"--seed {outcome.seed} --schedules 1 --trace" in text
    assert "every pair in exactly one place" in text
    assert len(text.splitlines()) < len(outcome.decisions)
