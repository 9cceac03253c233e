"""Runs one job on hosts in a thread of its own, from Starting to its end, and again after an interruption.

`HostedRecord` decides how the job ends; the runner makes directories and transfers, and `AttemptHosts` runs the hosts.
Subclasses do what is specific to a kind of job: its inputs and its outputs.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import ClassVar, Generic, TypeVar

from estimators.hosts.failure import Exit, algorithm_error, loss_of_hosts
from estimators.hosts.opt_ml_tree import HostTree
from estimators.instances import WITH_GPUS
from estimators.local.directory_reaper import remove_tree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.hosted import states
from estimators.local.engine.hosted.attempt import AttemptHosts
from estimators.local.engine.hosted.job_faults import JobFaults
from estimators.local.engine.hosted.logs import HostLog
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.hosted.record import KILLED, HostedRecord, Request_co
from estimators.local.engine.hosted.request import Rule, only_recorded
from estimators.local.engine.hosted.states import IN_VAIN, Ending, StoppedError
from estimators.local.engine.instance_groups import Host, InstanceGroup, name_hosts
from estimators.local.engine.transfers.folder_sync import FolderSync, SyncedFolder
from estimators.local.engine.transfers.host_channels import HostInputs
from estimators.local.engine.transfers.objects import CancelledError
from estimators.local.executors import (
    ClusterSpec,
    ExecutorError,
    HandOverError,
    HostCluster,
    HostStartError,
)
from smddp.failure import within_limit

logger = logging.getLogger(__name__)

Sync = TypeVar("Sync", bound=FolderSync)


class HostedRunner(abc.ABC, Generic[Request_co]):
    """Runs a job from its creation to its end; ``image`` is the executor's name of the image."""

    _rules: ClassVar[Mapping[str, Rule]]
    """The rules for the members of this kind's request."""
    _failure: ClassVar[PurePath]
    """The file in which a program writes why it failed, relative to /opt/ml."""

    def __init__(self, job: HostedRecord[Request_co], image: str, platform: Platform) -> None:
        self._job = job
        self._image = image
        self._request = job.request
        self._platform = platform
        self._directory = platform.directory / job.directory_name
        self._faults = JobFaults(job, platform.chaos)
        self._syncs: list[FolderSync] = []
        self._began = 0
        # A job that has retries gets a new runner only after its platform was killed, which only interrupts a spot job.
        self._retried_for = KILLED if job.retries and not job.request.spot else ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"job {job.name}", daemon=True)

    @property
    def directory(self) -> Path:
        """The job's directory while it runs."""
        return self._directory

    def start(self) -> None:
        """Begin, and return at once."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the job has ended and its directory is gone. After Ctrl-C it can be called again."""
        # Not Thread.join(): before Python 3.12, a thread counts as ended once its join() was interrupted.
        self._done.wait(timeout)

    def _run(self) -> None:
        try:
            try:
                while not self._attempt_or_retry():
                    self._job.begin_again()
            except StoppedError:
                self._job.finish()
            except FailedJobError as error:
                self._job.finish(failure_reason=within_limit(str(error)))
            finally:
                remove_tree(self._directory)
        except Exception as error:
            reason = self._describe_defect(error)
            if not self._job.ended:
                self._job.finish(failure_reason=within_limit(reason))
        finally:
            self._done.set()

    def _attempt_or_retry(self) -> bool:
        """Run one attempt; return whether the job is finished, False if another attempt follows."""
        try:
            return self._attempt()
        except StoppedError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, FailedJobError) else self._describe_defect(error)
            if self._job.retries_after(reason):
                self._retried_for = reason
                return False
            if isinstance(error, FailedJobError):
                raise
            raise FailedJobError(within_limit(reason, self._rescue())) from error

    def _attempt(self) -> bool:
        """Run one attempt, from new hosts to their end; return whether the job is finished."""
        remove_tree(self._directory)
        passed_over: list[str] = []
        groups = self._faults.allocate(self._request.preferences, passed_over.append)
        hosts = name_hosts(groups)
        # Two attempts within a second would share a stream.
        self._began = max(int(time.time()), self._began + 1)
        logs = {host.name: self._log(host) for host in hosts}
        try:
            return self._attempt_on(groups, hosts, logs, passed_over)
        finally:  # also of an attempt that ends before its hosts run
            for log in logs.values():
                log.close()

    def _attempt_on(
        self,
        groups: Sequence[InstanceGroup],
        hosts: Sequence[Host],
        logs: Mapping[str, HostLog],
        passed_over: Sequence[str],
    ) -> bool:
        """Run one attempt on new hosts; ``passed_over`` tells the instance types without capacity."""
        first_log = logs[hosts[0].name]
        self._job.metrics.report_to(first_log.say)
        self._introduce(first_log, passed_over)
        roots = {host.name: self._directory / host.name for host in hosts}
        cluster = self._platform.executor.cluster(
            ClusterSpec(
                name=self._job.name,
                image=self._image,
                roots=roots,
                mounts=self._request.files.mounts if self._request.files else {},
                network_isolation=self._request.network_isolation,
                without_gpus=frozenset(host.name for host in hosts if not host.instance_type.startswith(WITH_GPUS)),
                cancelled=self._job.must_end,
                say=first_log.say,
            )
        )
        trees = {
            name: HostTree(root, seen_as=cluster.ml_root(name), say=logs[name].say) for name, root in roots.items()
        }
        inputs = HostInputs(
            self._platform.s3,
            self._request.channels,
            hosts,
            trees,
            cannot_pipe=self._platform.executor.cannot_pipe,
            failed=self._job.platform_failed,
            say=lambda host, line: logs[host].say(line),
        )
        try:
            self._faults.await_capacity(first_log.say)
            self._job.allocated(groups)
            with cluster, inputs:
                self._job.enter(states.DOWNLOADING)
                for host in hosts:
                    self._lay_out(hosts, host, trees[host.name].root, cluster)
                self._require_outputs()  # fail before the program runs, not after
                inputs.bring(cancelled=self._job.must_end)
                self._syncs = list(self._make_syncs(trees))
                for log in logs.values():
                    log.open()
                ending, exits = AttemptHosts(self._job, self._platform, self._faults).run(
                    trees, logs, cluster, self._syncs
                )
        except (FailedJobError, HostStartError, CancelledError) as error:
            if self._job.must_end():  # the stop came first
                raise StoppedError from None
            if isinstance(error, HostStartError):
                kind = "InternalServerError" if isinstance(error, ExecutorError) else "ClientError"
                raise FailedJobError(f"{kind}: {error}") from error
            raise
        except HandOverError as error:
            raise FailedJobError(f"InternalServerError: {error}{self._rescue()}") from error
        return self._conclude(ending, exits, trees, logs)

    def _introduce(self, log: HostLog, passed_over: Sequence[str]) -> None:
        """Write the lines that precede the program's into the attempt's first log."""
        for remark in self._remarks():
            log.say(f"[platform] {remark}")
        for line in passed_over:
            log.say(line)
        if self._retried_for:
            number, most = self._job.retries, self._request.max_retries
            log.say(f"[platform] Retry {number} of {most}, as RetryStrategy asks, after {self._retried_for}")
            self._retried_for = ""

    def _conclude(
        self, ending: Ending, exits: Mapping[str, Exit], trees: Mapping[str, HostTree], logs: Mapping[str, HostLog]
    ) -> bool:
        """Finish the job, or return False if another attempt follows; the hosts have ended."""
        if ending is Ending.CLOSE:
            raise StoppedError
        problems: list[str] = []
        # Order: this attempt's checkpoints are in S3 before the next attempt downloads them.
        if ending.goes_on:
            self._finish_syncs(problems)
            if problems:
                raise FailedJobError(within_limit("; ".join(problems), self._rescue()))
            if not self._request.spot or self._job.platform_failure is not None:
                self._retried_for = self._explain(exits, trees, logs)
                return False
            if not self._gives_up(ending):
                return False
        self._job.upload()
        if ending in (Ending.FAILED, Ending.LOST):
            with self._noting(problems):
                problems.append(self._explain(exits, trees, logs))
        self._save(trees, problems)
        return True

    # Specific to a kind of job.

    @abc.abstractmethod
    def _lay_out(self, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
        """Make one host's /opt/ml, without its input from S3."""

    @abc.abstractmethod
    def _require_outputs(self) -> None:
        """Raise FailedJobError if one of the job's output locations can't be written to."""

    @abc.abstractmethod
    def _make_syncs(self, trees: Mapping[str, HostTree]) -> Iterator[FolderSync]:
        """Yield the folders that are copied to S3 while the hosts run."""

    @abc.abstractmethod
    def _upload(self, trees: Sequence[HostTree], problems: list[str], *, failed: bool) -> str | None:
        """Upload as much as possible of the ended hosts' output; return the model's URI, or None without a model.

        Errors are added to ``problems``; ``failed`` says whether the job had failed before the uploads.
        """

    def _gives_up(self, ending: Ending) -> bool:  # noqa: ARG002  # a kind of jobs that begins again looks at it
        """Return whether a job that may begin again has lost hosts too often."""
        return True

    def _remarks(self) -> Iterator[str]:
        """Yield the remarks that precede the program's lines in the log."""
        if recorded := only_recorded(self._request.members, self._rules):
            yield f"Recorded alone, and not done here: {', '.join(recorded)}"

    # Common to all kinds.

    def _sync(self, kind: type[Sync], folder: SyncedFolder, trees: Mapping[str, HostTree]) -> Sync:
        return kind(
            self._platform.s3,
            folder,
            trees,
            snapshot=self._directory / f"snapshot-{uuid.uuid4().hex[:8]}",
            seconds=self._platform.sync_seconds,
        )

    def _rescue(self) -> str:
        """Move the job's directory to the rescue directory; return a FailureReason's end with the new path.

        Return an empty text if the engine is ending or the directory is absent.
        """
        if self._job.closed or not self._directory.exists():
            return ""
        kept = self._platform.rescue / f"{self._job.name}-{uuid.uuid4().hex[:8]}"
        try:
            self._directory.chmod(0o700)
            self._directory.rename(kept)
        except OSError as error:
            return f". Its files are lost: they could not be moved to {kept} ({error.strerror})."
        return f". All files are kept in {kept}."

    @contextlib.contextmanager
    def _noting(self, problems: list[str]) -> Iterator[None]:
        """Add any error of the block to ``problems``: the steps after the block must run, too."""
        try:
            yield
        except FailedJobError as error:
            problems.append(str(error))
        except Exception as error:
            problems.append(self._describe_defect(error))

    def _finish_syncs(self, problems: list[str]) -> None:
        for sync in self._syncs:
            with self._noting(problems):
                sync.finish()

    def _describe_defect(self, error: Exception) -> str:
        logger.error("job %s met a defect of the platform", self._job.name, exc_info=error)
        return f"InternalServerError: {type(error).__name__}: {error}"

    def _explain(self, exits: Mapping[str, Exit], trees: Mapping[str, HostTree], logs: Mapping[str, HostLog]) -> str:
        if sending := self._job.platform_failure:
            return within_limit(sending)
        if lost := loss_of_hosts(exits):
            spot = f" {IN_VAIN}" if self._request.spot else ""
            return within_limit(lost, spot)
        codes = {name: end.code for name, end in exits.items()}
        tails = {name: log.tail for name, log in logs.items()}
        shortages = "; ".join(f"{name} {end.shortage}" for name, end in exits.items() if end.shortage)
        return algorithm_error(codes, trees, tails, shortages, told_in=self._failure)

    def _log(self, host: Host) -> HostLog:
        return HostLog(
            self._platform.logs,
            self._job.name,
            host.name,
            began=self._began,
            group=self._job.log_group,
            seen=self._read,
            store=self._platform.store,
        )

    def _read(self, line: str, timestamp: int) -> None:
        """Pass a line that a host printed to the metrics and the faults."""
        self._job.metrics.read(line, timestamp)
        self._faults.read(line)

    def _save(self, trees: Mapping[str, HostTree], problems: list[str]) -> None:
        """Upload as much as possible of the hosts' output, and finish the job.

        ``problems`` has the reason if the job has failed already.
        """
        failed = len(problems)
        self._finish_syncs(problems)
        model = self._upload(list(trees.values()), problems, failed=failed > 0)
        kept = self._rescue() if len(problems) > failed else ""
        reason = within_limit("; ".join(problems), kept) if problems else None
        self._job.finish(failure_reason=reason, model_artifacts=model)
