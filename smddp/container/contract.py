"""Reads the platform's files under /opt/ml: directories, hosts and hyperparameters.

``smddp.job`` is a script's view of them; ``smddp.container.environment`` turns them into SM_* variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smddp.errors import JobError
from smddp.job.hyperparameters import read_bundled
from smddp.job.hyperparameters.sources import POINTER
from smddp.job.job import platform_directory, read_object

PLATFORM_PREFIX = "sagemaker_"

DISTRIBUTION_GROUPS = "sagemaker_distribution_instance_groups"
"""The hyperparameter with the instance groups whose hosts get ranks; other hosts run the script without a launcher."""

OWN_HYPERPARAMETERS = frozenset(
    {
        "sagemaker_program",
        "sagemaker_submit_directory",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_region",
        "sagemaker_container_log_level",
        "sagemaker_job_name",
        "sagemaker_s3_output",
        "default_user_module_name",
        "_tuning_objective_metric",
        POINTER,
    }
)
"""Hyperparameters that the toolkit reads itself; other ``sagemaker_`` ones belong to the framework."""

DISTRIBUTIONS = (
    "sagemaker_mpi_enabled",
    "sagemaker_parameter_server_enabled",
    "sagemaker_distributed_dataparallel_enabled",
    "sagemaker_pytorch_ddp_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "sagemaker_multi_worker_mirrored_strategy_enabled",
    "sagemaker_torch_distributed_enabled",
)
"""Framework hyperparameters that each request more than one plain process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contract:
    """One host's view of one training job."""

    base: Path
    """/opt/ml, or SAGEMAKER_BASE_DIR."""
    hyperparameters: Mapping[str, Any]
    """The user's hyperparameters."""
    platform: Mapping[str, Any]
    """Hyperparameters that the SDK adds, such as ``sagemaker_program``."""
    resources: Mapping[str, Any]
    """resourceconfig.json."""
    channels: Mapping[str, Any]
    """inputdataconfig.json: the channels, by name."""

    @property
    def code_dir(self) -> Path:
        """The directory of the unpacked source bundle, and the working directory of the job's processes."""
        return self.base / "code"

    @property
    def output_dir(self) -> Path:
        """The directory of ``failure`` or ``success``."""
        return self.base / "output"

    @property
    def submit_directory(self) -> str:
        """The URI of the source bundle, or the code directory if the code is in the image."""
        return str(self.platform.get("sagemaker_submit_directory", self.code_dir))

    @property
    def framework(self) -> dict[str, Any]:
        """The hyperparameters that configure the distribution."""
        return {name: value for name, value in self.platform.items() if name not in OWN_HYPERPARAMETERS}

    @property
    def hosts(self) -> list[str]:
        """All hosts, in the platform's own order."""
        return list(self.resources["hosts"])

    @property
    def current_host(self) -> str:
        """The name of this host."""
        return str(self.resources["current_host"])

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        """The instance groups, by name; more than one in a heterogeneous cluster."""
        return {group["instance_group_name"]: group for group in self.resources.get("instance_groups", [])}

    @property
    def current_group(self) -> str:
        """The name of this host's instance group."""
        return str(self.resources.get("current_group_name", "homogeneousCluster"))

    @property
    def distribution_groups(self) -> list[str]:
        """The instance groups that the distribution runs on; empty without a distribution."""
        framework = self.framework
        asked = any(framework.get(name) for name in DISTRIBUTIONS)
        return list(framework.get(DISTRIBUTION_GROUPS, [self.current_group] if asked else []))

    @property
    def distribution_hosts(self) -> list[str]:
        """The hosts of those groups."""
        if not self.groups:
            return self.hosts
        chosen = self.distribution_groups
        return [host for name, group in self.groups.items() if name in chosen for host in group["hosts"]]

    @property
    def master_host(self) -> str:
        """The host of rank 0, where the others meet."""
        return (self.distribution_hosts or self.hosts)[0]


def read_contract(environ: Mapping[str, str]) -> Contract:
    """Read the platform's configuration; raise JobError if a file is missing or does not follow the contract."""
    base = platform_directory(environ)
    config = base / "input" / "config"
    resources = _read(config / "resourceconfig.json", required=True)
    hosts, current = resources.get("hosts"), resources.get("current_host")
    if not isinstance(hosts, list) or not hosts or current not in hosts:
        raise JobError(
            f"{config / 'resourceconfig.json'} says current_host={current!r}, hosts={hosts!r}: "
            "it must name this host, and list it among the hosts."
        )
    given = {name: _decode(value) for name, value in _read(config / "hyperparameters.json").items()}
    _check_hyperparameters(given)
    platform = {n: v for n, v in given.items() if n.startswith(PLATFORM_PREFIX) or n in OWN_HYPERPARAMETERS}
    contract = Contract(
        base=base,
        hyperparameters={name: value for name, value in given.items() if name not in platform},
        platform=platform,
        resources=resources,
        channels=_read(config / "inputdataconfig.json"),
    )
    _check_groups(contract)
    return contract


def with_bundled_hyperparameters(contract: Contract) -> Contract:
    """Return the contract with the hyperparameters of the code bundle, after it was unpacked.

    Raise HyperparameterError if their file is missing or changed, JobError if one of them can't be a variable.
    """
    if POINTER not in contract.platform:
        return contract
    texts = read_bundled(contract.platform[POINTER], contract.base)
    bundled = {name: _decode(text) for name, text in texts.items()}
    _check_hyperparameters(bundled)
    return replace(contract, hyperparameters={**bundled, **contract.hyperparameters})


def _read(path: Path, *, required: bool = False) -> dict[str, Any]:
    content = read_object(path)
    if content is None and required:
        raise JobError(
            f"There is no {path}. This program runs in a SageMaker training container, whose platform writes that "
            "file; elsewhere, SAGEMAKER_BASE_DIR must name a directory that holds input/config/."
        )
    return content or {}


def _check_hyperparameters(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if fault := fault_of_hyperparameter(name, value):
            raise JobError(f"The hyperparameter {fault}")


def fault_of_hyperparameter(name: str, value: object) -> str | None:
    """Return why a hyperparameter can't be the variable SM_HP_<NAME> and the option --<name>; None if it can."""
    if "=" in name or "\0" in name:
        return (
            f"{name!r} can't be an environment variable and an option of the script: its name must have neither '=' "
            "nor U+0000. Rename it."
        )
    if "\0" in str(value):
        return f"{name} holds the character U+0000, which no variable can. Remove it."
    return None


def _check_groups(contract: Contract) -> None:
    """Check that the groups with ranks belong to the job: the toolkit would silently start separate trainings."""
    known = list(contract.groups) or [contract.current_group]
    remedy = f"Name the groups that train in the hyperparameter {DISTRIBUTION_GROUPS}, as a JSON list."
    if DISTRIBUTION_GROUPS not in contract.platform:
        if len(known) > 1 and contract.distribution_groups:
            raise JobError(
                f"The job asks for ranks and has the instance groups {', '.join(known)}, each of which would train by "
                f"itself, into one place. {remedy}"
            )
        return
    named = contract.platform[DISTRIBUTION_GROUPS]
    if not isinstance(named, list) or not named or not all(name in known for name in named):
        raise JobError(f"{DISTRIBUTION_GROUPS}={named!r}: the job's instance groups are {', '.join(known)}. {remedy}")


def _decode(value: Any) -> Any:
    try:
        return json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return value  # a bare string, as every SDK but V2 sends it, or JSON nested too deep to parse
