"""A pipeline's variables among a job's parameters. Their values are known only when the pipeline runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from estimators.problem import Problem, error, warning
from estimators.sdk.library import is_pipeline_variable


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


def check(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the parameters, and the arguments of ``fit``, that can't be checked before the pipeline runs."""
    for parameter, value in values.items():
        for variable in _variables(value):
            default = with_defaults(variable)
            checked = "nothing of it is" if isinstance(default, Unknown) else f"its default, {default!r}, is"
            yield warning(
                parameter,
                f"is decided by the pipeline's {_name(variable)} when it runs: {checked} checked",
                "AWS checks it then.",
            )
    hyperparameters = values.get("hyperparameters")
    for name, value in hyperparameters.items() if isinstance(hyperparameters, Mapping) else ():
        inner = None if is_pipeline_variable(value) else next(_variables(value), None)
        if inner is not None:
            yield error(
                "hyperparameters",
                f"{name!r} has the pipeline's {_name(inner)} inside it, and the SDK makes one text of it before the "
                "pipeline runs",
                "Give the variable as a hyperparameter of its own, and put the two together in the script.",
            )


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
