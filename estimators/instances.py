"""What the hosts of a job may be: of one type, in groups, or of whichever of several types AWS has first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from estimators.service_model import service_model

WITH_GPUS = ("ml.g", "ml.p")
"""How the names of instance types begin that the SDK takes for those with GPUs."""

BEYOND_PYTORCH = frozenset({"instance_preferences", "mlflow_config"})
"""Parameters of the Estimator that ``sagemaker.pytorch.PyTorch`` lacks: members of the request of the same name."""


class Preference(NamedTuple):
    """An instance type that the job takes if AWS has none of those before it."""

    instance_type: str
    instance_count: int | None
    """None if all preferences have the job's own."""
    members: Mapping[str, Any]
    """The preference as the request has it."""


def instance_groups(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the job's instance groups; none of what is no ``sagemaker.instance_group.InstanceGroup``."""
    given = arguments.get("instance_groups")
    known = ("instance_group_name", "instance_type", "instance_count")
    groups = given if isinstance(given, (list, tuple)) else ()
    return tuple(group for group in groups if all(hasattr(group, name) for name in known))


def instance_preferences(arguments: Mapping[str, Any]) -> tuple[Preference, ...]:
    """Return the instance types that the job prefers, the first one most; none of what is no preference."""
    given = arguments.get("instance_preferences")
    found = []
    for each in given if isinstance(given, (list, tuple)) else ():
        members = request_form({"instance_type": each} if isinstance(each, str) else each, "InstancePreference")
        if members is not None and isinstance(kind := members.get("InstanceType"), str):
            found.append(Preference(kind, members.get("InstanceCount"), members))
    return tuple(found)


def deciding_type(instance_types: list[str]) -> str:
    """Return the type that decides the image of hosts of several types: the first with GPUs, or the first."""
    return next((name for name in instance_types if name.startswith(WITH_GPUS)), instance_types[0])


def for_pytorch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters that ``PyTorch`` takes: hosts of one of the types that the job prefers, `complete` adds all."""
    known = {name: value for name, value in arguments.items() if name not in BEYOND_PYTORCH}
    if preferences := instance_preferences(arguments):
        known["instance_type"] = deciding_type([each.instance_type for each in preferences])
        known.setdefault("instance_count", preferences[0].instance_count or 1)
    return known


def complete(request: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a CreateTrainingJob with what ``PyTorch`` has no parameters for.

    Args:
        request: That of ``PyTorch(**for_pytorch(arguments))``.
        arguments: The parameters of the Estimator.
    """
    completed = dict(request)
    if preferences := instance_preferences(arguments):
        left = {"InstanceType"} | ({"InstanceCount"} if arguments.get("instance_count") is None else set())
        resources = {name: value for name, value in request["ResourceConfig"].items() if name not in left}
        resources["InstancePreferences"] = [dict(each.members) for each in preferences]
        # The SDK tells AWS's toolkit a type that it may not get; without, the toolkit asks the platform.
        of_type = {"sagemaker_instance_type"}
        told = {name: text for name, text in request["HyperParameters"].items() if name not in of_type}
        completed |= {"ResourceConfig": resources, "HyperParameters": told}
    if (mlflow := request_form(arguments.get("mlflow_config"), "MlflowConfig")) is not None:
        completed["MlflowConfig"] = mlflow
    return completed


def request_form(given: Any, shape: str) -> dict[str, Any] | None:
    """Return a structure of the request; None if it is none, or has a member that the API does not know.

    Args:
        given: A dict with the names of SDK V3, ``instance_type``, or those of the request; or V3's own object.
        shape: Its name in AWS's model.
    """
    if hasattr(given, "model_dump"):
        given = given.model_dump(exclude_unset=True)
    if not isinstance(given, Mapping):
        return None
    members = {"".join(map(_capital, str(name).split("_"))): value for name, value in given.items()}
    known: Mapping[str, Any] = service_model().shape_for(shape).members  # type: ignore[attr-defined]
    return members if members.keys() <= known.keys() else None


def _capital(word: str) -> str:
    return word[:1].upper() + word[1:]
