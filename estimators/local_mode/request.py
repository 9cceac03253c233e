"""The parts of a local job that the SDK gets: its request, and the parameters of the SDK's own Local Mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from estimators.checks import channels
from estimators.checks.local_jobs import NOT_IN_SDK, ONLY_SAGEMAKER
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import JobRequest, build
from smddp.job import CHECKPOINT_URI_VARIABLE

if TYPE_CHECKING:
    from estimators.sdk.library import Session

UNUSED_ROLE = "arn:aws:iam::000000000000:role/local-mode"
"""No role is assumed on this machine, but the SDK wants an ARN, and asks AWS for the ARN of a name."""
_INSTANCE_TYPE = "ml.m5.large"
"""Replaces "local" in the request, because the API's model does not know "local"."""
_NOT_GIVEN = frozenset({"checkpoint_s3_uri", "checkpoint_local_path", *ONLY_SAGEMAKER, *NOT_IN_SDK})


def build_local(
    job: CompletedJob, inputs: Any, *, job_name: str | None, session: Session
) -> tuple[JobRequest | None, str | None]:
    """Return the request of a local job and None, or None and the SDK's reason to refuse the job."""
    from estimators.sdk import training_images

    arguments = job.arguments
    try:
        image = training_images.image_uri(training_images.Framework.of(arguments, session.boto_region_name))
    except ValueError as fault:
        return None, str(fault)
    checkpoints = channels.local_path(arguments.get("checkpoint_s3_uri"))
    here = {
        "checkpoint_s3_uri": checkpoints,
        "checkpoint_local_path": checkpoints,
        "output_path": channels.local_path(arguments.get("output_path")),
        "enable_network_isolation": True,  # with it, the SDK would send the code as a channel
    }
    omitted = {"source_dir", "dependencies", "git_config", *ONLY_SAGEMAKER} | {name for name in here if here[name]}
    sdks = {name: value for name, value in arguments.items() if name not in omitted}
    sdks |= {
        "entry_point": job.source.program,
        "instance_type": _INSTANCE_TYPE,
        "image_uri": image,
        "role": arguments.get("role") or UNUSED_ROLE,
        "debugger_hook_config": False,  # the SDK's default sends tensors to S3, which a local job need not have
    }
    remote = {name: place for name, place in channels.by_name(inputs).items() if not _is_here(place)}
    built, refusal = build(sdks, remote or None, script=job.source.program, job_name=job_name, session=session)
    if built is None:
        return None, refusal
    isolated = arguments.get("enable_network_isolation") is True
    return replace(built, members={**built.members, "EnableNetworkIsolation": isolated}), None


def _is_here(place: Any) -> bool:
    """Return whether a channel's data are on this machine."""
    return channels.local_path(channels.uri_of(place)) is not None


def for_sdk(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Estimator's parameters as ``PyTorch`` takes them in the SDK's Local Mode."""
    given = {name: value for name, value in arguments.items() if name not in _NOT_GIVEN}
    if "/" not in str(given.get("role")):
        given["role"] = UNUSED_ROLE
    uri = str(arguments.get("checkpoint_s3_uri"))
    if uri.startswith("s3://"):
        given["environment"] = {CHECKPOINT_URI_VARIABLE: uri, **given.get("environment", {})}
    # Both are on by default.
    return {**given, "debugger_hook_config": False, "disable_profiler": True}
