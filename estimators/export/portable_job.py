"""A job without SageMaker: its script, hosts and channels, as any cluster can start them by ``smddp run``."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimators.checks import channels
from estimators.distribution import enabled_kinds, launcher, processes_per_host
from estimators.errors import EstimatorError
from estimators.problem import Problem, error
from estimators.source_code import REQUIREMENTS, SourceCode
from estimators.submit_script.sent_job import SentJob

_STARTED_BY_RUN = frozenset({"torch_distributed", "mpi", "parameter_server"})
"""The distributions whose ranks ``smddp run`` starts as well; the others are AWS's own libraries."""

_ONLY_SAGEMAKER = frozenset({"role", "sagemaker_session", "framework_version"})
"""The parameters whose errors no other platform minds: who may run it, in which region, with which of AWS's images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableJob:
    """What a cluster needs to know of a job."""

    name: str
    """What people call it."""
    script: Path
    """The entry point's absolute path, which each host must see."""
    arguments: tuple[str, ...]
    """The hyperparameters, as words of the script's command line."""
    hosts: int
    processes_per_host: int | None
    """Ranks on each host; None: one a GPU, or one."""
    instance_type: str
    """What a host would be on SageMaker."""
    environment: Mapping[str, str]
    """What the job's author has put in, where its channels lie, and more places to import from."""
    checkpoint_s3_uri: str | None
    max_run: int
    """Seconds that it may train."""
    requirements: Path | None = None
    """What SageMaker would install before it starts the script."""

    @classmethod
    def of(cls, job: SentJob, *, data: Mapping[str, Path], code: Path | None = None) -> PortableJob:
        """Take a job from SageMaker.

        Args:
            job: What would be sent.
            data: By channel, the directory that each host sees; one that is not given must be a ``file://`` URI.
            code: Where the hosts see the source directory, or the script's; None: where it is on this machine.

        Raises:
            EstimatorError: It needs what only SageMaker has. The message says all of it.
        """
        given = job.estimator.arguments
        if problems := (*_problems(given, job.inputs, data, code), *_errors_anywhere(job)):
            listed = "\n".join(f"  - {problem}" for problem in problems)
            raise EstimatorError(f"The job can't run without SageMaker as it is:\n{listed}", problems)
        source = SourceCode.of(given)
        named = job.name or given.get("base_job_name") or source.script.stem
        is_alone = launcher(given.get("distribution")) == launcher(None)
        return cls(
            name=re.sub(r"[^A-Za-z0-9-]+", "-", named).strip("-") or "job",
            script=source.script.resolve() if code is None else code / source.script.relative_to(_folder(source)),
            arguments=tuple(_words(given.get("hyperparameters") or {})),
            hosts=given["instance_count"],
            processes_per_host=1 if is_alone else processes_per_host(given["distribution"]),
            instance_type=given.get("instance_type", ""),
            environment={**_environment(given, source), **_places(job.inputs, data)},
            checkpoint_s3_uri=given.get("checkpoint_s3_uri"),
            max_run=given["max_run"],
            requirements=_requirements(source),
        )

    def run_command(self, *, run_dir: str, python: str | None = None) -> list[list[str]]:
        """Return the command that each host runs, word by word; those that belong together in one list.

        Args:
            run_dir: Where the run keeps its model, output and checkpoints, the same directory for all hosts.
            python: The Python of the hosts, in which smddp is installed; None: this one, by its path.
        """
        command = [[python or sys.executable, "-m", "smddp.cli", "run"], ["--run-dir", run_dir]]
        if self.processes_per_host is not None:
            command.append(["--processes-per-node", str(self.processes_per_host)])
        if self.checkpoint_s3_uri is not None:
            command.append(["--checkpoint-s3-uri", self.checkpoint_s3_uri])
        return [*command, [str(self.script)], *([word] for word in self.arguments)]


def _problems(given: Mapping[str, Any], inputs: Any, data: Mapping[str, Path], code: Path | None) -> Iterator[Problem]:
    source = SourceCode.of(given)
    if not source.is_local:
        yield error("entry_point", "it is not on this machine", "Give a script, and a source_dir, that all hosts see.")
    if code is not None and source.dependencies:
        yield error("dependencies", "they are not in the source directory", "Put them there, or leave out --code.")
    if "instance_preferences" in given:
        yield error("instance_preferences", "SageMaker alone chooses among them", "Give one instance_type.")
    elif not isinstance(given.get("instance_count"), int):
        yield error("instance_count", "the number of hosts is not known", "Give it; instance groups are SageMaker's.")
    for kind in enabled_kinds(given.get("distribution")):
        if kind.key not in _STARTED_BY_RUN:
            yield error("distribution", f"{kind.key} is a library of AWS's own", "Use 'torchrun'.")
    there = channels.by_name(inputs)
    for name, place in there.items():
        if name not in data and channels.local_path(place) is None:
            uri = channels.uri_of(place) or place
            remedy = f"Copy it where all hosts see it, and give --channel {name}=DIRECTORY."
            yield error(f"inputs[{name!r}]", f"{uri} is no directory of the hosts", remedy)
    variables: dict[str, str] = {}
    for name in there:
        if (other := variables.setdefault(_variable(name), name)) != name:
            found = f"{_variable(name)} is the variable of the channel {other!r}, too"
            yield error(f"inputs[{name!r}]", found, "Rename one of the two: variables are in capitals.")
    for name in sorted(set(data) - set(there)):
        known = f"There are: {', '.join(sorted(there))}." if there else "There is none."
        yield error("--channel", f"the job has no channel {name!r}", known)


def _errors_anywhere(job: SentJob) -> Iterator[Problem]:
    """Yield the errors of the Estimator's own checks, but for those that are SageMaker's alone.

    Where the data lies is the exporter's to check.
    """
    for problem in job.estimator.plan(job.inputs, job_name=job.name).errors:
        if problem.parameter not in _ONLY_SAGEMAKER and not problem.parameter.startswith("inputs["):
            yield problem


def _folder(source: SourceCode) -> Path:
    """Return what is uploaded with the script."""
    return source.script.parent if source.source_dir is None else Path(source.source_dir)


def _requirements(source: SourceCode) -> Path | None:
    path = Path(source.source_dir or source.script.parent, REQUIREMENTS)
    return path.resolve() if path.is_file() else None


def _words(hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield one word a hyperparameter that can't be taken for an option: containers as JSON, the rest as text."""
    for name, value in hyperparameters.items():
        yield f"--{name}={json.dumps(value) if isinstance(value, dict | list | tuple) else value}"


def _environment(given: Mapping[str, Any], source: SourceCode) -> dict[str, str]:
    environment = {name: str(value) for name, value in (given.get("environment") or {}).items()}
    if source.dependencies:  # SageMaker would put them beside the script
        folders = dict.fromkeys(str(Path(path).resolve().parent) for path in source.dependencies)
        environment["PYTHONPATH"] = ":".join(filter(None, [environment.get("PYTHONPATH"), *folders]))
    return environment


def _places(inputs: Any, data: Mapping[str, Path]) -> dict[str, str]:
    there = {name: data.get(name) or channels.local_path(place) for name, place in channels.by_name(inputs).items()}
    if not there:
        return {}
    names = json.dumps(sorted(there), separators=(",", ":"))  # as they are written: a variable has them in capitals
    return {"SM_CHANNELS": names, **{_variable(name): str(place) for name, place in there.items()}}


def _variable(channel: str) -> str:
    return f"SM_CHANNEL_{channel.upper()}"
