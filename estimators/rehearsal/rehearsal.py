"""Rehearse a job: train some steps on the embedded platform, with the job's own hosts, before anything is paid for."""

from __future__ import annotations

import logging
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimators import distribution
from estimators.checks import channels
from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.instances import families_with, gpu_bytes
from estimators.metric_definition import OF_WHOLE_RUNS
from estimators.plan import Topology
from estimators.plan.runtime import named, versions_here
from estimators.rehearsal.failure import culprit_traceback, describe_failure
from estimators.rehearsal.sample import bring, objects
from estimators.source_code import PACKAGE, SourceCode, imports_package
from smddp.display_text import MEMORY_UNITS, as_memory, as_size, counted, describe
from smddp.failure import LOG_TIME
from smddp.job import CHECKPOINT_URI_VARIABLE, MAX_STEPS_VARIABLE
from smddp.process import notebook_html
from smddp.secret_text import masked_text

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from estimators.local import Processes
    from estimators.sdk.library import Session
    from estimators.training_job import TrainingJob

logger = logging.getLogger(__name__)

_ELSEWHERE = frozenset(
    {
        *("output_path", "disable_output_compression", "code_location", "output_kms_key", "volume_kms_key", "tags"),
        *("subnets", "security_group_ids"),
        *("rules", "debugger_hook_config", "profiler_config", "disable_profiler", "tensorboard_output_config"),
        *("use_spot_instances", "max_wait", "max_retry_attempts", "keep_alive_period_in_seconds"),
        *("training_repository_access_mode", "training_repository_credentials_provider_arn"),
    }
)
"""Parameters about storage on AWS, or about services besides training: left out of a rehearsal."""

_RESUMED = re.compile(rf"(?:{LOG_TIME}|.*\bsmddp\.training\.\w+\b.*\b)resumed at step (\d+), in epoch \d+")
"""The Trainer's line about a resume: in smddp's form of a log line, or with the logger's name."""

_MEMORY = re.compile(r"\bThe largest process had (\d+) MiB of memory\.")
"""The last line of each host's log."""

_LEAST_MEMORY = re.compile(
    r"\brank 0 of ([0-9]{1,6}) needs at least ([0-9]{1,12}(?:\.[0-9])?) (B|KiB|MiB|GiB) of device memory "
    r"beside activations(, for its share of a divided model)?: "
)
"""A Trainer's line after its first step, with the memory of all Trainers until then."""

_RANKS = re.compile(r"\btraining on (\d+) (?:GPUs?|CPU process(?:es)?) of \d+ hosts?\b")
"""The line of rank 0 about the number of ranks."""

_PLACE = "rehearsal/checkpoints"
_CHECKPOINT = re.compile(rf"{_PLACE}/(?:(?P<part>.*?)/)??step-(?P<step>\d+)/")
"""A key of a checkpoint; a named Trainer keeps its checkpoints below its own part of the prefix."""

_MOST_STEPS = (10**12 - 1) // 2
"""Most steps of an attempt: SMDDP_MAX_STEPS has 12 digits, and the second attempt ends at twice the steps."""

_USABLE = 0.9
"""The part of a GPU's memory above which a step's least memory is warned of: CUDA and activations need some, too."""

_MOST_SECONDS = 28 * 24 * 3600
"""SageMaker's limit on a job's run time."""

_ONLY_TRAINERS = (
    "Only a script that trains by smddp.Trainer can be rehearsed, with its checkpoints where job.checkpoint_location "
    "says."
)

Fit = Callable[[Mapping[str, Any], "Session", Mapping[str, Any]], "TrainingJob"]
"""Runs a job to its end: takes the parameters, the session and the channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result of a successful rehearsal."""

    topology: str
    """The hosts and the launcher of the ranks."""
    ranks: int
    """Ranks over all hosts, as this machine's GPUs allow; 0 if no log reports them."""
    runtime: str
    """PyTorch and Python of the hosts, and whose they are: this machine's, or those of an isolated environment."""
    seconds: float
    """Duration, including the platform's start."""
    steps: int
    """Optimizer steps of both attempts together; 0 if the job has neither checkpoints nor metrics."""
    resumed_at: int | None
    """The step at which the second attempt resumed; None if the job keeps no checkpoints."""
    metrics: Mapping[str, float]
    """The last value of each metric, such as ``loss`` and ``samples_per_second``, measured on this machine."""
    model_bytes: int
    """The size of model.tar.gz; 0 if the script saved no model."""
    checkpoint_bytes: int
    """The size of the newest checkpoint, summed over named Trainers; 0 if absent."""
    memory_bytes: int
    """Peak host memory of the largest process, over all hosts; 0 if no log reports it."""
    least_gpu_bytes: int | None
    """Weights, gradients, optimizer state and averages of rank 0, which its GPU must hold beside activations; None if
    no log reports them.
    """
    gpu: tuple[str, int] | None
    """The instance type whose GPUs have the least memory, and the bytes of each; None if it is unknown, or the job
    divides the model among another number of ranks than the rehearsal.
    """
    samples: tuple[str, ...]
    """A sentence on the sample of each channel on S3."""

    def __str__(self) -> str:
        return (
            f"rehearsed on {self._hosts}: "
            f"{self.steps} steps in {self.seconds:.0f} s; {self._checkpoints}; "
            f"{self._model}; largest process {as_memory(self.memory_bytes)}; "
            f"{'; '.join([*self._gpu_memory, self._metrics, *self.samples])}"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("rehearsed on", self._hosts),
            ("steps", f"{self.steps} in {self.seconds:.0f} s"),
            ("checkpoints", self._checkpoints),
            ("model", self._model),
            ("largest process", as_memory(self.memory_bytes)),
            *(("GPU memory", text) for text in self._gpu_memory),
            ("metrics", self._metrics),
            *(("data", sample) for sample in self.samples),
        ]
        return notebook_html.table((name, masked_text(value)) for name, value in rows)

    @property
    def _hosts(self) -> str:
        ranks = f", as {counted(self.ranks, 'rank')}" if self.ranks else ""
        return f"{self.topology}{ranks}, with {self.runtime}"

    @property
    def _checkpoints(self) -> str:
        if self.resumed_at is None:
            return "no checkpoints, for the job has no checkpoint_s3_uri: once stopped, it begins anew"
        return f"resumed from the checkpoint of step {self.resumed_at} ({as_size(self.checkpoint_bytes)})"

    @property
    def _model(self) -> str:
        return f"model.tar.gz {as_size(self.model_bytes)}" if self.model_bytes else "no model saved"

    @property
    def _gpu_memory(self) -> list[str]:
        if self.least_gpu_bytes is None:
            return []
        has = "" if self.gpu is None else f" (a GPU of {self.gpu[0]} has {as_memory(self.gpu[1])})"
        return [f"rank 0 needs at least {as_memory(self.least_gpu_bytes)} of GPU memory plus activations{has}"]

    @property
    def _metrics(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in sorted(self.metrics.items())) or "no metrics"


def rehearse(
    arguments: Mapping[str, Any],
    inputs: Any,
    *,
    fit: Fit,
    steps: int,
    seconds: int,
    isolated: bool,
    logs: bool,
    session: Session | None,
    s3: Callable[[], S3Client],
) -> Rehearsal:
    """Train a job for `steps` optimizer steps on a new local platform and, if it keeps checkpoints, resume once.

    Each attempt may take `seconds`. `isolated` hosts run with the Python of an environment that stands for the image,
    which `session` decides. `logs` is whether `fit` shows the log. Raise EstimatorError if the job can't be rehearsed,
    takes too long or does not resume, and TrainingJobFailed if it fails.
    """
    from estimators.local import LocalSageMaker

    _check_count("steps", steps, _MOST_STEPS)
    _check_count("seconds", seconds, _MOST_SECONDS)
    _check(arguments, inputs)
    topology = Topology.of(arguments)
    hosts = sum(count or 1 for count, _ in topology.hosts)
    began = time.monotonic()
    with (
        _isolated(arguments, session) if isolated else _here() as (processes, runtime),
        LocalSageMaker(executor=processes) as platform,
    ):
        bucket, client = platform.default_bucket, platform.boto_session.client("s3")
        brought = {
            name: bring(name, place, platform, s3, hosts=hosts) for name, place in channels.by_name(inputs).items()
        }
        data = {name: place for name, (place, _) in brought.items()}
        here = {name: value for name, value in arguments.items() if name not in _ELSEWHERE}
        here |= {"role": platform.role, "max_run": seconds}
        given = dict(arguments.get("environment") or {})
        saves_directly = given.pop(CHECKPOINT_URI_VARIABLE, None)  # else it would write to the job's real checkpoints
        keeps = bool(arguments.get("checkpoint_s3_uri") or saves_directly)
        if keeps:
            here["checkpoint_s3_uri"] = f"s3://{bucket}/{_PLACE}"
        job, resumed_at, metrics, memory, ranks = None, None, dict[str, float](), [0], [0]
        least: list[re.Match[str]] = []
        for attempt in (1, 2) if keeps else (1,):
            environment = {**given, MAX_STEPS_VARIABLE: str(attempt * steps)}
            try:
                job = fit({**here, "environment": environment}, platform.session, data)
            except TrainingJobFailed as fault:
                what = f"{SourceCode.of(arguments).program} ({topology})"
                found = culprit_traceback(fault, platform.boto_session)
                raise describe_failure(
                    fault, what, found, attempt=attempt, steps=steps, seconds=seconds, logs=logs
                ) from None
            metrics |= job.final_metrics()  # the second has none if the first trained to the end
            lines = [line for _, line in job.logs()]
            memory += [int(match[1]) << 20 for line in lines if (match := _MEMORY.search(line))]
            ranks += [int(match[1]) for line in lines if (match := _RANKS.search(line))]
            least += [match for line in lines if (match := _LEAST_MEMORY.search(line))]
            if attempt > 1:
                resumed_at = _resumed_at(lines)
            elif keeps and not _newest(objects(client, bucket, f"{_PLACE}/")):  # no second attempt could resume
                raise EstimatorError(
                    f"The rehearsal's first attempt ended without a checkpoint from which a second could resume. "
                    f"{_ONLY_TRAINERS} Without checkpoint_s3_uri a job is tried once."
                )
        assert job is not None
        newest = _newest(objects(client, bucket, f"{_PLACE}/"))
        model_bucket, _, model = job.model_data.removeprefix("s3://").partition("/")
        logged = int(metrics.pop("step", 0))
        least_bytes = max(map(_least_bytes, least), default=None)
        gpu = None if given.get("SMDDP_DEVICE") == "cpu" else _smallest_gpu(arguments, topology)
        is_divided = any(match[4] for match in least)
        if is_divided and any(int(match[1]) != topology.processes for match in least):
            gpu = None  # the job's ranks have other shares
        _warn_of_memory(least_bytes or 0, gpu, is_divided=is_divided)
        return Rehearsal(
            topology=str(topology),
            ranks=max(ranks),
            runtime=runtime,
            seconds=time.monotonic() - began,
            steps=max((step for step, _ in newest), default=logged),
            resumed_at=resumed_at,
            metrics={name: value for name, value in metrics.items() if name not in ("epoch", *OF_WHOLE_RUNS)},
            model_bytes=_archive_bytes(client, model_bucket, model),
            checkpoint_bytes=sum(size for _, size in newest),
            memory_bytes=max(memory),
            least_gpu_bytes=least_bytes,
            gpu=gpu,
            samples=tuple(said for _, said in brought.values() if said),
        )


@contextmanager
def _here() -> Iterator[tuple[Processes, str]]:
    """Run the hosts with this Python."""
    from estimators.local import Processes

    yield Processes(), f"{named(*versions_here())} of this machine"


@contextmanager
def _isolated(arguments: Mapping[str, Any], session: Session | None) -> Iterator[tuple[Processes, str]]:
    """Run the hosts with the Python of an environment that holds what is known of the image."""
    from estimators.local import Processes
    from estimators.rehearsal.environments import environment
    from estimators.rehearsal.image_content import ImageContent

    content = ImageContent.of(arguments, session)
    with environment(content) as found:
        differs = "" if found.version == content.python else f" (the image's is {content.python})"
        runtime = f"{named(content.torch, found.version)}{differs} of an environment of its own"
        yield Processes(python=found.python), runtime


def _smallest_gpu(arguments: Mapping[str, Any], topology: Topology) -> tuple[str, int] | None:
    """Return the instance type, among those that may get ranks, whose GPUs have the least memory, and its bytes."""
    trained = [str(group.instance_type) for group in distribution.trained_groups(arguments)]
    types = trained or [str(name) for _, name in (*topology.hosts, *topology.instead)]
    return min(((name, size) for name in types if (size := gpu_bytes(name))), key=lambda each: each[1], default=None)


def _warn_of_memory(least: int, gpu: tuple[str, int] | None, *, is_divided: bool) -> None:
    if gpu is None or least <= _USABLE * gpu[1]:
        return
    larger = families_with(least)
    divide = "divide the model among more ranks" if is_divided else "divide the model with parallel=smddp.Sharded(...)"
    choose = f"choose a type with larger GPUs ({', '.join(larger)}), or {divide}" if larger else divide
    logger.warning(
        "the job may run out of GPU memory: with the types and the optimizer of this machine, rank 0 needs at least %s "
        "beside activations, and a GPU of %s has %s; %s",
        *(as_memory(least), gpu[0], as_memory(gpu[1]), choose),
    )


def _check_count(name: str, count: object, most: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise EstimatorError(f"{name}={count!r}: give a whole number from 1 to {most:,}.")


def _check(arguments: Mapping[str, Any], inputs: Any) -> None:
    if isinstance(inputs, (list, tuple)):
        raise EstimatorError(
            f"inputs is {describe(inputs)}: a rehearsal needs the channels by name. Give {{'training': "
            "'directory'}, or s3://bucket/prefix."
        )
    if str(arguments.get("instance_type")).startswith("local"):
        raise EstimatorError("A job of instance_type='local' runs on this machine anyway: call fit().")
    source = SourceCode.of(arguments)
    if str(source.source_dir).lower().startswith("s3://"):
        raise EstimatorError(
            f"The job can't be rehearsed: its code ({source.source_dir}) is not on this machine. Download it, and give "
            "source_dir the directory."
        )
    if source.is_local and source.script.is_file() and not imports_package(source):
        raise EstimatorError(
            f"The job can't be rehearsed: its code does not import {PACKAGE}, whose Trainer counts the steps. Train it "
            "on a LocalSageMaker with a small channel instead."
        )


def _resumed_at(lines: Iterable[str]) -> int:
    """Return the step at which the job resumed, from its log."""
    found = [match for line in lines if (match := _RESUMED.match(line))]
    if not found:
        raise EstimatorError(
            "In the rehearsal's second attempt smddp.Trainer did not say that it resumed from the checkpoint of the "
            f"first. {_ONLY_TRAINERS} If it sets up logging itself, it must show the lines of INFO, each with the "
            "logger's name."
        )
    return int(found[0][1])


def _newest(saved: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return step and size of each Trainer's newest checkpoint, from keys and sizes of objects."""
    sizes: dict[str | None, dict[int, int]] = {}
    for key, size in saved:
        if found := _CHECKPOINT.match(key):
            steps = sizes.setdefault(found["part"], {})
            steps[int(found["step"])] = steps.get(int(found["step"]), 0) + size
    return [max(steps.items()) for steps in sizes.values()]


def _least_bytes(line: re.Match[str]) -> int:
    """Return the bytes in a line of `_LEAST_MEMORY`."""
    return int(float(line[2]) * 1024 ** MEMORY_UNITS.index(line[3]))


def _archive_bytes(s3: S3Client, bucket: str, key: str) -> int:
    """Return the size of an archive; 0 if it contains no file, as a model that the script did not save."""
    found = s3.get_object(Bucket=bucket, Key=key)
    with found["Body"] as packed, tarfile.open(fileobj=packed, mode="r|gz") as archive:
        return found["ContentLength"] if archive.next() else 0
