"""Check a job completely before it is sent.

1. Each parameter is checked by itself, and against the script.
2. The request is built, without the parameters that have errors, and checked: its form, and the rules between its
   members that need none of these parameters.
3. `Plan.unchecked` names what the errors prevented.

Only the request for AWS's prices uses the network, and `recipe_plan`, for which the SDK downloads the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from estimators import distribution, source_code
from estimators.checks import channels, local_jobs, parameters
from estimators.checks.script import imports
from estimators.checks.script.facts import ScriptFacts
from estimators.errors import Problem, error, nearest
from estimators.plan import cost, global_batch
from estimators.plan.checked_request import DECIDE_IMAGE, FitArguments, checked_recipe, checked_request
from estimators.plan.cost import Cost
from estimators.plan.global_batch import GlobalBatch
from estimators.plan.plan import Plan
from estimators.plan.prices import price_table
from estimators.plan.resources import Resources, Topology
from estimators.plan.runtime import torch_here
from estimators.request.completed_job import Backend, CompletedJob, check_bundled
from estimators.request.job_request import JobRequest
from smddp.job import CHECKPOINT_URI_VARIABLE
from smddp.script_syntax import is_installed_here

if TYPE_CHECKING:
    from estimators.sdk.library import Session
    from estimators.sdk.training_images import Framework


_COSTS_OF_THEIR_OWN = frozenset({"rules", "profiler_config"})
"""Parameters that may add instances besides the hosts."""


def make_plan(arguments: Mapping[str, Any], call: FitArguments, *, session: Session | None) -> Plan:
    """Plan a job on a session; raise EstimatorError if the prices can't be read."""
    from estimators.sdk import request_values, sessions

    given = {**arguments, "inputs": call.inputs, "job_name": call.job_name, "experiment_config": call.experiment_config}
    in_pipeline = sessions.is_of_pipeline(session)
    not_known_yet = in_pipeline and request_values.any_unknown(given)
    variables = list(request_values.check_variables(given, in_pipeline=in_pipeline))
    instance_type, as_called = arguments.get("instance_type"), call
    arguments, call = request_values.with_defaults(arguments), _with_defaults(call)
    if Backend.of(arguments, session) is Backend.DOCKER:
        session = sessions.session_here(session)  # a local job needs no region
    job, topology, request = CompletedJob.of(arguments, session), Topology.of(arguments), None
    script = _script(job.source, arguments)
    batch = GlobalBatch.of(script, arguments.get("hyperparameters", {})) if script else None
    problems = [
        *variables,
        *_problems(job, arguments, call, session),
        *check_bundled(job.bundled, job.source),
        *_script_problems(script, topology, arguments, call),
        *_model_parallel_problems(job, script, topology, session),
        *_import_problems(job, script, session),
        *_ssh_problems(job, topology, session),
        *global_batch.check(batch, topology),
    ]
    is_decided_later = in_pipeline and instance_type is not arguments.get("instance_type")
    if is_decided_later and not DECIDE_IMAGE & _faulty(problems):
        problems += _refused_variable(job, instance_type)
    unchecked = [*_unread_script(job, script, _faulty(problems))]
    if not not_known_yet:
        built = checked_request(job, call, session, _faulty(problems))
        request, problems, unchecked = built.request, [*problems, *built.problems], [*unchecked, *built.unchecked]
    paid = _cost(job, topology, request, call, session)
    if call.max_cost is not None:
        problems += cost.check(paid, call.max_cost)
    resources = None
    if request is not None and not job.backend.is_here:
        resources = Resources.of(request, job, is_named=call.job_name is not None)
    return Plan(
        topology=topology,
        problems=tuple(problems),
        unchecked=tuple(unchecked) if _faulty(problems) else (),
        global_batch=batch.size if batch else None,
        resources=resources,
        cost=paid,
        job=job,
        call=as_called if in_pipeline else call,
        request=request,
    )


def _faulty(problems: Sequence[Problem]) -> frozenset[str]:
    """Return the parameters with errors."""
    return frozenset(problem.parameter for problem in problems if problem.severity == "error")


def _unread_script(job: CompletedJob, script: ScriptFacts | None, faulty: frozenset[str]) -> Iterator[str]:
    """Yield that the script was not compared with the job because of errors in the parameters `faulty`."""
    if not job.source.is_local:
        return
    if job.source.modules.script.fault is not None or (script is None and "hyperparameters" in faulty):
        yield "the script, with its hyperparameters, channels and imports"


def _script(source: source_code.SourceCode, arguments: Mapping[str, Any]) -> ScriptFacts | None:
    """Return the facts of the script; None if it is not on this machine, or a hyperparameter can't be sent."""
    from estimators.sdk.request_values import hyperparameter_text

    if not source.is_local:
        return None
    try:
        given = {str(name): hyperparameter_text(value) for name, value in arguments.get("hyperparameters", {}).items()}
    except (TypeError, ValueError):  # the check of the parameter says which
        return None
    texts = {name: text for name, text in given.items() if text is not None}
    if len(texts) < len(given):  # a pipeline decides one of them
        return None
    try:
        return ScriptFacts.of(source.modules, texts)
    except RecursionError:  # a chain of hundreds of calls or types: the script is left unjudged
        return None


def _script_problems(
    script: ScriptFacts | None, topology: Topology, arguments: Mapping[str, Any], call: FitArguments
) -> Iterator[Problem]:
    if script is not None:
        names = channels.names(arguments, call.inputs)
        own_image = "image_uri" in arguments
        variables = arguments.get("environment")
        saves_to_s3 = isinstance(variables, Mapping) and CHECKPOINT_URI_VARIABLE in variables
        shares = topology.hosts_with_ranks == 1 or saves_to_s3 or "checkpoint_s3_uri" in arguments
        yield from script.check(
            channels=names, has_gpus=topology.has_gpus, shares_checkpoints=shares, own_image=own_image
        )


def _model_parallel_problems(
    job: CompletedJob, script: ScriptFacts | None, topology: Topology, session: Session | None
) -> Iterator[Problem]:
    from estimators.sdk import sessions, training_images

    arguments = job.arguments
    asked = distribution.model_parallel_parameters(arguments.get("distribution"))
    if asked is None:
        return
    if script is not None:
        version = arguments.get("framework_version") if job.chosen is not None else None
        yield from script.check_model_parallel(asked, aws_version=version)
    types = [name for _, name in (*topology.hosts, *topology.instead)]
    gpus = {training_images.gpus_of(name, sessions.region(session) or "") for name in types if isinstance(name, str)}
    on_each = topology.processes_per_host or (gpus.pop() if len(gpus) == 1 else None)
    if on_each and topology.hosts_with_ranks:
        yield from parameters.check_degrees(arguments, on_each * topology.hosts_with_ranks)


def _ssh_problems(job: CompletedJob, topology: Topology, session: Session | None) -> Iterator[Problem]:
    """Yield the error that hosts which are processes have no ssh, which mpi needs. A container checks its own."""
    if topology.launcher == "mpirun" and _lack_ssh(topology, session):
        yield error(
            "distribution",
            "hosts that are processes of one machine have no ssh of their own, which mpi needs between hosts",
            f"Use {' or '.join(_accepted_distributions(job.chosen, have_ssh=False))}, or one instance, or containers "
            "as hosts: LocalSageMaker(executor=Docker()).",
        )


def _lack_ssh(topology: Topology, session: Session | None) -> bool:
    """Return whether several hosts of a job are processes of this machine."""
    from estimators.sdk import sessions

    several = topology.hosts_with_ranks is not None and topology.hosts_with_ranks > 1
    return several and sessions.hosts_are_processes(session)


def _import_problems(job: CompletedJob, script: ScriptFacts | None, session: Session | None) -> Iterator[Problem]:
    """Yield the imports of modules that the job's runtime lacks; nothing if its content is not known at all.

    A PYTHONPATH in the job's environment may lead to any module.
    """
    from estimators.sdk import sessions
    from estimators.sdk.training_images import KNOWN_MODULES

    is_here = sessions.runs_in_this_python(session)
    if is_here:
        has = imports.Installed(where="in this Python, which runs the job", has=is_installed_here, is_complete=True)
    else:
        known = KNOWN_MODULES | distribution.modules(job.arguments.get("distribution"))
        has = imports.Installed(where="known to be in AWS's image", has=known.__contains__, is_complete=False)
    if "PYTHONPATH" in (job.arguments.get("environment") or {}):
        return
    if script is not None and (is_here or (is_here is None and job.chosen is not None)):
        yield from imports.check(job.source, script.nodes, has)


def _torch_of(job: CompletedJob, session: Session | None) -> str | None:
    """Return the full version of PyTorch that a job finds installed, or None if unknown."""
    from estimators.sdk import sessions

    is_here = sessions.runs_in_this_python(session)
    if is_here:
        return torch_here()
    version = job.chosen.version if job.chosen is not None and is_here is None else None
    return version if version is not None and version.count(".") == 2 else None  # "2.8" may be any of its releases


def _with_defaults(call: FitArguments) -> FitArguments:
    from estimators.sdk.request_values import with_defaults

    return replace(
        call,
        inputs=with_defaults(call.inputs) if call.inputs is not None else None,
        job_name=with_defaults(call.job_name),
        experiment_config=with_defaults(call.experiment_config),
    )


def _cost(
    job: CompletedJob, topology: Topology, request: JobRequest | None, call: FitArguments, session: Session | None
) -> Cost | None:
    arguments = job.arguments
    if job.backend.is_here:
        return None if call.prices is None and call.max_cost is None else Cost.of_this_machine()
    if call.prices is None:
        return None
    if request is not None:
        rules: tuple[str, ...] | None = cost.rule_instances(request.members)
    else:
        rules = None if _COSTS_OF_THEIR_OWN & arguments.keys() else ()
    hosts = [name for _, name in (*topology.hosts, *topology.instead)]
    types = [name for name in (*hosts, *(rules or ())) if isinstance(name, str)]
    return Cost.of(topology, arguments, price_table(call.prices, types, session), rules=rules)


def local_problems(
    backend: Backend, arguments: Mapping[str, Any], data: Mapping[str, Any], session: Session | None
) -> Iterator[Problem]:
    """Yield the problems that come from running a job on this machine."""
    from estimators.sdk import sessions

    yield from local_jobs.check(
        arguments,
        data,
        by_sdk=backend is Backend.SDK_LOCAL_MODE,
        in_studio=sessions.is_in_studio(),
        s3_endpoint=lambda: sessions.s3_client(session).meta.endpoint_url,
    )


def _problems(
    job: CompletedJob, given: Mapping[str, Any], call: FitArguments, session: Session | None
) -> Iterator[Problem]:
    """Yield the problems of each parameter by itself; `given` are the user's parameters and our defaults."""
    from estimators.sdk import request_values, sessions, training_images
    from estimators.sdk.adapter import adapter

    arguments, code, data = job.arguments, job.source, channels.by_name(call.inputs)
    local_mode, by_sdk = job.backend.is_here, job.backend is Backend.SDK_LOCAL_MODE
    if code.entry_point is None and "training_recipe" not in arguments:
        yield error("entry_point", "missing", "Give the path of the training script.")
    yield from parameters.check_role(arguments, sessions.configured_role(session))
    yield from parameters.check_switches(arguments, adapter().switches())
    yield from parameters.check_dropped(arguments)
    yield from parameters.check_instances(arguments)
    of_types = list(parameters.check_instance_types(arguments))
    yield from of_types
    are_types_valid = not any(problem.severity == "error" for problem in of_types)
    yield from parameters.check_mlflow(arguments)
    if not by_sdk:
        yield from parameters.check_time(arguments)
    yield from distribution.check(arguments.get("distribution"))
    yield from parameters.check_groups_without_ranks(arguments)
    if are_types_valid:
        supported = training_images.data_parallel_instance_types()
        yield from parameters.check_data_parallel_library(arguments, supported)
    py_version = arguments.get("py_version")
    if job.refusal and job.chosen and are_types_valid:
        region = sessions.unknown_region(session)
        have_ssh = not _lack_ssh(Topology.of(arguments), session)
        yield (
            _refused_region(region, job.refusal)
            if region
            else _refused(given, job.chosen, job.refusal, have_ssh=have_ssh)
        )
    if sessions.region(session) is None and not local_mode:
        remedy = (
            "Set AWS_DEFAULT_REGION; or to train on a local platform, give its session: "
            "sagemaker_session=platform.session."
        )
        yield error("sagemaker_session", "no AWS region is configured", remedy)
    isolated = arguments.get("enable_network_isolation") is True and not by_sdk
    gets_wheels = not local_mode and py_version is not None
    launcher = distribution.launcher(arguments.get("distribution"))
    yield from source_code.check(
        code,
        py_version=py_version,
        isolated=isolated and not gets_wheels,
        launcher=None if launcher == distribution.ALONE else launcher,
        runs_here=sessions.runs_in_this_python(session) is True
        and "PYTHONPATH" not in (arguments.get("environment") or {}),
        torch=_torch_of(job, session),
    )
    yield from parameters.check_metrics(arguments)
    if local_mode:
        yield from local_problems(job.backend, arguments, data, session)
    yield from channels.check_inputs(call.inputs)
    yield from channels.check(data, local_mode=local_mode)
    yield from channels.check_code_location(arguments)
    yield from channels.check_checkpoints(arguments, data, local_mode=local_mode, copied=not by_sdk)
    yield from parameters.check_launch_settings(arguments)
    yield from parameters.check_hyperparameters(arguments, request_values.hyperparameter_text)
    yield from parameters.check_tags(arguments)
    requested = {
        **arguments,
        "job_name": call.job_name,
        "experiment_config": call.experiment_config,
        "tags": request_values.request_tags(arguments.get("tags")),
        # Of a local job's channels only the names are checked: the API can't express a local directory.
        "inputs": channels.requested(dict.fromkeys(data, "s3://bucket/data") if local_mode else data) or None,
    }
    yield from parameters.check_limits(requested)


def recipe_plan(job: CompletedJob, call: FitArguments, session: Session) -> Plan:
    """Return the plan of a training recipe, which the SDK downloads, and whose code it uploads."""
    checked = checked_recipe(job, call, session)
    return Plan(
        topology=Topology.of(job.arguments),
        problems=tuple(checked.problems),
        unchecked=tuple(checked.unchecked),
        job=job,
        call=call,
        request=checked.request,
    )


def _refused_variable(job: CompletedJob, instance_type: Any) -> Iterator[Problem]:
    """Yield that the SDK refuses the distribution because a pipeline variable hides the instance type."""
    from estimators.sdk import training_images

    if job.chosen is None:
        return
    try:
        training_images.validated_distribution(replace(job.chosen, instance_type=instance_type))
    except ValueError as fault:
        said = " ".join(str(fault).split()).rstrip(".")
        yield error(
            "distribution",
            f"the SDK refuses it for an instance_type that the pipeline decides: {said}",
            "Give an image_uri, for which the SDK checks none of this, or the instance_type itself.",
        )


def _refused_region(region: str, refusal: str) -> Problem:
    from estimators.sdk import sessions

    remedy = f"{nearest(region, sessions.known_regions())} Correct AWS_DEFAULT_REGION, or the region of the session."
    return error("sagemaker_session", f"the SDK refuses its region: {refusal}", remedy)


def _refused(given: Mapping[str, Any], chosen: Framework, refusal: str, *, have_ssh: bool) -> Problem:
    """Return the SDK's refusal as a problem, with the versions that it would accept; `have_ssh` tells of the hosts."""
    from estimators.sdk import training_images

    if "framework_version" in given or "py_version" in given:
        other, still_refused = training_images.choose_versions(replace(chosen, version=None, py_version=None))
        if not still_refused:
            remedy = f"Use framework_version={other.version!r}, py_version={other.py_version!r}, or leave both out."
            return error("framework_version", f"the SDK refuses it: {refusal}", remedy)
    accepted = _accepted_distributions(chosen, have_ssh=have_ssh)
    return error(
        "distribution" if chosen.distribution else "instance_type",
        f"the SDK refuses it: {refusal}",
        f"Use {' or '.join([*accepted, 'another instance_type'])}, or give an image_uri, for which the SDK checks none "
        "of this.",
    )


def _accepted_distributions(chosen: Framework | None, *, have_ssh: bool) -> list[str]:
    """Return the other distributions that the SDK accepts for a job, as text; None stands for a job with an image."""
    from estimators.sdk import training_images

    def is_accepted(given: Mapping[str, Any] | None) -> bool:
        return chosen is None or not training_images.choose_versions(replace(chosen, distribution=given))[1]

    names = [name for name in distribution.GENERAL if have_ssh or name != "mpi"]
    accepted = [f"distribution={name!r}" for name in names if is_accepted(distribution.NAMES[name])]
    if (chosen is None or chosen.distribution) and is_accepted(None):
        accepted.append("no distribution (smddp.run joins the hosts, one rank on each)")
    return accepted
