"""Rules on the run time of a job, and on its wait for spot instances."""

from __future__ import annotations

from collections.abc import Iterator

from estimators.request_rules.broken_rule import BrokenRule, Request

DEFAULT_MAX_RUNTIME = 24 * 60 * 60
LONGEST_RUNTIME = 28 * 24 * 60 * 60
"""Seconds. https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html"""


def check(request: Request) -> Iterator[BrokenRule]:
    """Yield the rules that a request's StoppingCondition breaks."""
    condition, spot = request.get("StoppingCondition", {}), request.get("EnableManagedSpotTraining", False)
    max_runtime = condition.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME)
    max_wait = condition.get("MaxWaitTimeInSeconds")
    if max_runtime > LONGEST_RUNTIME:
        yield BrokenRule(
            path=("StoppingCondition", "MaxRuntimeInSeconds"),
            found=f"Invalid MaxRuntimeInSeconds {max_runtime}",
            remedy=f"It must be at most {LONGEST_RUNTIME} (28 days).",
        )
    path = ("StoppingCondition", "MaxWaitTimeInSeconds")
    if spot and (max_wait is None or max_wait < max_runtime):
        remedy = "It must be present and be greater than or equal to MaxRuntimeInSeconds"
        yield BrokenRule(
            path=path,
            found=f"Invalid MaxWaitTimeInSeconds {max_wait}",
            remedy=f"{remedy} ({max_runtime}) when EnableManagedSpotTraining is true.",
        )
    if not spot and max_wait is not None:
        remedy = "Set EnableManagedSpotTraining, or leave it out."
        yield BrokenRule(path=path, found="it is only for managed spot training", remedy=remedy)
