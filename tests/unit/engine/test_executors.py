"""What is said while no executor of a cluster works."""

from __future__ import annotations

import pytest

from rivertwice.engine.executors import describe_missing, waiting_reasons

FULL = "0/1 nodes are available: 1 Insufficient cpu"
APP = "spark-0123"


def pending(message: str) -> dict[str, object]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"{message}."}
    return {"status": {"phase": "Pending", "conditions": [condition]}}


def without_image() -> dict[str, object]:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "shop:2"'}
    scheduled = {"type": "PodScheduled", "status": "True"}
    container = {"image": "shop:2", "state": {"waiting": waiting}}
    return {"status": {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [container]}}


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([pending(FULL), pending(FULL)], [f"2 of its pods Pending: {FULL}"]),
        ([without_image()], ['1 of its pods ImagePullBackOff: Back-off pulling image "shop:2"']),
        ([{"status": {"phase": "Running"}}], []),
        ([{"status": {"phase": "Pending"}}], ["1 of its pods Pending"]),
        ([], []),
    ],
)
def test_pods_that_do_not_run_are_named_with_what_kubernetes_says_of_them(
    pods: list[dict[str, object]], said: list[str]
) -> None:
    assert waiting_reasons({"items": pods}) == said


def test_the_number_of_executors_and_the_reason_are_said_and_what_to_do() -> None:
    text = describe_missing(2, 130.0, [f"2 of its pods Pending: {FULL}"], on_kubernetes=True, app=APP)
    assert text == (
        "0 of 2 executors of this application have registered for 2 min, so nothing is computed; "
        f"2 of its pods Pending: {FULL}: free or add what is missing, or ask for less in spark-defaults.conf"
    )


def test_without_a_reason_it_is_said_where_to_look() -> None:
    assert f"spark-app-selector={APP}" in describe_missing(2, 60.0, [], on_kubernetes=True, app=APP)
    standalone = describe_missing(None, 60.0, [], on_kubernetes=False, app=APP)
    assert standalone.startswith("0 executors of this application")
    assert "no free slot" in standalone
