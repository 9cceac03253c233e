"""The request of a job of ``instance_type="local"``: the SDK's, without the places on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from estimators.checks import channels
from estimators.checks.local_jobs import ONLY_SAGEMAKER
from estimators.local_mode.sdk_arguments import UNUSED_ROLE
from estimators.request.completed_job import CompletedJob
from estimators.request.job_request import JobRequest, build

if TYPE_CHECKING:
    from estimators.sdk.library import Session

_INSTANCE_TYPE = "ml.m5.large"
"""Replaces "local" in the request, because the API's model does not know "local"."""


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
