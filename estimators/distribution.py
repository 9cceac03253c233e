"""The kinds of distribution: what starts the ranks of a job, its name in the SDK, and what it needs.

A distribution is only described and checked by itself here. The SDK decides whether it fits an instance type and a
version (``estimators.sdk``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimators.errors import EstimatorError, Problem, error, nearest, warning
from estimators.instances import instance_groups
from smddp.container.command import PROCESSES_PER_HOST
from smddp.job.model_parallel import SHARD_DEGREE, faults


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionKind:
    """One way to start the ranks, as a key of the SDK's ``distribution`` dict."""

    key: str
    """The key in the dict."""
    launcher: str
    """What starts the ranks on each host, in words."""
    options: frozenset[str] = frozenset({"enabled"})
    """The options that the SDK reads in the key's dict; it silently ignores all others."""
    libraries: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The options that the SDK reads in each dict nested in the key's dict."""
    beside: frozenset[str] = field(default_factory=frozenset)
    """Keys that may be enabled together with this one. With any other, the SDK silently drops one of the two."""


_MPI_OPTIONS = frozenset({"enabled", "custom_mpi_options"})

ALONE = "the script alone"
"""The launcher of a job whose script starts once on each host."""

KINDS: Mapping[str, DistributionKind] = {
    kind.key: kind
    for kind in (
        DistributionKind(key="torch_distributed", launcher="torchrun", beside=frozenset({"smdistributed"})),
        DistributionKind(key="pytorchddp", launcher="mpirun, for SMDDP", options=_MPI_OPTIONS),
        DistributionKind(
            key="mpi",
            launcher="mpirun",
            options=_MPI_OPTIONS | {"processes_per_host"},
            beside=frozenset({"smdistributed"}),
        ),
        DistributionKind(
            key="smdistributed",
            launcher="mpirun, for SMDDP",
            options=frozenset({"dataparallel", "modelparallel"}),
            libraries={"dataparallel": _MPI_OPTIONS, "modelparallel": frozenset({"enabled", "parameters"})},
            beside=frozenset({"torch_distributed", "mpi"}),
        ),
        DistributionKind(key="parameter_server", launcher=ALONE),
        DistributionKind(key="pytorchxla", launcher="PyTorch/XLA"),
    )
}
"""The kinds by the SDK's key. The SDK ignores an unknown key."""

NAMES: Mapping[str, Mapping[str, Any]] = {
    "torchrun": {"torch_distributed": {"enabled": True}},
    "pytorchddp": {"pytorchddp": {"enabled": True}},
    "mpi": {"mpi": {"enabled": True}},
    "smdistributed": {"smdistributed": {"dataparallel": {"enabled": True}}},
    "parameter_server": {"parameter_server": {"enabled": True}},
}
"""The SDK's dict for each name that ``Estimator(distribution="…")`` takes."""

GENERAL = ("torchrun", "mpi")
"""The names of the distributions that start ranks without a library of AWS's."""

_INSTANCE_GROUPS = "instance_groups"
"""A key next to the kind: the instance groups whose hosts get ranks."""


def from_name(distribution: Any) -> Any:
    """Return the SDK's dict for a name, or raise EstimatorError if it is unknown; other values stay as they are."""
    if isinstance(distribution, Mapping):
        return dict(distribution)
    if not isinstance(distribution, str):
        return distribution
    if distribution not in NAMES:
        raise EstimatorError(
            f"distribution={distribution!r} is not known. {nearest(distribution, NAMES)} "
            f"Or give the SDK's dict, such as {NAMES['torchrun']}."
        )
    return dict(NAMES[distribution])


def enabled_kinds(distribution: Mapping[str, Any] | None) -> tuple[DistributionKind, ...]:
    """Return the kinds that the distribution turns on."""
    return tuple(kind for key, kind in KINDS.items() if _is_enabled(key, _mapping(distribution).get(key)))


def uses_data_parallel_library(distribution: Mapping[str, Any] | None) -> bool:
    """Return whether the ranks start for SMDDP (``smdistributed.dataparallel``)."""
    given = _mapping(distribution)
    return _is_on(given.get("pytorchddp")) or _is_on(_mapping(given.get("smdistributed")).get("dataparallel"))


def modules(distribution: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the modules that the images for this distribution have, and others may lack."""
    uses_library = uses_data_parallel_library(distribution) or _model_parallel(distribution)
    return frozenset({"smdistributed"} if uses_library else ())


def model_parallel_parameters(distribution: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the valid parameters of SMP v2 (``smdistributed.modelparallel`` under torchrun), or None."""
    parameters = _parameters(_model_parallel(distribution))
    if not _is_on(_mapping(distribution).get("torch_distributed")) or parameters is None or any(faults(parameters)):
        return None
    return parameters


def _model_parallel(distribution: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the options of an enabled ``smdistributed.modelparallel``, or an empty mapping."""
    options = _mapping(_mapping(_mapping(distribution).get("smdistributed")).get("modelparallel"))
    return options if _is_on(options) else {}


def _parameters(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the parameters in the options of modelparallel: a dict, or as the SDK takes it, the path of a JSON file.

    Return None for anything else, and without options.
    """
    stated = options.get("parameters", {} if options else None)
    if isinstance(stated, str):
        try:
            stated = json.loads(Path(stated).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
    return stated if isinstance(stated, Mapping) else None


def trained_groups(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the job's instance groups whose hosts get ranks: all of them if the distribution names none."""
    given = _mapping(arguments.get("distribution"))
    return instance_groups(given) or instance_groups(arguments)


def launcher(distribution: Mapping[str, Any] | None) -> str:
    """Return what starts the script on each host, in words."""
    kinds = enabled_kinds(distribution)
    return kinds[0].launcher if kinds else ALONE


def processes_per_host(distribution: Mapping[str, Any] | None) -> int | None:
    """Return the ranks on each host, or None if the distribution does not say: then one for each GPU, or one."""
    mpi = _mapping(_mapping(distribution).get("mpi"))
    count = mpi.get("processes_per_host") if _is_on(mpi) else None
    return count if isinstance(count, int) else None


def check(distribution: Mapping[str, Any] | None) -> Iterator[Problem]:
    """Yield problems: invalid values, and what the SDK or the images ignore."""
    if distribution is not None and not isinstance(distribution, Mapping):
        found = f"is {distribution!r:.100}, of type {type(distribution).__name__}"
        yield error("distribution", found, f"Give a name ({', '.join(sorted(NAMES))}), or the SDK's dict.")
    given = {key: value for key, value in _mapping(distribution).items() if key != _INSTANCE_GROUPS}
    groups = _mapping(distribution).get(_INSTANCE_GROUPS) or []
    if not isinstance(groups, (list, tuple)) or len(instance_groups(_mapping(distribution))) != len(groups):
        remedy = "Give a list of the job's own sagemaker.instance_group.InstanceGroup objects."
        yield error("distribution", f"instance_groups is {groups!r:.100}", remedy)
    for key, options in given.items():
        yield from _check_key(key, options)
    enabled = enabled_kinds(distribution)
    clashes = [
        (one, other) for one in enabled for other in enabled if one.key < other.key and _clash(one, other, given)
    ]
    for one, other in clashes:
        yield error(
            "distribution",
            f"{one.key} beside {other.key}: only one of them can start the ranks, the other is dropped in silence",
            "Keep one of the two.",
        )
    yield from _check_model_parallel(given, {kind.key for kind in enabled})
    if "parameter_server" in {kind.key for kind in enabled}:
        yield warning(
            "distribution",
            "AWS's PyTorch images ignore parameter_server: each host runs the script once, with no launcher",
            "Use 'torchrun' for DistributedDataParallel.",
        )


def _check_key(key: str, options: Any) -> Iterator[Problem]:
    where = "distribution"
    if key not in KINDS:
        yield error(where, f"the SDK ignores the key {key!r} in silence, and starts no ranks", nearest(key, KINDS))
        return
    if not isinstance(options, Mapping):
        yield error(where, f"{key} is {options!r}, not a dict", f"Give {{{key!r}: {{'enabled': True}}}}.")
        return
    read = {key: (options, KINDS[key].options)}
    read |= {f"{key}.{name}": (_mapping(options.get(name)), known) for name, known in KINDS[key].libraries.items()}
    for name, (stated, known) in read.items():
        if unknown := sorted(set(stated) - known):
            found = f"the SDK ignores {', '.join(unknown)} of {name} in silence"
            yield error(where, found, f"It reads {', '.join(sorted(known))}.")
    if key != "smdistributed" and "enabled" not in options:
        yield error(where, f"{key} has no 'enabled', so it is off", f"Give {{{key!r}: {{'enabled': True, …}}}}.")
    switches = {key: options, **{f"{key}.{name}": library for name, library in options.items()}}
    for name, switched in switches.items():
        if not isinstance(enabled := _mapping(switched).get("enabled", False), bool):
            yield error(where, f"'enabled' of {name} is {enabled!r}", "Give True or False.")
    if key == "mpi":
        count = options.get("processes_per_host", 1)
        if type(count) is not int or count < 1:
            remedy = "Give a whole number, at least 1, or leave it out for one per GPU, or one."
            yield error(where, f"processes_per_host of mpi is {count!r}", remedy)
        elif "processes_per_host" in options and options.get("enabled") is False:
            remedy = f"For torchrun, give it as the hyperparameter {PROCESSES_PER_HOST}."
            yield error(where, "processes_per_host of mpi does nothing, for mpi is off", remedy)


def _check_model_parallel(given: Mapping[str, Any], enabled: Collection[str]) -> Iterator[Problem]:
    where, options = "distribution", _model_parallel(given)
    if not options:
        return
    parameters = _parameters(options)
    if parameters is None:
        found = f"parameters of modelparallel is {options.get('parameters')!r:.100}"
        yield error(where, found, "Give a dict, or the path of a JSON file with one.")
    elif "torch_distributed" in enabled:
        for found, remedy in faults(parameters):
            yield error(where, f"modelparallel: {found}", remedy)
        if not parameters:
            found = "modelparallel has no parameters: the SDK sends nothing of it, so the script alone decides"
            yield warning(where, found, f"Give one, such as {{{SHARD_DEGREE!r}: 0}}, which is SMP's default.")
    elif "mpi" not in enabled:
        found = "modelparallel without torch_distributed: each host would run the script once, by itself"
        yield error(where, found, "Add 'torch_distributed': {'enabled': True}.")
    elif SHARD_DEGREE in parameters:
        found = f"{SHARD_DEGREE} beside mpi: mpirun starts SMP v1, which has no such parameter"
        yield error(where, found, "Use torch_distributed instead of mpi.")


def _clash(one: DistributionKind, other: DistributionKind, given: Mapping[str, Any]) -> bool:
    keys = {one.key, other.key}
    if keys == {"mpi", "smdistributed"}:
        # The model-parallel library runs under mpirun; SMDDP brings its own.
        return uses_data_parallel_library(given)
    return other.key not in one.beside


def _is_enabled(key: str, options: Any) -> bool:
    if key == "smdistributed":
        return any(_is_on(library) for library in _mapping(options).values())
    return _is_on(options)


def _is_on(options: Any) -> bool:
    return _mapping(options).get("enabled") is True


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
