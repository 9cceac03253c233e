"""What the SDK makes of single parameters: code in a Git repository, tags, hyperparameters."""

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
    """Return parameters of ``PyTorch`` whose code is on this machine: a ``git_config`` is cloned, as the SDK does it.

    Raises:
        EstimatorError: The repository can't be had, or lacks what is asked for.
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
    """Return parameters of ``PyTorch`` by which the SDK clones nothing: without the paths in a repository, and it."""
    skipped = _IN_GIT if "git_config" in arguments else frozenset()
    return {name: value for name, value in arguments.items() if name not in skipped}


def request_tags(tags: Any) -> Any:
    """Return tags in the form of the request: a list of ``{"Key": …, "Value": …}``."""
    return format_tags(tags)


def trained_groups(distribution: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the hyperparameter that tells the container which instance groups get ranks; none without groups.

    SDK V2 sends it for mpirun and SMDDP, and drops the groups of torchrun: each group would train by itself.

    Args:
        distribution: As the SDK has checked it, with the groups' names.
    """
    groups = (distribution or {}).get("instance_groups")
    return {DISTRIBUTION_GROUPS: groups} if groups else {}


def hyperparameter_text(value: Any) -> str | None:
    """Return a hyperparameter as the request holds it: as JSON; None for what a pipeline will know.

    Raises:
        TypeError: JSON can't hold it.
        ValueError: It contains itself.
    """
    return None if isinstance(value, Unknown) else json.dumps(value, default=_text_of_unknown)


def _text_of_unknown(value: Any) -> str:
    """Return what stands for a pipeline's variable inside a value, which is refused for it elsewhere."""
    if isinstance(value, Unknown):
        return str(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
