"""Values of single parameters as the SDK takes them: pipeline variables, repositories, tags, hyperparameters."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from subprocess import CalledProcessError
from typing import Any

from estimators.errors import EstimatorError, Problem, error, warning
from estimators.sdk.library import format_tags, git_utils, is_pipeline_variable
from smddp.container.contract import DISTRIBUTION_GROUPS


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stands for a variable without a default. All checks skip it, because they do not know its type."""

    name: str

    def __str__(self) -> str:
        return f"(the pipeline's {self.name})"


def with_defaults(value: Any) -> Any:
    """Return a value with each variable replaced by its default, or by `Unknown`; the SDK's objects are copied."""
    if is_pipeline_variable(value):
        default = getattr(value, "default_value", None)
        return Unknown(_name(value)) if default is None else default
    if isinstance(value, Mapping):
        return {name: with_defaults(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_defaults(item) for item in value]
    if not _is_of_sdk(value) or not any(_variables(vars(value))):
        return value
    copied = copy.copy(value)
    vars(copied).update(with_defaults(vars(value)))
    return copied


def check_variables(values: Mapping[str, Any], *, in_pipeline: bool) -> Iterator[Problem]:
    """Yield the parameters, and the arguments of ``fit``, that have a pipeline's variable.

    `in_pipeline` is whether a pipeline sets the variables when it runs. Otherwise the job is sent at once, with their
    defaults.
    """
    for parameter, value in values.items():
        for variable in _variables(value):
            yield _of_pipeline(parameter, variable) if in_pipeline else _without_pipeline(parameter, variable)
    hyperparameters = values.get("hyperparameters") if in_pipeline else None
    for name, value in hyperparameters.items() if isinstance(hyperparameters, Mapping) else ():
        inner = None if is_pipeline_variable(value) else next(_variables(value), None)
        if inner is not None:
            yield error(
                "hyperparameters",
                f"{name!r} has the pipeline's {_name(inner)} inside it, and the SDK makes one text of it before the "
                "pipeline runs",
                "Give the variable as a hyperparameter of its own, and put the two together in the script.",
            )


def _of_pipeline(parameter: str, variable: Any) -> Problem:
    default = with_defaults(variable)
    checked = "nothing of it is" if isinstance(default, Unknown) else f"its default, {default!r}, is"
    return warning(
        parameter,
        f"is decided by the pipeline's {_name(variable)} when it runs: {checked} checked",
        "AWS checks it then.",
    )


def _without_pipeline(parameter: str, variable: Any) -> Problem:
    default, remedy = with_defaults(variable), "Give the value itself, or a PipelineSession as sagemaker_session."
    found = f"is a pipeline's variable, {_name(variable)}, and no pipeline runs this job"
    if isinstance(default, Unknown):
        return error(parameter, f"{found}: it has no value", remedy)
    return warning(parameter, f"{found}: its default, {default!r}, is used", remedy)


def any_unknown(value: Any) -> bool:
    """Return whether a value contains a variable without a default."""
    return any(isinstance(with_defaults(variable), Unknown) for variable in _variables(value))


def _variables(value: Any) -> Iterator[Any]:
    if is_pipeline_variable(value):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _variables(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _variables(item)
    elif _is_of_sdk(value):
        yield from _variables(vars(value))


def _is_of_sdk(value: Any) -> bool:
    """Return whether a value is a descriptive object of the SDK's, such as a ``TrainingInput``."""
    return type(value).__module__.partition(".")[0] == "sagemaker" and hasattr(value, "__dict__")


def _name(variable: Any) -> str:
    expression: Any = variable.expr
    return str(getattr(variable, "name", None) or expression.get("Get") or type(variable).__name__)


_IN_GIT = frozenset({"git_config", "source_dir", "dependencies"})


def cloned(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of ``PyTorch`` with a ``git_config`` cloned to this machine, as the SDK does it.

    Raise EstimatorError if the repository can't be cloned, or lacks a file.
    """
    if "git_config" not in arguments:
        return dict(arguments)
    try:
        paths = git_utils.git_clone_repo(
            *(arguments[name] for name in ("git_config", "entry_point")),
            *(arguments.get(name) for name in ("source_dir", "dependencies")),
        )
    except (ValueError, CalledProcessError) as fault:
        raise EstimatorError(f"git_config: {fault}") from fault
    return {name: value for name, value in {**arguments, **paths, "git_config": None}.items() if value}


def without_repository(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of ``PyTorch`` without a repository and the paths in it, so that the SDK clones nothing."""
    skipped = _IN_GIT if "git_config" in arguments else frozenset()
    return {name: value for name, value in arguments.items() if name not in skipped}


def request_tags(tags: Any) -> Any:
    """Return tags in the request's form: a list of ``{"Key": …, "Value": …}``."""
    return format_tags(tags)


def trained_groups(distribution: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the hyperparameter that names the instance groups with ranks; empty if the distribution names no groups.

    SDK V2 sends it for mpirun and SMDDP, but drops torchrun's groups: each group would train by itself. `distribution`
    is the SDK's validated dict, with names of groups.
    """
    groups = (distribution or {}).get("instance_groups")
    return {DISTRIBUTION_GROUPS: groups} if groups else {}


def hyperparameter_text(value: Any) -> str | None:
    """Return a hyperparameter as the request's JSON, or None for a pipeline's variable.

    Raise TypeError if JSON can't hold the value, and ValueError if it contains itself.
    """
    return None if isinstance(value, Unknown) else json.dumps(value, default=_text_of_unknown)


def _text_of_unknown(value: Any) -> str:
    """Return the text for a pipeline's variable inside a value; another check refuses such a value."""
    if isinstance(value, Unknown):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
