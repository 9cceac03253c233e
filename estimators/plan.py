"""A job before it is sent: what it would run on, and what is wrong with it. Nothing here touches the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from estimators import distribution, source_code
from estimators.checks import channels, finished_request, local_jobs, parameters
from estimators.errors import EstimatorError
from estimators.image import Framework, instance_groups
from estimators.problem import Problem, error

if TYPE_CHECKING:
    from estimators.sdk.library import Session

_PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
"""The hyperparameter that AWS's training toolkit reads the number of processes from, for torchrun too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The hosts of a job, and what starts its ranks on them."""

    hosts: tuple[tuple[int | None, str], ...]
    """How many of which instance type: one pair, or one for each instance group; None if a training recipe says it."""
    launcher: str
    """What runs the script on each host."""
    processes_per_host: int | None
    """Ranks on each host; None if the container decides (one a GPU, or one)."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Topology:
        """Return what parameters of ``PyTorch`` describe."""
        groups = instance_groups(arguments)
        hosts: list[tuple[int | None, str]] = [(group.instance_count, group.instance_type) for group in groups]
        if "instance_type" in arguments:
            hosts.append((arguments.get("instance_count"), arguments["instance_type"]))
        given = arguments.get("distribution")
        stated = arguments.get("hyperparameters", {}).get(_PROCESSES_PER_HOST)
        return cls(
            hosts=tuple(hosts),
            launcher=distribution.launcher(given),
            processes_per_host=distribution.processes_per_host(given) or stated,
        )

    def __str__(self) -> str:
        hosts = " + ".join(
            f"{'as many as the recipe says' if count is None else count} × {instance_type}"
            for count, instance_type in self.hosts
        )
        if self.processes_per_host is None:
            return f"{hosts}, {self.launcher}"
        return f"{hosts}, {self.launcher}, {self.processes_per_host} processes on each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `Estimator.plan` found."""

    topology: Topology
    """What the job would run on."""
    problems: tuple[Problem, ...]
    """What is wrong with it, or may be."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the job from being sent."""
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that are told, and no more."""
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def require(self) -> None:
        """Raise if the job can't be sent as it is.

        Raises:
            EstimatorError: There are errors; the message lists them all.
        """
        if self.errors:
            listed = "\n".join(f"  - {problem}" for problem in self.errors)
            count = "one thing is" if len(self.errors) == 1 else f"{len(self.errors)} things are"
            raise EstimatorError(f"The job was not sent, {count} wrong with it:\n{listed}", self.errors)

    def __str__(self) -> str:
        return "\n".join([str(self.topology), *(f"{problem.severity}: {problem}" for problem in self.problems)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What ``fit`` is given, beside the parameters of the job."""

    inputs: Any = None
    """The channels."""
    job_name: str | None = None
    """The job's name, if it is given one."""
    experiment_config: Any = None
    """The experiment that the job belongs to."""


def make_plan(arguments: Mapping[str, Any], call: Call, *, session: Session | None) -> Plan:
    """Look at a job from all sides.

    Args:
        arguments: The parameters for ``PyTorch``.
        call: What it would be started with.
        session: Where the job would be sent.
    """
    problems = list(_problems(arguments, call, session))
    if not any(problem.severity == "error" for problem in problems):
        problems += _refused_at_last(arguments, call, session)
    return Plan(topology=Topology.of(arguments), problems=tuple(problems))


def make_local_plan(arguments: Mapping[str, Any], *, session: Session) -> Plan:
    """Look only at what a session's own Local Mode can't do, or ours.

    Args:
        arguments: The parameters for ``PyTorch``.
        session: Where the job would be sent.
    """
    return Plan(topology=Topology.of(arguments), problems=tuple(_local_problems(arguments, {}, session)))


def _local_problems(
    arguments: Mapping[str, Any], data: Mapping[str, Any], session: Session | None
) -> Iterator[Problem]:
    from estimators.sdk import sessions
    from estimators.sdk.adapter import adapter

    yield from local_jobs.check(
        arguments,
        data,
        by_sdk=adapter().is_local(session),
        in_studio=sessions.is_in_studio(),
        s3_endpoint=lambda: sessions.s3_client(session).meta.endpoint_url,
    )


def _problems(arguments: Mapping[str, Any], call: Call, session: Session | None) -> Iterator[Problem]:
    from estimators.sdk import request_values, sessions, training_images
    from estimators.sdk.adapter import adapter

    data = channels.by_name(call.inputs)
    local_mode = parameters.is_local_mode(arguments)
    by_sdk = local_mode and adapter().is_local(session)
    code = source_code.SourceCode.of(arguments)
    if code.entry_point is None and "training_recipe" not in arguments:
        yield error("entry_point", "missing", "Give the path of the training script.")
    yield from parameters.check_role(arguments, sessions.configured_role(session))
    yield from parameters.check_switches(arguments, adapter().switches())
    yield from parameters.check_instances(arguments)
    if not by_sdk:
        yield from parameters.check_time(arguments)
    yield from distribution.check(arguments.get("distribution"))
    yield from parameters.check_data_parallel_library(arguments, training_images.data_parallel_instance_types())
    py_version = arguments.get("py_version")
    if region := sessions.region(session):
        if chooses_image_by_version(arguments) and Framework.of(arguments, region).image_instance_type:
            chosen, refusal = training_images.choose_versions(Framework.of(arguments, region))
            py_version = chosen.py_version
            if refusal:
                yield _refused(arguments, chosen, refusal)
    elif not local_mode:
        remedy = "Set AWS_DEFAULT_REGION, or give a sagemaker_session."
        yield error("sagemaker_session", "no AWS region is configured", remedy)
    isolated = arguments.get("enable_network_isolation") is True and not by_sdk
    launcher = distribution.launcher(arguments.get("distribution"))
    yield from source_code.check(
        code,
        py_version=py_version,
        isolated=isolated,
        launcher=None if launcher == distribution.ALONE else launcher,
    )
    yield from parameters.check_metrics(arguments)
    if local_mode:
        yield from _local_problems(arguments, data, session)
    yield from channels.check(data, local_mode=local_mode)
    yield from channels.check_code_location(arguments)
    yield from channels.check_checkpoints(arguments, data, local_mode=local_mode, copied=not by_sdk)
    yield from parameters.check_hyperparameters(arguments, request_values.hyperparameter_text)
    requested = {
        **arguments,
        "job_name": call.job_name,
        "experiment_config": call.experiment_config,
        "tags": request_values.request_tags(arguments.get("tags")),
        # Of a local job's channels the names are checked: its data may lie where the API has no words for it.
        "inputs": channels.requested(dict.fromkeys(data, "s3://bucket/data") if local_mode else data) or None,
    }
    yield from parameters.check_limits(requested)


def chooses_image_by_version(arguments: Mapping[str, Any]) -> bool:
    """Return whether the job names no image, so that the versions of PyTorch and Python decide it."""
    return "image_uri" not in arguments and "training_recipe" not in arguments


def _refused_at_last(arguments: Mapping[str, Any], call: Call, session: Session | None) -> Iterator[Problem]:
    """Yield what the SDK or AWS refuses in the finished request, where no check of a parameter has said it."""
    if parameters.is_local_mode(arguments) or "training_recipe" in arguments:  # recipes come over the network
        return
    from estimators.sdk import dry_run, sessions, training_images

    if chooses_image_by_version(arguments):
        chosen, _ = training_images.choose_versions(Framework.of(arguments, sessions.region(session) or ""))
        arguments = {**arguments, **chosen.arguments}
    request, refusal = dry_run.build(
        arguments, call.inputs, job_name=call.job_name, experiment_config=call.experiment_config, session=session
    )
    problems = list(finished_request.check_form(request, arguments)) if request else []
    if refusal and not problems:
        problems = [error("sagemaker", f"the SDK refuses the job: {refusal}", "Correct what it names.")]
    yield from problems or finished_request.check_rules(request, arguments)


def _refused(arguments: Mapping[str, Any], chosen: Framework, refusal: str) -> Problem:
    """Return the SDK's refusal, with what it would accept instead."""
    from estimators.sdk import training_images

    if "framework_version" in arguments or "py_version" in arguments:
        other, still_refused = training_images.choose_versions(replace(chosen, version=None, py_version=None))
        if not still_refused:
            remedy = f"Use framework_version={other.version!r}, py_version={other.py_version!r}, or leave both out."
            return error("framework_version", f"the SDK refuses it: {refusal}", remedy)
    return error(
        "distribution" if chosen.distribution else "instance_type",
        f"the SDK refuses it: {refusal}",
        "Use another instance_type or distribution, or give an image_uri, for which the SDK checks none of this.",
    )
