"""Reads the job's channels: the location of each channel's data, and its input mode.

A channel is a directory, copied before the start (File) or mounted (FastFile, which AWS reports to a program as File);
or it is a series of named pipes, one for each epoch (Pipe).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from smddp.errors import JobError

VARIABLE_PREFIX = "SM_CHANNEL_"
_MODES = ("File", "FastFile", "Pipe")
_DRIVERS, _CODE = "sm_drivers", "code"
"""The channels in which SDK V3 delivers its drivers and the job's code. Elsewhere ``code`` may be a data channel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One channel of the job, as this host sees it."""

    name: str
    mode: Literal["File", "Pipe"] = "File"
    """File for a directory, Pipe for named pipes."""
    sharded_by_host: bool = False
    """Whether each host has a different part of the data (ShardedByS3Key)."""
    recordio: bool = False
    """Whether each object arrives as one RecordIO record; only in Pipe mode."""
    path: Path
    """The directory; in Pipe mode, the common prefix of the pipes' paths."""

    def pipe(self, epoch: int) -> Path:
        """Return the path of an epoch's named pipe, which may not exist yet.

        Raises:
            JobError: The channel is a directory.
        """
        if self.mode != "Pipe":
            raise JobError(
                f"The channel {self.name!r} is a directory, {self.path}, and not a pipe: read its files, or give the "
                'job input_mode="Pipe".'
            )
        return self.path.with_name(f"{self.path.name}_{epoch}")


class Inputs(dict[str, Input]):
    """The job's channels by name, pipes included.

    Examples:
        >>> Inputs(training=Input(name="training", path=Path("/data")))["train"]
        Traceback (most recent call last):
        smddp.errors.JobError: There is no channel 'train'; this job has: training. ...
    """

    def __missing__(self, name: str) -> Input:
        raise JobError(_missing(name, self))


class Channels(dict[str, Path]):
    """The directories of the job's channels, by name.

    Examples:
        >>> Channels(training=Path("/data"))["train"]
        Traceback (most recent call last):
        smddp.errors.JobError: There is no channel 'train'; this job has: training. ...
    """

    pipes: frozenset[str] = frozenset()
    """The channels in Pipe mode, which have no directory."""

    @classmethod
    def of(cls, inputs: Inputs) -> Channels:
        """Return the channels that are directories."""
        channels = cls({name: one.path for name, one in inputs.items() if one.mode == "File"})
        channels.pipes = frozenset(inputs) - frozenset(channels)
        return channels

    def __missing__(self, name: str) -> Path:
        if name in self.pipes:
            raise JobError(
                f"The channel {name!r} is in Pipe mode and has no directory: read it with "
                f'smddp.data.pipes.PipeDataset(job.inputs[{name!r}]), or give the job input_mode="File" or "FastFile".'
            )
        raise JobError(_missing(name, [*self, *self.pipes]))


def read_inputs(configured: Mapping[str, Any] | None, input_dir: Path, environ: Mapping[str, str]) -> Inputs:
    """Return the channels by name, from the configuration and from SM_CHANNEL_* variables, whose names are in capitals.

    ``configured`` is the content of inputdataconfig.json or SM_INPUT_DATA_CONFIG, None if neither exists. Raise
    JobError if it does not follow the contract.
    """
    configured = {name: {} for name in _listed(environ)} if configured is None else configured
    inputs = Inputs({name: _read(name, entry, input_dir / "data" / name) for name, entry in configured.items()})
    in_capitals = [name.upper() for name in configured]
    for variable, place in environ.items():
        if not (variable.startswith(VARIABLE_PREFIX) and place):
            continue
        capitals = variable.removeprefix(VARIABLE_PREFIX)
        if in_capitals.count(capitals) == 1:
            name = list(configured)[in_capitals.index(capitals)]
            inputs[name] = _read(name, configured[name], Path(place))
        elif capitals not in in_capitals:
            inputs[capitals.lower()] = Input(name=capitals.lower(), path=Path(place))
    if inputs.pop(_DRIVERS, None) is not None:
        inputs.pop(_CODE, None)
    return inputs


def _read(name: str, entry: Any, path: Path) -> Input:
    mode = entry.get("TrainingInputMode", "File") if isinstance(entry, Mapping) else None
    if mode not in _MODES:
        raise JobError(
            f"The channel {name!r} is configured as {entry!r}; expected an object whose TrainingInputMode is "
            f"{', '.join(_MODES)}."
        )
    return Input(
        name=name,
        mode="Pipe" if mode == "Pipe" else "File",
        sharded_by_host=entry.get("S3DistributionType") == "ShardedByS3Key",
        recordio=entry.get("RecordWrapperType") == "RecordIO",
        path=path,
    )


def _missing(name: str, there: Any) -> str:
    return (
        f"There is no channel {name!r}; this job has: {', '.join(sorted(there)) or 'none'}. Give it to "
        f"Estimator.fit(), or outside of a job set {VARIABLE_PREFIX}{name.upper()} to its directory."
    )


def _listed(environ: Mapping[str, str]) -> list[str]:
    text = environ.get("SM_CHANNELS") or "[]"
    try:
        names = json.loads(text)
    except ValueError as error:
        raise JobError(f"SM_CHANNELS={text} is not JSON ({error}); expected a list of channels.") from error
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise JobError(f'SM_CHANNELS={text}: expected a JSON list of channels such as ["training"].')
    return names
