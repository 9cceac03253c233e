"""Check that a script with smddp's Trainer divides its weights, in a job that asks for smdistributed.modelparallel.

Nothing is said of a script that trains by AWS's torch.sagemaker, or by another loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from estimators.errors import Problem, error, warning
from smddp.job.model_parallel import OTHER_DEGREES, SHARD_DEGREE
from smddp.script_syntax import PACKAGE, Modules

_TRAINER, _SHARDED = f"{PACKAGE}.Trainer", f"{PACKAGE}.Sharded"
_FULLY_SHARD = "fully_shard"
_PARALLEL = frozenset({"parallel", "ddp", None})
"""The Trainer's arguments that may divide the weights; None stands for ``**options``."""
_OLDEST = Version("2.6")
"""The first PyTorch that has what `smddp.Sharded` needs."""


def check(modules: Modules, parameters: Mapping[str, Any], *, aws_version: str | None) -> Iterator[Problem]:
    """Yield the problems of such a script; `aws_version` is the PyTorch of AWS's image for the job, or None."""
    calls = [(module, call, module.full_name(call.func) or "") for module in modules.reached for call in module.calls]
    names = {name for _, _, name in calls}
    for module, call, name in calls:
        if name == _TRAINER and _has_whole_model(call) and not any(each.endswith(_FULLY_SHARD) for each in names):
            yield warning(
                "entry_point",
                f"{module.path}, line {call.lineno}, makes a Trainer that divides no weights, and the job asks for "
                "modelparallel: the Trainer will refuse it",
                "Give it parallel=smddp.Sharded.from_job(job, wrap=(Block,)), or leave modelparallel out.",
            )
    for name in OTHER_DEGREES:
        degree = parameters.get(name)
        if f"{_SHARDED}.from_job" in names and type(degree) is int and degree > 1:
            yield error(
                "distribution",
                f"asks for {name}={degree}, and the script's smddp.Sharded.from_job divides weights alone",
                f"Give 1, and a larger {SHARD_DEGREE}, or train with AWS's torch.sagemaker.",
            )
    if names & {_SHARDED, f"{_SHARDED}.from_job"} and aws_version is not None and _is_too_old(aws_version):
        yield error(
            "image_uri",
            f"missing: for modelparallel the SDK takes AWS's image of SMP, with PyTorch {aws_version}, and "
            f"smddp.Sharded needs {_OLDEST} or later",
            f"Give the URI of an image with PyTorch {_OLDEST} or later, such as AWS's for PyTorch.",
        )


def _has_whole_model(trainer: ast.Call) -> bool:
    return _PARALLEL.isdisjoint(keyword.arg for keyword in trainer.keywords)


def _is_too_old(version: str) -> bool:
    try:
        return Version(version) < _OLDEST
    except InvalidVersion:  # the check of the parameter says so
        return False
