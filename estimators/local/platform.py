"""`LocalSageMaker`: SageMaker, S3 and CloudWatch Logs on this machine, for the length of a `with` block."""

from __future__ import annotations

import atexit
import logging
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from botocore.exceptions import InvalidRegionError
from botocore.utils import validate_region_name

from estimators.local import running_jobs
from estimators.local.access import ROLE, Access, KeptAccess, PlatformSession, ask, port_again
from estimators.local.api.signature import KeyPair
from estimators.local.chaos import Fault
from estimators.local.errors import LocalPlatformError
from estimators.local.executors.settings import Docker, Processes, Slurm
from estimators.local.private_directory import is_locked, require_unshared
from estimators.local.server_process import ServerProcess, ServerSettings
from smddp.process.interrupt import interruption_told
from smddp.process.script_multiprocessing import refuse_in_import

if TYPE_CHECKING:
    import boto3

logger = logging.getLogger(__name__)


class LocalSageMaker:
    """A local SageMaker. Training jobs sent to it run on this machine, as processes or in containers.

    The platform writes only below its directory, and listens only on 127.0.0.1. The hosts of a job have addresses of
    their own in 127.0.0.0/8. What a script does is the script's, and so is the port at which its ranks meet, which is
    open on all addresses of this machine.

    Two things outlive the block, or this process. With ``storage="disk"`` in a `directory` of your choice: the objects,
    the keys to them, and the records and logs of all jobs, which the next platform there knows. And the files of a job
    that could not be uploaded, or that Docker could not hand over: they stay where the job's FailureReason says, in
    `directory`, or without one in the machine's temporary directory.

    With `Docker`, it also makes containers and networks, which are removed with their jobs, and listens on the address
    of Docker's bridge. With `Slurm`, it keeps the jobs' files where all nodes see them, and has an allocation for each
    job.

    Examples:
        >>> with LocalSageMaker() as sagemaker:
        ...     sagemaker.boto_session.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]
        []
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        region: str = "us-east-1",
        storage: Literal["memory", "disk"] = "memory",
        port: int = 0,
        grace_seconds: float = 120.0,
        executor: Docker | Processes | Slurm | None = None,
    ) -> None:
        """Prepare a platform; `start`, or a ``with`` block, starts it.

        Args:
            directory: Working directory; made if missing. A temporary one by default.
            region: The AWS region to play.
            storage: Where S3 objects are kept: in memory, or on disk in `directory`, served by SeaweedFS.
            port: The port on 127.0.0.1; 0 takes any free one.
            grace_seconds: Time from SIGTERM to SIGKILL when a job is stopped or interrupted.
            executor: Runs each host of a job as a container of the job's image, on a node of a Slurm cluster, or as
                processes of this machine; None means `Processes`, with the Python that calls.

        Raises:
            ValueError: The storage, the region, the directory or the executor is not valid.
        """
        if storage not in ("memory", "disk"):
            raise ValueError(f"storage={storage!r}: give 'memory' or 'disk'")
        executor = Processes() if executor is None else executor
        if not isinstance(executor, Docker | Processes | Slurm):
            raise ValueError(
                f"executor={executor!r}: give a Docker, a Processes or a Slurm of estimators.local, or None for "
                "processes of this machine"
            )
        if not _is_region(region):
            raise ValueError(f"region={region!r}: give the name of an AWS region, such as 'us-east-1'")
        if directory == "":
            raise ValueError("directory='': give a path, or None for a temporary one")
        self._directory = None if directory is None else Path(directory).absolute()
        self._region = region
        self._storage = storage
        self._port = port
        self._grace_seconds = grace_seconds
        self._executor = executor
        self._server: ServerProcess | None = None
        self._session: Any = None
        self._boto_session: PlatformSession | None = None
        self._ends_with_block = False

    def start(self) -> LocalSageMaker:
        """Start the platform, and return once it answers. It ends by `stop`, or as by `stop` at the program's exit.

        Raises:
            LocalPlatformError: It is running already, or could not start; it needs a Docker engine and none answers;
                other users could replace the files in its directory.
            UnguardedScriptError: multiprocessing has started this process, which still imports the script.
        """
        refuse_in_import("LocalSageMaker")
        if self._server is not None:
            raise LocalPlatformError("The local platform is running already: use it, or call stop() first.")
        kept, earlier = None, None
        if self._directory is not None:
            try:
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            except (FileExistsError, NotADirectoryError) as error:
                raise LocalPlatformError(
                    f"{self._directory}, or what it lies in, is no directory. Give the path of one; it is made if "
                    "missing."
                ) from error
            require_unshared(self._directory)
            if self._storage == "disk":
                kept = KeptAccess(self._directory)
                kept.make()
                earlier = kept.read()
        shared = self._executor.shared if isinstance(self._executor, Slurm) else None
        if shared is not None:
            require_unshared(Path(shared))
        place = shared or self._directory or tempfile.gettempdir()
        directory = Path(place, f"smddp-local-{secrets.token_hex(8)}")
        on_disk = (self._directory or directory) / "storage"
        # If a platform runs there already, the start below fails, and the busy ports deserve no warning.
        known = earlier if not is_locked(on_disk) else None
        with interruption_told(logger, "the local platform was not started, and nothing of it is left"):
            self._server = ServerProcess(
                ServerSettings(
                    run_directory=str(directory),
                    storage_directory=str(on_disk) if self._storage == "disk" else None,
                    client_directory=str(kept.directory if kept is not None else directory),
                    region=self._region,
                    port=self._port or (port_again(known.endpoint_url) if known is not None else 0),
                    s3_port=port_again(known.s3_endpoint_url) if known is not None else 0,
                    grace_seconds=self._grace_seconds,
                    executor=self._executor,
                    keys=earlier.keys if earlier is not None else KeyPair.random(),
                )
            )
        atexit.register(self._stop_at_exit)
        if kept is not None:
            try:
                kept.write(self._server.access)
            except OSError:  # a full disk
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """End the platform with all its jobs, and log which of them ran.

        Does nothing if it is not running, or in a forked process: the platform is that of the process that started it.

        With ``storage="disk"`` in a directory of yours, running jobs are stopped as by StopTrainingJob, and the
        platform waits for them: their checkpoints are kept. Ctrl-C ends them at once. In all other cases they end at
        once.
        """
        if self._server is None or not self._server.is_own:
            return
        atexit.unregister(self._stop_at_exit)
        keeps = self._kept_in is not None
        with interruption_told(logger, "the local platform ended at once, and its jobs saved nothing more"):
            try:
                running_jobs.end(self._access, grace_seconds=self._grace_seconds if keeps else None)
            finally:
                self._server.stop()
                self._server = self._session = self._boto_session = None

    def _stop_at_exit(self) -> None:
        """Stop at the interpreter's exit, after an exception, too: no job ends without a line that says so."""
        with suppress(KeyboardInterrupt):  # `stop` has told it, and no caller is left
            self.stop()

    def __enter__(self) -> LocalSageMaker:
        self._ends_with_block = True
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:
            if not isinstance(error, KeyboardInterrupt):
                raise
            # The first Ctrl-C is what ends the block.

    @property
    def session(self) -> Any:
        """A ``Session`` of the installed SageMaker SDK: ``PyTorch(..., sagemaker_session=platform.session)``."""
        if self._session is None:
            with interruption_told(logger, "the session of the SageMaker SDK was not made"):
                from estimators.sdk.sessions import session  # takes seconds

                self._session = session(self.boto_session, default_bucket=self.default_bucket)
        return self._session

    @property
    def boto_session(self) -> boto3.Session:
        """A boto3 session that can reach only this platform, whatever the environment or ~/.aws say."""
        if self._boto_session is None:
            self._boto_session = self._access.boto_session()
            self._boto_session.ends_with_block = self._ends_with_block
            self._boto_session.kept_in = None if self._kept_in is None else str(self._kept_in)
            self._boto_session.hosts_are_processes = isinstance(self._executor, Processes)
            self._boto_session.runs_in_this_python = isinstance(self._executor, Processes) and self._executor.runs_here
        return self._boto_session

    @property
    def endpoint_url(self) -> str:
        """The address of every service, except S3 with ``storage="disk"``."""
        return self._access.endpoint_url

    @property
    def environment(self) -> dict[str, str]:
        """Variables for any other program, such as the AWS CLI or an unmodified submit script.

        Set them over an environment without any other variables that start with ``AWS_``.
        """
        return self._access.environment(self._running.client_directory)

    @property
    def role(self) -> str:
        """The ARN of a role for jobs; nothing checks its permissions."""
        return ROLE

    @property
    def default_bucket(self) -> str:
        """The name of the default bucket, which exists."""
        return self._access.default_bucket

    @property
    def server_pid(self) -> int:
        """The process ID of the server."""
        return self._running.pid

    def check(self) -> None:
        """Check that the platform runs.

        Raises:
            LocalPlatformError: It was not started, or its server has ended; the message has the end of its log.
        """
        if not self._running.is_running:
            log = self._running.end_of_log()
            raise LocalPlatformError(
                "The local platform's server has ended, and with it all jobs; was it killed, by a lack of memory "
                f"perhaps? The end of its log:\n{log}"
            )

    def interrupt(self, job_name: str) -> None:
        """Reclaim the instances of a running spot job, as EC2 does: SIGTERM, the grace time, and a new start.

        Raises:
            botocore.exceptions.ClientError: There is no such job, or it can't be interrupted.
        """
        ask(self._access, "InterruptTrainingJob", {"TrainingJobName": job_name}, service="SmddpLocal")

    def set_chaos(self, *faults: Fault) -> None:
        """Replace all faults that are set; without arguments, clear them.

        Args:
            faults: `Throttle`, `ServerError` and `Slow` of `estimators.local.chaos` for requests, except the platform's
                own, such as for a job's data; `NoCapacity`, `LoseHost` and `Reclaim` for jobs.

        Raises:
            botocore.exceptions.ClientError: The platform answers no request that a fault's `on` names.

        Examples:
            >>> with LocalSageMaker() as sagemaker:
            ...     sagemaker.set_chaos(chaos.Throttle(on="ListTrainingJobs", count=2))
            ...     jobs = sagemaker.boto_session.client("sagemaker").list_training_jobs()  # boto3 tries three times
            ...     sagemaker.describe_chaos()
            [('throttle on=ListTrainingJobs count=2', 2)]
        """
        ask(self._access, "SetChaos", {"Faults": " ".join(map(str, faults))}, service="SmddpLocal")

    def describe_chaos(self) -> list[tuple[str, int]]:
        """Return the text of each fault that is set, and how often it has been met."""
        described = ask(self._access, "DescribeChaos", {}, service="SmddpLocal")
        return [(fault["Fault"], fault["Met"]) for fault in described["Faults"]]

    @property
    def _kept_in(self) -> Path | None:
        """The directory that keeps objects, records and logs for the next platform there; None if nothing does."""
        return self._directory if self._storage == "disk" else None

    @property
    def _running(self) -> ServerProcess:
        if self._server is None:
            raise LocalPlatformError("The local platform is not running: use it inside `with`, or call start().")
        return self._server

    @property
    def _access(self) -> Access:
        return self._running.access


def _is_region(name: str) -> bool:
    try:
        validate_region_name(name)
    except InvalidRegionError:
        return False
    return name != ""  # botocore accepts an empty name
