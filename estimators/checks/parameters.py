"""Check a job parameter by parameter: the rules that no other file owns.

Each function checks one subject and yields problems. The API's limits are in ``aws_limits``, the distribution's rules
in ``distribution``, the code's in ``source_code``, S3 prefixes in ``channels``; ``aws_limits`` also finds
parameters that exclude each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from estimators.checks import aws_limits
from estimators.distribution import model_parallel_parameters, trained_groups, uses_data_parallel_library
from estimators.errors import Problem, error, warning
from estimators.instances import instance_groups, instance_preferences, request_form
from estimators.request_rules import LONGEST_RUNTIME
from smddp.container.command import PROCESSES_IN_ALL, PROCESSES_PER_HOST, check_processes, check_settings
from smddp.container.contract import fault_of_hyperparameter
from smddp.errors import JobError
from smddp.job.model_parallel import degree_fault

Arguments = Mapping[str, Any]

_WITHOUT_WHICH_DROPPED: Mapping[str, str] = {
    "checkpoint_local_path": "checkpoint_s3_uri",
    "model_channel_name": "model_uri",
    "recipe_overrides": "training_recipe",
    "training_repository_credentials_provider_arn": "training_repository_access_mode",
}
"""Parameters that the SDK silently ignores without another one."""

_ROLE_NAME = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)
"""IAM's rule for the name of a role."""

_WRONG_IN_JAVA_TOO = ("missing )", "unbalanced parenthesis", "unterminated character set", "nothing to repeat")
"""Beginnings of `re` messages about patterns that are invalid in Java, too: AWS uses Java's regexes."""


def is_local_mode(arguments: Arguments) -> bool:
    """Return whether the job runs in Docker containers on this machine."""
    return arguments.get("instance_type") in ("local", "local_gpu")


def check_limits(arguments: Arguments) -> Iterator[Problem]:
    """Yield violations of the API's limits by parameters that go into the request unchanged."""
    elsewhere = {"hyperparameters", "instance_type", "role"}
    if is_local_mode(arguments):
        elsewhere.add("output_path")
    if not str(arguments.get("checkpoint_s3_uri")).startswith("s3://"):
        elsewhere.add("checkpoint_s3_uri")
    for parameter in aws_limits.FIELDS:
        if parameter not in elsewhere and arguments.get(parameter) is not None:
            yield from aws_limits.check(parameter, arguments[parameter])


def check_switches(arguments: Arguments, names: frozenset[str]) -> Iterator[Problem]:
    """Yield the parameters among `names` that are neither True nor False; objects of the SDK's own classes pass."""
    for name in sorted(names & arguments.keys()):
        value = arguments[name]
        # 0 and 1 pass as in Python; the check of the request refuses them if they would be sent.
        if isinstance(value, (str, float, list, tuple, Mapping)) or (type(value) is int and value not in (0, 1)):
            yield error(name, f"is {value!r}, of type {type(value).__name__}", "Give True or False.")


def check_dropped(arguments: Arguments) -> Iterator[Problem]:
    """Yield parameters that would not reach the request. For local jobs `local_jobs` checks more."""
    if is_local_mode(arguments):
        return
    for name, needed in _WITHOUT_WHICH_DROPPED.items():
        if name in arguments and not arguments.get(needed):
            yield warning(name, f"without {needed} the SDK drops it in silence", f"Give {needed}, or leave it out.")


def check_instances(arguments: Arguments) -> Iterator[Problem]:
    """Yield problems of the number of hosts, and of the parameters that name their types."""
    groups, instance_type = arguments.get("instance_groups"), arguments.get("instance_type")
    if groups and (instance_type or arguments.get("instance_count")):
        yield error("instance_groups", "given together with instance_type or instance_count", "Give one or the other.")
    preferences, known = arguments.get("instance_preferences"), instance_preferences(arguments)
    if preferences is not None and (groups or instance_type):
        remedy = "Give one of the three."
        yield error("instance_preferences", "given together with instance_type or instance_groups", remedy)
    if preferences is not None and not (known and len(known) == len(preferences)):
        remedy = 'Give a list such as ["ml.p4d.24xlarge", {"instance_type": "ml.g5.48xlarge", "instance_count": 2}].'
        yield error("instance_preferences", f"it is {preferences!r:.200}", remedy)
    if preferences is None and not groups and not instance_type:
        remedy = "Give one, such as 'ml.g5.xlarge', or instance_groups, or instance_preferences."
        yield error("instance_type", "missing", remedy)
    if groups and (not isinstance(groups, (list, tuple)) or len(instance_groups(arguments)) != len(groups)):
        remedy = "Give a list of sagemaker.instance_group.InstanceGroup."
        yield error("instance_groups", f"it is {groups!r:.100}", remedy)
    count = arguments.get("instance_count")
    if isinstance(count, int) and count < 1:
        yield error("instance_count", f"it is {count}", "Give at least 1.")


def check_instance_types(arguments: Arguments) -> Iterator[Problem]:
    """Yield the instance types that SageMaker does not have, and those that the installed botocore does not know.

    With an error here, a check that depends on the type would report the same mistake again.
    """
    given = arguments.get("instance_type")
    if given is not None and not str(given).startswith("local"):
        yield from _check_instance_type("instance_type", given)
    for preference in instance_preferences(arguments):
        if preference.instance_type.startswith("local"):
            remedy = "Give it as the instance_type alone."
            yield error("instance_preferences", f"{preference.instance_type!r} is this machine", remedy)
        else:
            yield from _check_instance_type("instance_preferences", preference.instance_type)
    for group in instance_groups(arguments):
        yield from _check_instance_type("instance_groups", group.instance_type)


def _check_instance_type(parameter: str, name: Any) -> Iterator[Problem]:
    if isinstance(name, str) and not name.startswith("ml."):
        yield error(parameter, f"{name!r} is no type of SageMaker's", aws_limits.nearest_instance_type(f"ml.{name}"))
        return
    for problem in aws_limits.check("instance_type", name):
        yield replace(problem, parameter=parameter)


def check_mlflow(arguments: Arguments) -> Iterator[Problem]:
    """Yield a problem if mlflow_config is not a valid structure."""
    given = arguments.get("mlflow_config")
    if given is not None and request_form(given, "MlflowConfig") is None:
        known = "mlflow_resource_arn, mlflow_experiment_name, mlflow_run_name"
        yield error("mlflow_config", f"it is {given!r:.200}", f"Give a dict with {known}.")


def check_groups_without_ranks(arguments: Arguments) -> Iterator[Problem]:
    """Yield the instance groups whose hosts run the script outside the distribution."""
    trained = {group.instance_group_name for group in trained_groups(arguments)}
    others = [str(name) for group in instance_groups(arguments) if (name := group.instance_group_name) not in trained]
    if others:
        yield warning(
            "distribution",
            f"the hosts of {', '.join(others)} get no ranks: each runs the script once, by itself",
            "Let the script ask SM_CURRENT_INSTANCE_GROUP what to do there, before it trains.",
        )


def check_time(arguments: Arguments) -> Iterator[Problem]:
    """Yield problems of the time limits, for training and for waiting for spot instances."""
    max_run, max_wait = arguments.get("max_run"), arguments.get("max_wait")
    spot = arguments.get("use_spot_instances")
    if isinstance(max_run, int) and max_run > LONGEST_RUNTIME:
        yield error("max_run", f"it is {max_run} s", f"SageMaker runs a job for at most {LONGEST_RUNTIME} s (28 days).")
    if spot is True and max_wait is None:
        yield error(
            "max_wait",
            "missing: a spot job must say how long it may take, waiting included",
            f"Give at least max_run ({max_run} s), with time to wait for instances.",
        )
    if not spot and max_wait is not None:
        yield error(
            "max_wait",
            "only spot jobs wait",
            "Set use_spot_instances=True, or leave max_wait out.",
        )
    if isinstance(max_run, int) and isinstance(max_wait, int) and spot and max_wait < max_run:
        yield error(
            "max_wait",
            f"it is {max_wait} s, less than max_run ({max_run} s), which it includes",
            f"Give at least {max_run}.",
        )
    if spot is True and not arguments.get("checkpoint_s3_uri"):
        yield warning(
            "checkpoint_s3_uri",
            "missing: after an interruption the spot job starts from the beginning",
            "Give an S3 prefix; what the script writes to /opt/ml/checkpoints is kept there.",
        )


def check_role(arguments: Arguments, configured_role: str | None) -> Iterator[Problem]:
    """Yield a missing role, or one that is neither an ARN nor a name; a local job needs none.

    The SDK asks IAM for the ARN of a name.
    """
    if is_local_mode(arguments):
        return
    role = arguments.get("role")
    is_name = isinstance(role, str) and _ROLE_NAME.fullmatch(role)
    if role and not is_name and any(aws_limits.check("role", role)):
        remedy = "Give the ARN, such as arn:aws:iam::123456789012:role/SageMaker, or the role's name."
        yield error("role", f"{role!r:.200} is no ARN of an IAM role", remedy)
    if not role and not configured_role:
        yield error(
            "role",
            "missing",
            "Give the ARN, or the name, of an IAM role that SageMaker may assume and that may read your data "
            "(in SageMaker Studio: sagemaker.get_execution_role()).",
        )


def check_data_parallel_library(arguments: Arguments, supported: tuple[str, ...]) -> Iterator[Problem]:
    """Yield instance types that don't support SMDDP."""
    if not uses_data_parallel_library(arguments.get("distribution")):
        return
    if is_local_mode(arguments):
        yield warning(
            "distribution",
            "SMDDP is only in AWS's images for P4d and P4de",
            "With any other image, the ranks log that it is missing, and reduce over NCCL (GPUs) or gloo (CPUs).",
        )
        return
    groups = trained_groups(arguments)
    several = [*groups, *instance_preferences(arguments)]
    types = {arguments.get("instance_type"), *(getattr(each, "instance_type", None) for each in several)}
    for instance_type in sorted(name for name in types if isinstance(name, str) and name not in supported):
        yield error(
            "distribution",
            f"SMDDP does not run on {instance_type}",
            f"It runs on {', '.join(supported)}. Use 'torchrun' (NCCL) on any other.",
        )


def check_degrees(arguments: Arguments, ranks: int) -> Iterator[Problem]:
    """Yield a degree of ``smdistributed.modelparallel`` by which a job's ranks can't be divided."""
    if fault := degree_fault(model_parallel_parameters(arguments.get("distribution")) or {}, ranks):
        found, remedy = fault
        yield error("distribution", f"modelparallel: {found}", remedy)


def check_hyperparameters(arguments: Arguments, text_of: Callable[[Any], str | None]) -> Iterator[Problem]:
    """Yield problems of the hyperparameters; `text_of` returns a value as the SDK sends it, or None if unknown."""
    texts: dict[str, str] = {}
    given = arguments.get("hyperparameters", {})
    yield from _names_that_are_no_text(dict.fromkeys(given), "the dict")
    for name, value in given.items():
        if fault := _fault_in(value, text_of):
            remedy = "Give what JSON can hold: text, numbers, booleans, None, lists and dicts of them."
            yield error("hyperparameters", f"{name!r} can't be sent: {fault}", remedy)
        else:
            texts[str(name)] = text_of(value) or ""
            yield from _names_that_are_no_text(value, f"{name!r}")
            if "\0" not in str(name) and (told := fault_of_hyperparameter(str(name), value)):
                found, _, remedy = told.rstrip(".").rpartition(". ")
                yield error("hyperparameters", found, f"{remedy}.")
    yield from aws_limits.check("hyperparameters", texts)


def _names_that_are_no_text(value: Any, of: str) -> Iterator[Problem]:
    """Yield the names in a dict, and in dicts inside it, that JSON changes to text: 1 and "1" become one name."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                yield error(
                    "hyperparameters",
                    f"{of} has the name {name!r:.100}, of type {type(name).__name__}, and JSON has only text as names",
                    f"Give text, such as {str(name)!r:.100}; a field of type dict[int, ...] of the script's dataclass "
                    "reads the text of a number as that number.",
                )
            yield from _names_that_are_no_text(inner, f"{of}[{name!r:.100}]")
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _names_that_are_no_text(inner, f"{of}[{number}]")


def check_tags(arguments: Arguments) -> Iterator[Problem]:
    """Yield an error for each tag with None as key or value: the SDK would send the text ``None``.

    Numbers as text are valid. `aws_limits` refuses the text of a list or dict.
    """
    tags = arguments.get("tags")
    for key, value in tags.items() if isinstance(tags, Mapping) else ():
        if key is None or value is None:
            remedy = "Give text, '' for a tag without a value, or leave the tag out."
            yield error("tags", f"[{key!r}] is {value!r:.100}, and the SDK would send the text 'None'", remedy)


def check_launch_settings(arguments: Arguments) -> Iterator[Problem]:
    """Yield launch settings that the container would refuse."""
    environment = arguments.get("environment")
    for name in (PROCESSES_PER_HOST, PROCESSES_IN_ALL):
        processes = arguments.get("hyperparameters", {}).get(name, 1)
        yield from _refused("hyperparameters", partial(check_processes, name, processes))
    if isinstance(environment, Mapping) and all(isinstance(value, str) for value in environment.values()):
        yield from _refused("environment", lambda: check_settings(environment))


def _refused(parameter: str, check: Callable[[], None]) -> Iterator[Problem]:
    """Yield the error that a check of the container's raises."""
    try:
        check()
    except JobError as fault:
        yield error(parameter, str(fault).rstrip("."), "Correct it, or leave it out.")


def _fault_in(value: Any, text_of: Callable[[Any], str | None]) -> str | None:
    try:
        text_of(value)
    except (TypeError, ValueError) as fault:
        return str(fault)
    return None


def check_metrics(arguments: Arguments) -> Iterator[Problem]:
    """Yield problems of the regexes that find metrics in the log."""
    definitions = arguments.get("metric_definitions")
    for definition in definitions if isinstance(definitions, (list, tuple)) else ():
        if isinstance(definition, Mapping) and isinstance(
            definition.get("Regex"), str
        ):  # if not, the API's limits report it
            yield from _check_metric(definition.get("Name"), definition["Regex"])


def _check_metric(name: Any, regex: str) -> Iterator[Problem]:
    try:
        compiled = re.compile(regex)
    except re.error as fault:
        if fault.msg.startswith(_WRONG_IN_JAVA_TOO):
            yield error("metric_definitions", f"{name}: {regex!r} is no regular expression: {fault}", "Correct it.")
        else:
            found = f"{name}: Python can't compile {regex!r}: {fault}"
            yield warning("metric_definitions", found, "AWS reads it as a Java regex: check it in Java.")
        return
    if compiled.groups == 0:
        remedy = "Put parentheses around the number, as in 'loss=([0-9.]+)'."
        yield error("metric_definitions", f"{name}: {regex!r} captures nothing", remedy)
