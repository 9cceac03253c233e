"""The arguments of a training function: its config, from any reader, and the job."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

from smddp.errors import JobError
from smddp.job import hyperparameters
from smddp.job.job import Job

_KERNELS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")
"""The programs of notebooks' kernels."""

ConfigReader = Callable[[Any, Job], tuple[Any, Mapping[str, Any]] | None]
"""Return a config for a parameter of this type, and the hyperparameters to record; None for a type it can't make."""


def main_arguments(main: Callable[..., None], job: Job, read_config: ConfigReader) -> tuple[dict[str, Any], Job]:
    """Return the arguments to call main with, and the job with all hyperparameters.

    A parameter gets the job if its name is ``job`` or its type `smddp.Job`; ``read_config`` makes the value of any
    other. Raise TypeError if it can't make a value of a parameter's type.
    """
    hints = get_type_hints(main)
    arguments: dict[str, Any] = {}
    wants_job = []
    for name in signature(main).parameters:
        hint = hints.get(name)
        if takes_job(name, hint):
            wants_job.append(name)
            continue
        read = read_config(hint, job)
        if read is None:
            raise TypeError(refused_parameter(main.__name__, name, repr(hint)))
        arguments[name], recorded = read
        job = dataclasses.replace(job, hyperparameters=recorded)
    return arguments | dict.fromkeys(wants_job, job), job


def refuse_in_notebook() -> None:
    """Raise JobError in the kernel of a notebook, whose command line is the kernel's."""
    if Path(sys.argv[0]).name in _KERNELS:
        raise JobError(
            "smddp.run is for scripts: it reads the command line, and ends the process. In a notebook, make the job "
            'with smddp.Job.detect({"SMDDP_RUN_DIR": directory}), and call smddp.leave() at the end.'
        )


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether a script only shows its options; ``-h`` beside other arguments may be an option of its own."""
    return "--help" in arguments or list(arguments) == ["-h"]


def refused_parameter(main: str, name: str, hint: str) -> str:
    """Return the error for a parameter of main, with its type as text, that gets no value."""
    return (
        f"{main}() has a parameter {name!r} of type {hint}; smddp.run gives a dataclass of hyperparameters (annotate "
        "it with its class) and a smddp.Job, and nothing else"
    )


def takes_job(name: str, hint: Any) -> bool:
    """Return whether a parameter of this name and type receives the job."""
    return hint is Job or name == "job"


def read_dataclass(hint: Any, job: Job) -> tuple[Any, Mapping[str, Any]] | None:
    """Fill a dataclass with the job's hyperparameters, or outside of a job from the command line."""
    if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
        return None
    config = hyperparameters.load(hint)
    return config, {**job.hyperparameters, **hyperparameters.encode(config)}
