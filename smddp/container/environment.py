"""The environment of the job's processes: the SM_* contract, as SageMaker's own training toolkit sets it.

The names, values and encodings are the same as in sagemaker-training 5.1.4, quirks included; the tests compare with it.
Variables that the user set stay unchanged. Intended differences from the toolkit:

- ``SM_NUM_NEURONS`` is always 0: Trainium is not supported.
- ``SAGEMAKER_REGION`` comes from the job or the environment, not from boto3's configuration files.
- ``PYTHONPATH`` is the user's, after the code directory, not the whole of ``sys.path``.
- ``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME`` are set if they are unset and the interface exists;
  ``NCCL_DEBUG``, ``NCCL_IB_DISABLE`` and ``NCCL_PROTO`` are never changed.
- ``SM_DLC_TORCH_VERSION`` and the variables of EFA are not set: the image's own libraries decide.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import site
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from smddp.cluster.sagemaker import MASTER_PORT
from smddp.container.contract import Contract
from smddp.errors import JobError
from smddp.job.hyperparameters.sources import POINTER

logger = logging.getLogger(__name__)

_LONGEST_VARIABLE = 32 * 4096 - 1
"""The most bytes of a variable with its name, or of an argument, on Linux (MAX_ARG_STRLEN, execve(2))."""

_IN_TRAINING_ENV_ONLY = frozenset(
    {
        "additional_framework_parameters",
        "channel_input_dirs",
        "distribution_hosts",
        "hyperparameters",
        "is_master",
        "is_modelparallel_enabled",
        "is_smddpmprun_installed",
        "is_smddprun_installed",
        "job_name",
        "master_hostname",
        "topology",
    }
)


def sagemaker_variables(contract: Contract, environ: Mapping[str, str], *, gpus: int) -> dict[str, str]:
    """Return every SM_* variable of the toolkit, for a host with this number of GPUs.

    ``environ``, this process's own, can name the entry point and the framework's module.
    """
    view = _view(contract, environ, gpus)
    values = {name: value for name, value in view.items() if name not in _IN_TRAINING_ENV_ONLY}
    values |= {
        "channels": sorted(contract.channels),
        "framework_params": contract.framework,
        "hps": contract.hyperparameters,
        "training_env": view,
        "user_args": user_arguments(contract.hyperparameters),
    }
    values |= {f"channel_{name}": path for name, path in view["channel_input_dirs"].items()}
    values |= {f"hp_{name}": value for name, value in contract.hyperparameters.items()}
    if view["topology"]:
        values["topology"] = view["topology"]
    return {f"SM_{name.upper()}": _text(value) for name, value in values.items()}


def passable(contract: Contract, environ: Mapping[str, str], *, gpus: int) -> Contract:
    """Return the contract, without hyperparameters if variables and arguments can't hold all of them.

    Raise JobError if they don't fit and are not in the bundle, so that no script could read them otherwise.
    """
    variables = sagemaker_variables(contract, environ, gpus=gpus)
    long = [name for name, text in variables.items() if len(os.fsencode(f"{name}={text}")) > _LONGEST_VARIABLE]
    if not long:
        return contract
    found = (
        f"{', '.join(sorted(long))} would have more than {_LONGEST_VARIABLE:,} bytes, which Linux passes to no program"
    )
    if POINTER not in contract.platform:
        raise JobError(f"{found}. Send fewer hyperparameters, or bring them by a channel.")
    logger.warning(
        "%s: the script has its hyperparameters by smddp.run or smddp.Job alone, and none as variables or arguments.",
        found,
    )
    return replace(contract, hyperparameters={})


def process_environment(contract: Contract, environ: Mapping[str, str], *, gpus: int) -> dict[str, str]:
    """Return the whole environment of the job's processes."""
    region = contract.platform.get("sagemaker_region") or environ.get("AWS_REGION", environ.get("AWS_DEFAULT_REGION"))
    result = {
        **environ,
        **sagemaker_variables(contract, environ, gpus=gpus),
        "SAGEMAKER_JOB_NAME": str(contract.platform.get("sagemaker_job_name", "")),
        "SAGEMAKER_REGION": region or "",
        "CURRENT_HOST": contract.current_host,
        "PYTHONPATH": os.pathsep.join(_python_path(contract.code_dir, environ)),
    }
    for name, value in _defaults(contract, environ).items():
        if result.setdefault(name, value) != value:
            logger.info("%s stays %s, as the job set it.", name, result[name])
    return result


def user_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the user's hyperparameters as the toolkit's command line arguments."""
    arguments: list[str] = []
    for name, value in sorted(hyperparameters.items()):
        flag = f"--{name}" if len(name) > 1 else f"-{name}"
        if isinstance(value, dict):
            value = ",".join(f"{key}={item}" for key, item in sorted(value.items()))
        arguments += [flag, "" if value is None else str(value)]
    return arguments


def _view(contract: Contract, environ: Mapping[str, str], gpus: int) -> dict[str, Any]:
    """Return the toolkit's view of a job, by the toolkit's names; SM_TRAINING_ENV has all of it."""
    program = environ.get("SAGEMAKER_PROGRAM", contract.platform.get("sagemaker_program"))
    groups = contract.groups
    base = contract.base
    return {
        "additional_framework_parameters": contract.framework,
        "channel_input_dirs": {name: str(base / "input" / "data" / name) for name in contract.channels},
        "current_host": contract.current_host,
        "current_instance_group": contract.current_group,
        "current_instance_group_hosts": groups.get(contract.current_group, {}).get("hosts", []),
        "current_instance_type": contract.resources.get("current_instance_type", "local"),
        "distribution_hosts": contract.distribution_hosts,
        "distribution_instance_groups": contract.distribution_groups,
        "framework_module": environ.get("SAGEMAKER_TRAINING_MODULE"),
        "hosts": contract.hosts,
        "hyperparameters": contract.hyperparameters,
        "input_config_dir": str(base / "input" / "config"),
        "input_data_config": contract.channels,
        "input_dir": str(base / "input"),
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "is_hetero": len(groups) > 1,
        "is_master": contract.current_host == contract.master_host,
        "is_modelparallel_enabled": _model_parallel(environ),
        "is_smddpmprun_installed": shutil.which("smddpmprun") is not None,
        "is_smddprun_installed": shutil.which("smddprun") is not None,
        "job_name": environ.get("TRAINING_JOB_NAME"),
        "log_level": contract.platform.get("sagemaker_container_log_level", logging.INFO),
        "master_hostname": contract.master_host,
        "model_dir": str(base / "model"),
        "module_dir": contract.submit_directory,
        "module_name": str(program).removesuffix(".py"),
        "network_interface_name": contract.resources.get("network_interface_name", "eth0"),
        "num_cpus": os.cpu_count(),
        "num_gpus": gpus,
        "num_neurons": 0,
        "output_data_dir": str(base / "output" / "data"),
        "output_dir": str(base / "output"),
        "output_intermediate_dir": str(base / "output" / "intermediate"),
        "resource_config": contract.resources,
        "topology": contract.resources.get("topology", []),
        "user_entry_point": program,
    }


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _model_parallel(environ: Mapping[str, str]) -> bool | str | None:
    parameters = environ.get("SM_HP_MP_PARAMETERS")
    return parameters and parameters != "{}"


def _python_path(code_dir: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the code directory, the user's path, and this package's directory if the interpreter would not find it."""
    path = [str(code_dir), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    home = str(Path(__file__).resolve().parents[2])
    return path if home in {*path, *site.getsitepackages()} else [*path, home]


def _defaults(contract: Contract, environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for processes without a launcher, and for unbuffered log lines."""
    defaults = {
        "MASTER_ADDR": contract.master_host if len(contract.hosts) > 1 else "127.0.0.1",
        "MASTER_PORT": environ.get("SMDDP_MASTER_PORT", str(MASTER_PORT)),
        "PYTHONUNBUFFERED": "1",
    }
    interface = str(contract.resources.get("network_interface_name", ""))
    if interface and Path("/sys/class/net", interface).exists():
        defaults |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    return defaults
