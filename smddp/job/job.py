"""A job by the /opt/ml contract: its name, hyperparameters, channels and directories.

On SageMaker these come from the platform's files under /opt/ml (or SAGEMAKER_BASE_DIR) and the toolkit's SM_*
variables. Elsewhere a run directory has the same tree, so that a script works unchanged. The user's dataclass of
hyperparameters is in ``smddp.job.hyperparameters``; the process's rank is in ``smddp.cluster``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smddp.cluster import OF_RUN_DIRECTORY, Cluster, without_run_variables
from smddp.display_text import shown_path
from smddp.errors import JobError
from smddp.job.channels import Channels, Inputs, read_inputs
from smddp.job.hyperparameters import decode_untyped, with_bundled
from smddp.job.model_parallel import MP_PARAMETERS
from smddp.job.run_script import MOVED, claim_run_directory
from smddp.secret_text import masked_repr

logger = logging.getLogger(__name__)

CHECKPOINT_URI_VARIABLE = "SMDDP_CHECKPOINT_S3_URI"
"""The variable with the S3 URI to which checkpoints are saved directly, wherever the job runs."""

MAX_STEPS_VARIABLE = "SMDDP_MAX_STEPS"
"""The variable with the number of optimizer steps after which a Trainer's loops end, whatever the script says: for
tests of a job."""

_MP_VARIABLE = f"SM_HP_{MP_PARAMETERS.upper()}"

_stop_question: Callable[[], bool] | None = None

_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_S3_URI = re.compile(r"s3://[^/\s]+(/\S*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One training job, as this process sees it.

    Examples:
        >>> job = Job.detect({"SMDDP_RUN_DIR": "/tmp/run-7"})
        >>> job.checkpoint_location
        '/tmp/run-7/checkpoints'
    """

    name: str
    """TRAINING_JOB_NAME, or SAGEMAKER_JOB_NAME, or the run directory's name."""
    on_sagemaker: bool
    """Whether this is a SageMaker job, on AWS, in Docker or local. If not, a run directory replaces /opt/ml."""
    cluster: Cluster
    """This process's rank and the world size."""
    hyperparameters: Mapping[str, Any]
    """The user's hyperparameters without types: parsed if they are JSON. Outside of a job, only SM_HPS has any;
    `smddp.run` adds all fields of the script's dataclass."""
    mp_parameters: Mapping[str, Any] | None
    """The parameters of ``smdistributed.modelparallel``, if the job asks for it; otherwise None."""
    inputs: Inputs
    """Each channel's mode and location, pipes included."""
    channels: Channels
    """Each channel's directory. A missing channel raises an error that lists the existing ones."""
    input_dir: Path
    """The directory of config/ and data/."""
    code_dir: Path
    """The source bundle's directory; outside of a job, the script's."""
    model_dir: Path
    """Its content at the end becomes model.tar.gz."""
    output_dir: Path
    """The directory of the ``failure`` file."""
    output_data_dir: Path
    """Its content at the end becomes output.tar.gz."""
    checkpoint_dir: Path
    """The checkpoint directory on this machine, unless checkpoints go to S3 directly."""
    checkpoint_s3_uri: str | None
    """The S3 URI of the checkpoints: SMDDP_CHECKPOINT_S3_URI, or the job's own; None if there is neither."""
    checkpoints_are_copied: bool
    """Whether the platform copies ``checkpoint_dir`` to ``checkpoint_s3_uri``: True for the job's own URI."""
    max_steps: int | None
    """SMDDP_MAX_STEPS: optimizer steps, before and after a resume, after which a Trainer's loops end; None if unset."""
    default_run_dir: Path | None = None
    """The run directory if it has its name from the script; None if it was given, and in a SageMaker job."""

    def __repr__(self) -> str:
        return masked_repr(self, "hyperparameters")

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None, cluster: Cluster | None = None) -> Job:
        """Return the job that this process belongs to. Reads files, writes none.

        It is a SageMaker job if the toolkit's variables are set (SM_CURRENT_HOST) or input/config/ exists. Otherwise
        the run directory is SMDDP_RUN_DIR, or ``runs/<script's name>`` in the working directory, so that the same
        command finds its checkpoints again.

        Args:
            environ: The environment variables; None means this process's own.
            cluster: This process's cluster; None detects it from ``environ``.

        Raises:
            JobError: A configuration file or a variable does not follow the contract, or the run directory is a file.
            HyperparameterError: The hyperparameters in the code bundle are missing or changed.
            ClusterError: The cluster's variables contradict each other.

        Examples:
            >>> job = Job.detect({"SMDDP_RUN_DIR": "/tmp/runs/first", "SM_CHANNEL_TRAINING": "/data"})
            >>> job.name, str(job.model_dir), str(job.channels["training"])
            ('first', '/tmp/runs/first/model', '/data')
        """
        environ = without_run_variables(os.environ if environ is None else environ)
        base = platform_directory(environ)
        script = Path(sys.argv[0])
        on_sagemaker, is_given = is_on_sagemaker(environ), True
        if not on_sagemaker:
            is_given = bool(environ.get("SMDDP_RUN_DIR"))
            base = run_directory(environ["SMDDP_RUN_DIR"]) if is_given else default_run_directory(script)
            level = logging.DEBUG if is_given else logging.INFO
            logger.log(level, "the run's directory is %s (--run-dir or SMDDP_RUN_DIR moves it)", shown_path(base))
        input_dir = Path(environ.get("SM_INPUT_DIR") or base / "input")
        output_dir = Path(environ.get("SM_OUTPUT_DIR") or base / "output")
        config = input_dir / "config"
        checkpoints = read_object(config / "checkpointconfig.json") or {}
        direct_uri = direct_checkpoint_uri(environ)
        inputs = read_inputs(_input_configuration(config, environ), input_dir, environ)
        given = with_bundled(_given(config / "hyperparameters.json", environ), base)
        return cls(
            name=environ.get("TRAINING_JOB_NAME") or environ.get("SAGEMAKER_JOB_NAME") or base.name,
            on_sagemaker=on_sagemaker,
            cluster=Cluster.detect(environ) if cluster is None else cluster,
            hyperparameters=decode_untyped(given),
            mp_parameters=_mp_parameters(given, environ),
            inputs=inputs,
            channels=Channels.of(inputs),
            input_dir=input_dir,
            code_dir=Path(
                environ.get("SM_SOURCE_DIR") or (base / "code" if on_sagemaker else script.absolute().parent)
            ),
            model_dir=Path(environ.get("SM_MODEL_DIR") or base / "model"),
            output_dir=output_dir,
            output_data_dir=Path(environ.get("SM_OUTPUT_DATA_DIR") or output_dir / "data"),
            checkpoint_dir=Path(checkpoints.get("LocalPath") or base / "checkpoints"),
            checkpoint_s3_uri=direct_uri or checkpoints.get("S3Uri"),
            checkpoints_are_copied=direct_uri is None and bool(checkpoints.get("S3Uri")),
            max_steps=_max_steps(environ),
            default_run_dir=None if is_given else base,
        )

    @property
    def checkpoint_location(self) -> str:
        """The location to save to: a directory, which the platform may copy, or the S3 URI itself."""
        if self.checkpoint_s3_uri is None or self.checkpoints_are_copied:
            return str(self.checkpoint_dir)
        return self.checkpoint_s3_uri

    @property
    def stopping(self) -> bool:
        """Whether the job was told to stop, for your own loop under ``smddp.run``, without a Trainer.

        All ranks must read it at the same points, and all get the same answer. It costs a comparison; a few times a
        second the ranks agree. Once it is True, save, wait until the checkpoint is durable, and raise
        ``smddp.Stopped``: exit code 75 means that the job can resume. A script that has never read it is ended 20 s
        after SIGTERM, or by SIGKILL if the platform grants less time.

        Raises:
            JobError: The process does not run under ``smddp.run``, so nothing watches for SIGTERM.
        """
        if _stop_question is None:
            raise JobError("job.stopping works under smddp.run(main) only, which handles SIGTERM")
        return _stop_question()

    def part(self, name: str) -> Job:
        """Return the job for one of several models, with subdirectories of this name.

        Raises:
            ValueError: The name is not a valid directory name.
        """
        if not _PART_NAME.fullmatch(name) or name.startswith("step-"):
            raise ValueError(
                f"name={name!r}: 1 to 64 letters, digits, '-', '_' and '.' name a directory, the first one a letter or "
                "a digit; 'step-...' is a checkpoint"
            )
        uri = self.checkpoint_s3_uri
        return replace(
            self,
            model_dir=self.model_dir / name,
            checkpoint_dir=self.checkpoint_dir / name,
            checkpoint_s3_uri=None if uri is None else f"{uri.rstrip('/')}/{name}",
        )

    def make_directories(self) -> None:
        """Make missing output directories. On SageMaker the platform has made them.

        Raises:
            JobError: A directory can't be made, or the run directory has the work of another script.
        """
        directories = [self.model_dir, self.output_dir, self.output_data_dir]
        if self.checkpoint_location == str(self.checkpoint_dir):
            directories.append(self.checkpoint_dir)
        self.claim_run_directory()
        make_directories(directories)

    def claim_run_directory(self) -> None:
        """Record in a default run directory that it belongs to this script.

        Raises:
            JobError: It has the checkpoints or the model of another script of the same name, or can't be written.
        """
        if self.default_run_dir is not None:
            claim_run_directory(self.default_run_dir, Path(sys.argv[0]))


def run_name(script: Path) -> str:
    """Return the name of a script's runs: its own, or of ``jobs/__main__.py``, which runs the package, ``jobs``."""
    if script.name in ("", "-c", "-m"):
        return "interactive"
    return script.absolute().parent.name if script.stem == "__main__" else script.stem


def run_directory(path: str | Path) -> Path:
    """Return the absolute path of a run directory, which need not exist; raise JobError if it can't be a directory."""
    directory = Path(path).absolute()
    try:
        existing = next(each for each in (directory, *directory.parents) if each.exists())
    except OSError as error:
        raise JobError(f"The run's directory is {directory}: {error.strerror}. {MOVED}") from error
    if not existing.is_dir():
        raise JobError(f"The run's directory is {directory}, and {existing} is a file. {MOVED}")
    return directory


def default_run_directory(script: Path) -> Path:
    """Return a script's run directory if none is given; raise JobError if it can't be a directory."""
    return run_directory(Path("runs") / run_name(script))


def make_directories(directories: Iterable[Path]) -> None:
    """Make a job's missing directories; raise JobError if one can't be made."""
    directory = None
    try:
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobError(f"The job's directory {directory} can't be made: {error.strerror}. {MOVED}") from error


def answer_stop_question(question: Callable[[], bool] | None) -> None:
    """Set the function that answers ``job.stopping`` in this process; None makes it raise JobError."""
    global _stop_question
    _stop_question = question


def direct_checkpoint_uri(environ: Mapping[str, str]) -> str | None:
    """Return SMDDP_CHECKPOINT_S3_URI, None if unset; raise JobError if it is not an S3 URI."""
    uri = environ.get(CHECKPOINT_URI_VARIABLE) or None
    return None if uri is None else checked_checkpoint_uri(uri, CHECKPOINT_URI_VARIABLE)


def checked_checkpoint_uri(uri: str, source: str) -> str:
    """Return a URI that ``source`` gives; raise JobError if it is not an S3 URI."""
    if not _S3_URI.fullmatch(uri):
        raise JobError(f"{source}={uri} is no place in S3: expected s3://bucket/prefix.")
    return uri


def is_on_sagemaker(environ: Mapping[str, str]) -> bool:
    """Return whether this is a SageMaker job: SM_CURRENT_HOST is set, or input/config/ exists."""
    return bool(environ.get("SM_CURRENT_HOST")) or (platform_directory(environ) / "input" / "config").is_dir()


def with_run_variables(
    environ: Mapping[str, str], directory: Path, *, hosts: Sequence[str], host: str, gpus: int
) -> dict[str, str]:
    """Return the variables plus the toolkit's SM_* for a run directory, so that scripts written for SageMaker work.

    Variables that are already set stay; a SageMaker job gets no new ones. Raise JobError if a configuration file in the
    directory, or SM_HPS, does not follow the contract.
    """
    environ = without_run_variables(environ)
    if is_on_sagemaker(environ) or not {"SM_HOSTS", "SM_RESOURCE_CONFIG"}.isdisjoint(environ):
        return environ
    input_dir = Path(environ.get("SM_INPUT_DIR") or directory / "input")
    output_dir = Path(environ.get("SM_OUTPUT_DIR") or directory / "output")
    config = input_dir / "config"
    inputs = read_inputs(_input_configuration(config, environ), input_dir, environ)
    given = _given(config / "hyperparameters.json", environ)
    parameters = _mp_parameters(given, environ)
    values = {
        "SM_MODEL_DIR": str(directory / "model"),
        "SM_OUTPUT_DIR": str(output_dir),
        "SM_OUTPUT_DATA_DIR": str(output_dir / "data"),
        "SM_INPUT_DIR": str(input_dir),
        "SM_INPUT_CONFIG_DIR": str(config),
        "SM_CHANNELS": json.dumps(sorted(inputs)),
        **{f"SM_CHANNEL_{name.upper()}": str(one.path) for name, one in inputs.items()},
        "SM_HPS": json.dumps(decode_untyped(given)),
        "SM_HOSTS": json.dumps(list(hosts)),
        "SM_CURRENT_HOST": host,
        "SM_NUM_GPUS": str(gpus),
        "SM_NUM_CPUS": str(os.cpu_count()),
    }
    if parameters is not None:
        values["SM_HPS"] = json.dumps({**decode_untyped(given), MP_PARAMETERS: parameters})
        values[_MP_VARIABLE] = json.dumps(parameters)
    added = {name: value for name, value in values.items() if name not in environ}
    return {**environ, **added, OF_RUN_DIRECTORY: ",".join(added)}


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if the file is absent; raise JobError for any other content."""
    try:
        return _parse_object(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path} can't be read: {error}.") from error


def platform_directory(environ: Mapping[str, str]) -> Path:
    """Return SAGEMAKER_BASE_DIR, or /opt/ml."""
    return Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def _max_steps(environ: Mapping[str, str]) -> int | None:
    text = environ.get(MAX_STEPS_VARIABLE) or None
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
        raise JobError(f"{MAX_STEPS_VARIABLE}={text} is no number of steps: expected a whole number from 1 on.")
    return int(text)


def _given(path: Path, environ: Mapping[str, str]) -> Mapping[str, Any]:
    given = read_object(path)
    if given is None and environ.get("SM_HPS"):
        # SM_HPS has parsed values. Encode them as JSON text again, as in the file, so that they are parsed once.
        return {key: json.dumps(value) for key, value in _parse_object(environ["SM_HPS"], "SM_HPS").items()}
    return given or {}


def _mp_parameters(given: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any] | None:
    text = given.get(MP_PARAMETERS, environ.get(_MP_VARIABLE) or None)
    if text is None:
        return None
    value = decode_untyped({"": text})[""]
    if isinstance(value, str):  # JSON in JSON
        value = decode_untyped({"": value})[""]
    if not isinstance(value, dict | None) and value != "":
        raise JobError(f"{MP_PARAMETERS} must hold a JSON object, not {str(value)[:100]!r}.")
    return value or None  # as in AWS's containers, an empty object asks for nothing


def _input_configuration(config: Path, environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    given = read_object(config / "inputdataconfig.json")
    if given is None and environ.get("SM_INPUT_DATA_CONFIG"):
        return _parse_object(environ["SM_INPUT_DATA_CONFIG"], "SM_INPUT_DATA_CONFIG")
    return given


def _parse_object(text: str, source: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobError(f"{source} is not JSON: {error}.") from error
    if not isinstance(content, dict):
        raise JobError(f"{source} must hold a JSON object, not {type(content).__name__}.")
    return content
