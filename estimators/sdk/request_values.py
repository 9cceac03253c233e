"""The SDK's conversion of single parameters: code in a Git repository, tags, hyperparameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from subprocess import CalledProcessError
from typing import Any

from estimators.errors import EstimatorError
from estimators.sdk.library import format_tags, git_utils
from estimators.sdk.pipeline_variables import Unknown
from smddp.container.contract import DISTRIBUTION_GROUPS

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
