"""A host's /opt/ml before its program runs: the directories, and input/config/ in the platform's own format."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.local.engine.hosts import Host
from estimators.local.engine.request import ML_ROOT, TrainingRequest

NETWORK_INTERFACE = "lo"
TEMPORARY = "tmp"
"""Where a program that sees its tree at /opt/ml has its temporary files: like a container's, they go away with it."""
_DIRECTORIES = ("code", "input/config", "input/data", "model", "output/data", TEMPORARY)


def lay_out(request: TrainingRequest, hosts: Sequence[Host], host: Host, root: Path, *, isolated: bool) -> None:
    """Make one host's tree at ``root``.

    Args:
        request: What the job asks for.
        hosts: All hosts of the job.
        host: The one that the tree is for.
        root: A directory that is not there yet.
        isolated: Whether the program sees ``root`` at /opt/ml, and hosts by their names; if not, the files hold the
            real path, and addresses.
    """
    channels = [f"input/data/{channel.name}" for channel in request.channels if channel.mode != "Pipe"]
    for directory in (*_DIRECTORIES, *channels):
        (root / directory).mkdir(parents=True)
    if request.checkpoints is not None:
        (root / request.checkpoints.path).mkdir(parents=True, exist_ok=True)
    config = root / "input" / "config"
    for name, content in _configuration(request, hosts, host, ML_ROOT if isolated else root, isolated).items():
        (config / f"{name}.json").write_text(json.dumps(content))


def host_name(host: Host, *, isolated: bool) -> str:
    """The name by which other hosts reach it."""
    return host.name if isolated else host.address


def remove_tree(root: Path) -> None:
    """Remove a tree, and directories in it that a program has closed even to its owner."""
    try:
        shutil.rmtree(root)
    except FileNotFoundError:
        return
    except PermissionError:
        for directory, names, _ in os.walk(root):
            for path in (Path(directory, name) for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(root)


def _configuration(
    request: TrainingRequest, hosts: Sequence[Host], host: Host, root: os.PathLike[str], isolated: bool
) -> dict[str, Mapping[str, Any]]:
    def names(group: str | None = None) -> list[str]:
        members = sorted((one for one in hosts if group in (None, one.group)), key=lambda one: one.name)
        return [host_name(one, isolated=isolated) for one in members]

    files: dict[str, Mapping[str, Any]] = {
        "hyperparameters": request.hyperparameters,
        "inputdataconfig": {channel.name: channel.config for channel in request.channels},
        "resourceconfig": {
            "current_host": host_name(host, isolated=isolated),
            "current_instance_type": host.instance_type,
            "current_group_name": host.group,
            "hosts": names(),
            "instance_groups": [
                {
                    "instance_group_name": group.name,
                    "instance_type": group.instance_type,
                    "hosts": names(group.name),
                }
                for group in request.groups
            ],
            "network_interface_name": NETWORK_INTERFACE,
        },
    }
    if request.checkpoints is not None:
        local = os.path.join(root, request.checkpoints.path)  # noqa: PTH118  # of a Path or a PurePosixPath
        files["checkpointconfig"] = {"S3Uri": str(request.checkpoints.uri), "LocalPath": local}
    return files
