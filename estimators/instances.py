"""The hosts of a job: of one type, in groups, or of the first available of several preferred types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from estimators.service_model import service_model

WITH_GPUS = ("ml.g", "ml.p")
"""Prefixes of the instance types that the SDK treats as having GPUs."""

_GPU_MIB = {
    16384: ("g4dn", "g5g", "p3"),
    22888: ("g5", "g6", "gr6"),
    32768: ("g7", "p3dn"),
    40960: ("p4d",),
    45776: ("g6e",),
    81920: ("p4de", "p5"),
    98304: ("g7e",),
    144384: ("p5e", "p5en"),
    183359: ("p6-b200",),
    275040: ("p6-b300",),
}
"""Families by the MiB of each GPU, as EC2's DescribeInstanceTypes has it; g6f and gr6f have parts of a GPU."""

# docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html
_TYPE = re.compile(r"ml\.[a-z][a-z0-9-]*\.(nano|micro|small|medium|large|[0-9]*xlarge|metal(-[0-9]+xl)?)")

_SMALL_SIZES = ("nano", "micro", "small", "medium", "large")

BEYOND_PYTORCH = frozenset({"instance_preferences", "mlflow_config"})
"""Parameters of the Estimator that ``sagemaker.pytorch.PyTorch`` lacks; each sets the request member of the same name.
"""


def gpu_bytes(instance_type: str) -> int | None:
    """Return the memory of each GPU of an instance; None if the type has no GPU or is unknown."""
    family = _family(instance_type).removeprefix("ml.")
    return next((mib << 20 for mib, families in _GPU_MIB.items() if family in families), None)


def families_with(memory: int) -> list[str]:
    """Return the families for training whose GPUs have at least this memory in bytes, the smallest GPUs first."""
    known = {_family(name) for name in service_model().shape_for("TrainingInstanceType").metadata["enum"]}
    large_enough = [f"ml.{each}" for mib, families in _GPU_MIB.items() if mib << 20 >= memory for each in families]
    return [family for family in large_enough if family in known]


def may_be_new(instance_type: str) -> bool:
    """Return whether AWS may add an instance type of this name: a family and one of EC2's sizes."""
    return _TYPE.fullmatch(instance_type) is not None


def known_sizes(instance_type: str, known: Iterable[str]) -> list[str]:
    """Return the known types of the same family, from the smallest to the largest; [] if the family is unknown."""
    family = _family(instance_type)
    return sorted((each for each in known if _family(each) == family), key=_size)


def sizes_beside(instance_type: str, known: Iterable[str]) -> list[str]:
    """Return the next smaller and the next larger known type of the same family, of a type that `may_be_new`."""
    sizes = known_sizes(instance_type, known)
    smaller = sum(_size(each) < _size(instance_type) for each in sizes)
    return sizes[max(smaller - 1, 0) : smaller + 1]


def _family(instance_type: str) -> str:
    return instance_type.rpartition(".")[0]


def _size(instance_type: str) -> tuple[int, int]:
    """Return a key that sorts types of one family by size."""
    size = instance_type.rpartition(".")[2]
    if size.endswith("xlarge"):
        return len(_SMALL_SIZES), int(size.removesuffix("xlarge") or 1)
    return (_SMALL_SIZES.index(size), 0) if size in _SMALL_SIZES else (len(_SMALL_SIZES) + 1, 0)  # metal


class Preference(NamedTuple):
    """An instance type that the job runs on if none of the types before it is available."""

    instance_type: str
    instance_count: int | None
    """None if all preferences use the job's instance_count."""
    members: Mapping[str, Any]
    """The preference as a member of the request."""


def instance_groups(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the job's instance groups, without objects that are no ``sagemaker.instance_group.InstanceGroup``."""
    given = arguments.get("instance_groups")
    known = ("instance_group_name", "instance_type", "instance_count")
    groups = given if isinstance(given, (list, tuple)) else ()
    return tuple(group for group in groups if all(hasattr(group, name) for name in known))


def instance_preferences(arguments: Mapping[str, Any]) -> tuple[Preference, ...]:
    """Return the job's preferred instance types, most preferred first, without invalid entries."""
    given = arguments.get("instance_preferences")
    found = []
    for each in given if isinstance(given, (list, tuple)) else ():
        members = request_form({"instance_type": each} if isinstance(each, str) else each, "InstancePreference")
        if members is not None and isinstance(kind := members.get("InstanceType"), str):
            found.append(Preference(kind, members.get("InstanceCount"), members))
    return tuple(found)


def deciding_type(instance_types: list[str]) -> str:
    """Return the type that decides the image for hosts of several types: the first with GPUs, or else the first."""
    return next((name for name in instance_types if name.startswith(WITH_GPUS)), instance_types[0])


def for_pytorch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that ``PyTorch`` accepts. `complete` adds the others to the request.

    Of several preferred instance types, ``PyTorch`` gets the one that decides the image.
    """
    known = {name: value for name, value in arguments.items() if name not in BEYOND_PYTORCH}
    if preferences := instance_preferences(arguments):
        known["instance_type"] = deciding_type([each.instance_type for each in preferences])
        known.setdefault("instance_count", preferences[0].instance_count or 1)
    return known


def complete(request: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the CreateTrainingJob request with the members that ``PyTorch`` can't set.

    `request` is the request made by ``PyTorch(**for_pytorch(arguments))``.
    """
    completed = dict(request)
    if preferences := instance_preferences(arguments):
        left = {"InstanceType"} | ({"InstanceCount"} if arguments.get("instance_count") is None else set())
        resources = {name: value for name, value in request["ResourceConfig"].items() if name not in left}
        resources["InstancePreferences"] = [dict(each.members) for each in preferences]
        # This hyperparameter names a type that the job may not get. Without it, AWS's toolkit asks the platform.
        of_type = {"sagemaker_instance_type"}
        told = {name: text for name, text in request["HyperParameters"].items() if name not in of_type}
        completed |= {"ResourceConfig": resources, "HyperParameters": told}
    if (mlflow := request_form(arguments.get("mlflow_config"), "MlflowConfig")) is not None:
        completed["MlflowConfig"] = mlflow
    return completed


def request_form(given: Any, shape: str) -> dict[str, Any] | None:
    """Return a structure named `shape` in the API's model, or None if the value is invalid or has an unknown member.

    The value is a dict with names like SDK V3's ``instance_type`` or the API's ``InstanceType``, or an object of SDK
    V3.
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
