"""The request's hyperparameters: the user's, and those that tell AWS's training toolkit how to start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from estimators.sdk.library import fw_utils
from estimators.sdk.request_values import trained_groups
from estimators.sdk.v3.parameters import Parameters

_WITHOUT_PARALLEL_LIBRARIES = "2.0.1-gpu-py310-cu121"
"""The tag of the only AWS image whose CUDA version the data-parallel library does not support."""


def request_hyperparameters(
    parameters: Parameters, *, job_name: str, region: str, code: tuple[str, str]
) -> dict[str, str]:
    """Return the hyperparameters as JSON text, for `parameters` with a validated distribution.

    `code` is the location of the code in the containers, and the script in it.
    """
    directory, script = code
    values = {
        **(parameters.hyperparameters or {}),
        "sagemaker_submit_directory": directory,
        "sagemaker_program": script,
        "sagemaker_container_log_level": parameters.container_log_level,
        "sagemaker_job_name": job_name,
        "sagemaker_region": region,
        **_launcher(parameters),
    }
    return {str(name): json.dumps(value) for name, value in values.items()}


def _launcher(parameters: Parameters) -> dict[str, Any]:
    """Return the hyperparameters that tell the toolkit how to start the ranks."""
    distribution = parameters.distribution or {}
    if not _mapping(distribution, "torch_distributed").get("enabled", False):
        return _mpi_and_libraries(parameters, distribution)
    libraries = _mpi_and_libraries(parameters, distribution) if "smdistributed" in distribution else {}
    return {
        **libraries,
        **trained_groups(distribution),
        "sagemaker_torch_distributed_enabled": True,
        **_instance_type(parameters.instance_type),
    }


def _mpi_and_libraries(parameters: Parameters, distribution: Mapping[str, Any]) -> dict[str, Any]:
    values = trained_groups(distribution)
    if "parameter_server" in distribution:
        enabled = _mapping(distribution, "parameter_server").get("enabled", False)
        values["sagemaker_parameter_server_enabled"] = enabled
    if "mpi" in distribution:
        mpi = _mapping(distribution, "mpi")
        values["sagemaker_mpi_enabled"] = mpi.get("enabled", False)
        if mpi.get("processes_per_host"):
            values["sagemaker_mpi_num_of_processes_per_host"] = mpi["processes_per_host"]
        values["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options", "")
    if "smdistributed" in distribution:
        values |= _libraries(parameters, distribution)
    starts = ("sagemaker_mpi_enabled", "sagemaker_distributed_dataparallel_enabled")
    if trained_groups(distribution) and not any(values.get(name) for name in starts):
        raise ValueError("Don't set training instance groups while no distribution strategies enabled!")
    return values


def _libraries(parameters: Parameters, distribution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters for SMDDP and the model-parallel library."""
    if not _mapping(distribution, "torch_distributed").get("enabled", False):
        if _WITHOUT_PARALLEL_LIBRARIES in (parameters.image_uri or ""):
            raise ValueError(f"SMDistributed is currently incompatible with DLC image: {parameters.image_uri}.")
        if any("p5.48xlarge" in instance_type for instance_type in parameters.instance_types):
            raise ValueError("SMModelParallel and SMDataParallel currently do not support p5 instances.")
    data_parallel = _mapping(distribution["smdistributed"], "dataparallel")
    enabled = data_parallel.get("enabled", False)
    values: dict[str, Any] = {
        "sagemaker_distributed_dataparallel_enabled": enabled,
        "sagemaker_instance_type": parameters.instance_type,
    }
    if model_parallel := fw_utils.get_mp_parameters(distribution):
        values["mp_parameters"] = model_parallel
    if enabled:
        options = data_parallel.get("custom_mpi_options", "")
        values["sagemaker_distributed_dataparallel_custom_mpi_options"] = options
    return values


def _instance_type(instance_type: str | None) -> dict[str, str]:
    return {} if instance_type is None else {"sagemaker_instance_type": instance_type}


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name, {})
    return found if isinstance(found, Mapping) else {}
