"""The request of a job, built by the SDK in spite of errors in single parameters, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from estimators.checks import aws_limits, channels
from estimators.errors import Problem, error
from estimators.local_mode.request import build_local
from estimators.plan.prices import Prices
from estimators.request.completed_job import Backend, CompletedJob
from estimators.request.job_request import JobRequest, build, build_recipe

if TYPE_CHECKING:
    from estimators.sdk.library import Session


_STAND_INS: Mapping[str, Any] = {
    "entry_point": "train.py",
    "role": "arn:aws:iam::000000000000:role/stand-in",
    "instance_type": "ml.m5.xlarge",
    "instance_count": 1,
    "image_uri": "stand-in",
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
}
"""Values for parameters with errors without which the SDK builds no request."""
DECIDE_IMAGE = frozenset(
    {"instance_type", "instance_groups", "instance_preferences", "distribution", "framework_version", "py_version"}
)
"""Parameters by which the SDK finds the image, besides the session's region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitArguments:
    """The arguments of ``fit``, besides the parameters of the job."""

    inputs: Any = None
    """The channels."""
    job_name: str | None = None
    """The job's name, or None to generate one."""
    experiment_config: Any = None
    """The experiment that the job belongs to."""
    prices: Prices | None = None
    """The prices of instance types."""
    max_cost: float | None = None
    """The most dollars that the job may cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """The request of a job, and the result of its checks."""

    request: JobRequest | None = None
    """The request; None if the job has errors."""
    problems: Sequence[Problem] = ()
    """The refusals by the SDK, the API's model, or AWS's rules."""
    unchecked: Sequence[str] = ()
    """What the errors of parameters prevented."""


def checked_request(
    job: CompletedJob, call: FitArguments, session: Session | None, faulty: frozenset[str]
) -> CheckedRequest:
    """Build a job's request without the parameters and arguments `faulty`, which have errors, and check it.

    Training recipes and jobs for the SDK's Local Mode have no request here.
    """
    from estimators.sdk import sessions

    if "training_recipe" in job.arguments or job.backend is Backend.SDK_LOCAL_MODE:  # the SDK downloads recipes
        return CheckedRequest()
    if faulty:
        job, call, session = _without(job, faulty), _call_without(call, faulty), sessions.session_here(session)
    if job.backend is Backend.DOCKER:
        assert session is not None
        built = build_local(job, call.inputs, job_name=call.job_name, session=session)
    else:
        built = build(
            job.arguments,
            call.inputs,
            script=job.source.program,
            job_name=call.job_name,
            experiment_config=call.experiment_config,
            session=session,
        )
    return _checked(*built, job.arguments, faulty)


def _without(job: CompletedJob, faulty: frozenset[str]) -> CompletedJob:
    """Return a job without the parameters with errors, or with stand-ins for them: enough to build a request."""
    arguments = {name: value for name, value in job.arguments.items() if name not in faulty}
    needed = faulty & _STAND_INS.keys()
    if faulty & {*DECIDE_IMAGE, "sagemaker_session"} and "image_uri" not in arguments:
        needed |= {"image_uri"}
    arguments |= {name: _STAND_INS[name] for name in needed}
    source = replace(job.source, entry_point=arguments.get("entry_point"))
    return replace(job, arguments=arguments, source=source)


def _call_without(call: FitArguments, faulty: frozenset[str]) -> FitArguments:
    """Return the arguments of ``fit`` without those with errors; of the channels, the others stay."""
    given = channels.by_name(call.inputs)
    kept = {name: each for name, each in given.items() if f"inputs[{name!r}]" not in faulty}
    inputs = call.inputs if len(kept) == len(given) else kept or None
    return replace(
        call,
        inputs=None if "inputs" in faulty else inputs,
        job_name=None if "job_name" in faulty else call.job_name,
        experiment_config=None if "experiment_config" in faulty else call.experiment_config,
    )


def checked_recipe(job: CompletedJob, call: FitArguments, session: Session) -> CheckedRequest:
    """Build and check the request of a training recipe, which the SDK downloads, and whose code it uploads."""
    return _checked(
        *build_recipe(
            job.arguments,
            call.inputs,
            job_name=call.job_name,
            experiment_config=call.experiment_config,
            session=session,
        ),
        job.arguments,
    )


def _checked(
    request: JobRequest | None,
    refusal: str | None,
    arguments: Mapping[str, Any],
    faulty: frozenset[str] = frozenset(),
) -> CheckedRequest:
    """Check a request, or tell the SDK's refusal; `faulty` are the parameters with errors, which it lacks."""
    if request is None and faulty:  # the SDK may refuse that they are absent
        return CheckedRequest(unchecked=["the request as a whole"])
    if request is None:
        refused = error("sagemaker", f"the SDK refuses the job: {refusal}", "Correct what it names.")
        return CheckedRequest(problems=[refused])
    problems, unjudged = aws_limits.check_request(request.members, arguments, faulty)
    return CheckedRequest(
        request=None if problems or faulty else request,
        problems=problems,
        unchecked=[f"AWS's rules for {', '.join(unjudged)}"] if unjudged else [],
    )
