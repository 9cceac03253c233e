"""A job without SageMaker: script, hosts and channels, which any cluster can start with ``smddp run``.

All files that a shell runs get the job's names and values as shell text from here.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from estimators.checks import channels
from estimators.distribution import enabled_kinds, launcher, processes_per_host
from estimators.errors import EstimatorError, Problem, error
from estimators.source_code import REQUIREMENTS, SourceCode
from estimators.submit_script.run import SentJob

logger = logging.getLogger(__name__)

_STARTED_BY_RUN = frozenset({"torch_distributed", "mpi", "parameter_server"})
"""Distributions whose ranks ``smddp run`` can start; the others are AWS's own libraries."""

_ONLY_SAGEMAKER = frozenset(
    {
        *("role", "sagemaker_session", "framework_version", "training_repository_access_mode"),
        *("base_job_name", "tags", "volume_size", "volume_kms_key", "output_kms_key", "keep_alive_period_in_seconds"),
        *("subnets", "security_group_ids", "rules", "profiler_config", "debugger_hook_config"),
        *("tensorboard_output_config",),
    }
)
"""Parameters whose errors matter on SageMaker alone. A portable job leaves them out, and makes a name of its own from
`base_job_name`."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_SHELL = re.compile(r"_|PATH|IFS|ENV|E?UID|PPID|GROUPS|SHELLOPTS|POSIXLY_CORRECT|(BASH|LD_|SLURM_).*")
"""Variables that the shell, the loader or Slurm's commands read or write themselves."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
"""Names that the Estimator's checks allow for a variable, or for a channel after ``SM_CHANNEL_``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableJob:
    """Everything that a cluster needs to start a job."""

    name: str
    """Name of the job in the cluster's lists."""
    script: Path
    """Absolute path of the entry point, which each host must see."""
    arguments: tuple[str, ...]
    """Hyperparameters as words of the script's command line."""
    hosts: int
    processes_per_host: int | None
    """Ranks on each host; None starts one per GPU, or one without GPUs."""
    instance_type: str
    """Instance type of each host on SageMaker."""
    environment: Mapping[str, str]
    """The job's own variables, the directories of its channels, and the import paths of its dependencies."""
    checkpoint_s3_uri: str | None
    max_run: int
    """Time limit of the training in seconds."""
    requirements: Path | None = None
    """The requirements.txt that SageMaker would install before the script starts; None if absent."""

    @classmethod
    def of(cls, job: SentJob, *, data: Mapping[str, Path], code: Path | None = None) -> PortableJob:
        """Return the portable form of a job.

        ``data`` maps a channel to the directory that each host sees; other channels must be ``file://`` URIs. ``code``
        is the source directory on the hosts, None for its path on this machine. Raise EstimatorError with the list of
        everything that only SageMaker has.
        """
        given, inputs, variables = _without_variables(job)
        if problems := tuple(
            dict.fromkeys((*variables, *_problems(given, inputs, data, code), *_errors_anywhere(job)))
        ):
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
            environment={**_environment(given, source), **_places(inputs, data)},
            checkpoint_s3_uri=given.get("checkpoint_s3_uri"),
            max_run=given["max_run"],
            requirements=_requirements(source),
        )

    # A variable is set by ``export`` or by ``env``. ``export`` accepts identifiers only, and a channel such as
    # ``train-data`` makes the variable ``SM_CHANNEL_TRAIN-DATA``. ``env`` sets any variable for the command that it
    # starts, also one that would change the shell itself or the commands before, such as PATH. But every user of the
    # host can read the arguments of a command while it runs, so all other variables are exported.

    def exports(self) -> list[str]:
        """Return the ``export`` commands of the variables that do not change the shell itself."""
        return [f"export {name}={_quoted(value)}" for name, value in self.environment.items() if _is_exported(name)]

    def env_words(self) -> list[str]:
        """Return ``env`` and the other variables, to stand before a command; empty if there are none."""
        others = {name: value for name, value in self.environment.items() if not _is_exported(name)}
        assert all(map(_NAME.fullmatch, others)), list(others)
        return ["env", *(f"{name}={value}" for name, value in others.items())] if others else []

    def run_command(self, *, run_dir: str, python: str | None = None) -> list[list[str]]:
        """Return the command of each host as groups of words that belong together.

        All hosts share ``run_dir``. ``python`` is the hosts' Python with smddp; None is this process's, by its path.
        """
        command = [[python or sys.executable, "-m", "smddp.cli", "run"], ["--run-dir", run_dir]]
        if self.processes_per_host is not None:
            command.append(["--processes-per-node", str(self.processes_per_host)])
        if self.checkpoint_s3_uri is not None:
            command.append(["--checkpoint-s3-uri", self.checkpoint_s3_uri])
        return [*command, [str(self.script)], *([word] for word in self.arguments)]


def _without_variables(job: SentJob) -> tuple[Mapping[str, Any], Any, list[Problem]]:
    """Return a job's parameters and inputs with the defaults of a pipeline's variables, and an error for each without.

    Each default is logged.
    """
    from estimators.sdk import request_values

    given = {**job.estimator.arguments, "inputs": job.inputs}
    problems = list(request_values.check_variables(given, in_pipeline=False))
    for problem in problems:
        if problem.severity == "warning":
            logger.warning("%s", problem)
    known: dict[str, Any] = request_values.with_defaults(given)
    return known, known.pop("inputs"), [problem for problem in problems if problem.severity == "error"]


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
    """Yield the errors of the Estimator's own checks, except those that matter on SageMaker alone.

    The exporter checks the location of the data itself.
    """
    for problem in job.estimator.plan(job.inputs, job_name=job.name).errors:
        if problem.parameter not in _ONLY_SAGEMAKER and not problem.parameter.startswith("inputs["):
            yield problem


def _folder(source: SourceCode) -> Path:
    """Return the directory that is uploaded with the script."""
    return source.script.parent if source.source_dir is None else Path(source.source_dir)


def _requirements(source: SourceCode) -> Path | None:
    path = Path(source.source_dir or source.script.parent, REQUIREMENTS)
    return path.resolve() if path.is_file() else None


def _words(hyperparameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield each hyperparameter as one word, so that no value is parsed as an option.

    Containers become JSON, all other values text.
    """
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
    names = json.dumps(sorted(there), separators=(",", ":"))  # in their own case: a variable's name is in capitals
    return {"SM_CHANNELS": names, **{_variable(name): str(place) for name, place in there.items()}}


def _variable(channel: str) -> str:
    return f"SM_CHANNEL_{channel.upper()}"


def _is_exported(name: str) -> bool:
    return _IDENTIFIER.fullmatch(name) is not None and _OF_THE_SHELL.fullmatch(name) is None


def command_line(words: Iterable[str]) -> str:
    """Return the words as one shell command, each quoted."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word quoted for the shell.

    OpenPAI expands ``<% … %>`` as its own reference, so the word contains ``<''%`` instead, which the shell joins.
    """
    return shlex.quote(word).replace("<%", "<''%")
