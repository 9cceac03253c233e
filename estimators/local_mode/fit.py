"""One job in the SDK's Local Mode, from its description to its end."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators import source_code
from estimators.docker.compose import Compose, find_compose
from estimators.docker.docker_program import DockerError, require_engine
from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped
from estimators.local_mode import given
from estimators.local_mode.directory import Instructions, JobDirectory, Outcome
from estimators.local_mode.interrupts import Interrupts
from estimators.local_mode.job import LocalModeJob
from estimators.local_mode.path_shims import path_shims

if TYPE_CHECKING:
    from estimators.sdk.v2 import PyTorch, Session

logger = logging.getLogger(__name__)

_RUNS = Path("runs")
"""Where the model comes, in a directory of the job's name, if the job names no place."""


def fit(
    arguments: Mapping[str, Any],
    build: Callable[[Mapping[str, Any], Session], PyTorch],
    *,
    inputs: Any,
    session: Session | None,
    logs: bool,
    job_name: str | None,
) -> LocalModeJob:
    """Run a job to its end.

    Args:
        arguments: The parameters for ``PyTorch``, which a plan has found nothing wrong with.
        build: Makes the SDK's ``PyTorch``.
        inputs: The channels.
        session: The user's own; None makes one.
        logs: Whether to show the hosts' lines.
        job_name: The job's name; None makes one.

    Raises:
        EstimatorError: No Docker engine answers, there is no Compose that can run the job, or the SDK itself fails:
            before the job, or in taking home what it made, which then stays in the job's temporary directory.
        TrainingJobFailed: The job failed; the message says on which host, and why.
        TrainingJobStopped: Its hosts were stopped, not by Ctrl-C.
        KeyboardInterrupt: Ctrl-C; the hosts were stopped, and have saved what they could.
    """
    from estimators.sdk import v2

    compose = _compose(arguments)
    settings = v2.local_session(session).config["local"]
    directory = JobDirectory.make(settings.get("container_root"))
    with _removed_afterwards(directory):
        no_code = [*_RUNS.glob("*/*.tar.gz"), *filter(None, [given.checkpoint_directory(arguments)])]
        code = source_code.stage(source_code.SourceCode.of(arguments), into=directory.code, without=no_code).source
        changed: dict[str, Any] = {"container_root": str(directory.containers)}
        if not code.is_local and not code.from_git:
            changed["local_code"] = False  # it is on S3, and the SDK would mount it as a directory
        job_session = v2.local_session(session, settings=changed)
        output_path = arguments.get("output_path") or f"file://{directory.artifacts}"
        pytorch = build({**given.for_sdk(arguments), **code.arguments, "output_path": output_path}, job_session)
        image = pytorch.training_image_uri()
        name = job_name or v2.new_job_name(arguments.get("base_job_name"), image)
        directory.instruct(_instructions(arguments, image, settings.get("container_config", {}), shows_log=logs))
        logger.info("running training job %s in containers, with Compose %s", name, compose.version)
        try:
            _run(pytorch, inputs, name, directory, compose)
        except KeyboardInterrupt:
            logger.warning("%s was interrupted%s", name, _how_to_resume(arguments))
            raise
        finally:
            model = _keep_artifacts(arguments, directory, name)
        _require_completed(directory.outcome, name, arguments)
        if any(directory.artifacts.iterdir()):
            raise EstimatorError(
                f"{name} completed, but what it made could not be brought to {_RUNS.absolute() / name}: "
                f"it stays in {directory.artifacts}"
            )
        return LocalModeJob(name, job_session, model=model, checkpoints=arguments.get("checkpoint_s3_uri"))


@contextmanager
def _removed_afterwards(directory: JobDirectory) -> Iterator[None]:
    """Remove a job's directory after a block, unless something that the job made is only there."""
    try:
        yield
    finally:
        if left := [*directory.left_by_sdk, *directory.artifacts.iterdir()]:
            places = ", ".join(sorted({str(path.parent) for path in left}))
            logger.error("what the job made is in %s: take what you need, and remove %s", places, directory.path)
        else:
            directory.remove()


def _run(pytorch: PyTorch, inputs: Any, name: str, directory: JobDirectory, compose: Compose) -> None:
    """Let the SDK run the job; how it ended, if it ran, is `JobDirectory.outcome`."""
    from estimators.sdk import quiet

    interrupts = Interrupts(directory.process)
    failure: Exception | None = None
    try:
        with path_shims(directory.programs, compose), interrupts, quiet.while_it_runs_a_job():
            pytorch.fit(given.inputs_for_sdk(inputs), wait=False, job_name=name)
    except Exception as fault:  # the job's failure as the SDK tells it, or its own: before the job, or after it
        if interrupts.had_to_end_it:
            raise
        failure = fault
    outcome = directory.outcome
    if interrupts.came:
        if outcome is not None and outcome.status == "Failed":
            logger.error("%s failed: %s", name, outcome.reason)
        raise KeyboardInterrupt
    if failure is None or (outcome is not None and outcome.status != "Completed"):
        return
    said = f"{type(failure).__name__}: {' '.join(str(failure).split()).rstrip('.')}."
    if outcome is None:
        raise EstimatorError(f"{name} did not start. The SDK's Local Mode says: {said}") from failure
    raise EstimatorError(
        f"{name} completed, but the SDK's Local Mode could not take home what it made: {said} "
        f"What there is of it stays in {directory.path}"
    ) from failure


def _instructions(
    arguments: Mapping[str, Any], image: str, container_config: Mapping[str, Any], *, shows_log: bool
) -> Instructions:
    checkpoints = given.checkpoint_directory(arguments)
    if checkpoints is not None:
        checkpoints.mkdir(parents=True, exist_ok=True)
    return Instructions(
        fit_process=os.getpid(),
        image=image,
        checkpoints=None if checkpoints is None else str(checkpoints),
        checkpoint_path=arguments.get("checkpoint_local_path", given.CHECKPOINT_PATH),
        shared_memory=None if "shm_size" in container_config else _half_of_memory(),
        ends_with_first_host=given.ends_with_first_host(arguments),
        shows_log=shows_log,
    )


def _compose(arguments: Mapping[str, Any]) -> Compose:
    try:
        require_engine()
        compose = find_compose()
    except DockerError as fault:
        raise EstimatorError(
            f"instance_type: {arguments['instance_type']!r} runs the job in Docker containers. {fault} "
            "Without Docker, estimators.local.LocalSageMaker runs jobs as processes."
        ) from fault
    if arguments["instance_type"] == "local_gpu" and not compose.knows_devices:
        raise EstimatorError(
            f"instance_type: 'local_gpu' needs Docker Compose 2 or newer, and this is {compose.version}, which refuses "
            "the key `deploy` that gives containers their GPUs. Install docker-compose-plugin."
        )
    return compose


def _keep_artifacts(arguments: Mapping[str, Any], directory: JobDirectory, name: str) -> str:
    """Give what the SDK left in the temporary directory a place that stays; returns the URI of model.tar.gz."""
    home = _RUNS.absolute() / name
    if not directory.left_by_sdk and (archives := list(directory.artifacts.iterdir())):
        try:
            home.mkdir(parents=True, exist_ok=True)
            for archive in archives:
                shutil.copy2(archive, home)
        except OSError as fault:
            for archive in archives:
                (home / archive.name).unlink(missing_ok=True)
            logger.error("what %s made can't be brought to %s: %s", name, home, fault)
        else:
            for archive in archives:
                archive.unlink()
            logger.info("its model.tar.gz and output.tar.gz are in %s", home)
    place = (arguments.get("output_path") or f"file://{home}").rstrip("/")
    return f"{place}/model.tar.gz" if place.startswith("file://") else f"{place}/{name}/output/model.tar.gz"


def _half_of_memory() -> int:
    """Bytes. As much as Linux itself gives /dev/shm; Docker's 64 MiB kill a DataLoader's workers."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _how_to_resume(arguments: Mapping[str, Any]) -> str:
    if place := arguments.get("checkpoint_s3_uri"):
        return f"; the next fit() goes on from what checkpoints there are in {place}"
    return "; it keeps no checkpoints, so the next fit() starts anew (checkpoint_s3_uri='file:///directory' keeps them)"


def _require_completed(outcome: Outcome | None, name: str, arguments: Mapping[str, Any]) -> None:
    if outcome is None:
        raise EstimatorError(
            f"{name} did not run: the SDK called no Compose, or Compose on a file that is not the job's."
        )
    if outcome.status == "Completed":
        return
    failed = outcome.status == "Failed"
    where = f" on {outcome.host}" if outcome.host else ""
    text = f"{name} {'failed' if failed else 'was stopped'}{where}: {outcome.reason}"
    raise (TrainingJobFailed if failed else TrainingJobStopped)(
        text if failed else text + _how_to_resume(arguments),
        job_name=name,
        status=outcome.status,
        secondary_status=outcome.status,
        reason=outcome.reason,
    )
