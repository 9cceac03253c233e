"""torchrun's elastic agent, with ranks that stop without losing work and restart without losing time.

torchrun's own ``LocalElasticAgent`` kills the ranks 30 s after the first of them ended, and after a SIGTERM it forgets
their exit codes. Its ``shutdown_timeout`` (as of torch 2.15) changes neither: it only delays the agent's
``SignalException`` after a signal. This agent leaves rank numbers, restarts and the exit barrier to torchrun, and
starts, watches and ends the ranks itself, through the four methods that torch documents for that ("Extending the
Agent").

1. If restarts are left, the first failure on any node ends the round on all nodes at once, by SIGKILL: the other ranks
   wait for a rank that is gone, and SIGTERM would only ask for a checkpoint that can't be agreed on.
2. A stop is never restarted, and neither is a rank that ends resumable.
3. The failure report of one round never becomes the reason for the end of a later one.
4. A failure that ends the job goes to all nodes, by `NodeLines`, and to all ranks, as the first failure. The ranks
   write it as the reason, and do not wait for the lost rank until a collective's timeout.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from smddp.failure import CAUSE_SECONDS, HostMemory, ReportFile, describe_rank_exit, find_printed, killed_by, rank_of
from smddp.launch.host_name import host_name
from smddp.launch.node_connections import JobFailure
from smddp.launch.rendezvous import NodeRendezvous
from smddp.process.children import FAILURE_GRACE, ChildProcesses, ProcessExit, exit_code
from smddp.process.exit_codes import REPORTS_VARIABLE, RESUMABLE, stop_announced

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05


class Agent(SimpleElasticAgent):
    """Runs the ranks of one node in this process's group. Each check of the ranks takes at most ``poll_seconds``.

    ``environ`` has the variables that all ranks share. The caller keeps ``processes``, to signal the ranks and read
    their exit codes.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        rendezvous: NodeRendezvous,
        command: Sequence[str],
        environ: Mapping[str, str],
        processes: ChildProcesses,
        poll_seconds: float,
    ) -> None:
        super().__init__(spec)
        self._environ = dict(environ)
        self._node_rendezvous = rendezvous
        self._command = command
        self._processes = processes
        self._poll_seconds = poll_seconds
        self._report_file = ReportFile()
        self._memory = HostMemory()
        self._failure: JobFailure | None = None
        self._is_reason = True
        self._untold = ""  # the part of the failure's report that is not yet in the log
        self._awaits_cause = False
        self._lost_contact_at: float | None = None
        self._keys_before: int | None = None
        self.has_succeeded = False
        """Whether all ranks here succeeded, so that the agent waits for the other nodes."""

    @property
    def exit_code(self) -> int:
        """The node's exit code: the code of the job's first failing rank, or of its own ranks if none ended the job."""
        return self._failure.code if self._failure is not None else exit_code(self._processes.exits)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        shared = {
            "GROUP_RANK": worker_group.group_rank,
            "GROUP_WORLD_SIZE": worker_group.group_world_size,
            "LOCAL_WORLD_SIZE": worker_group.spec.local_world_size,
            "ROLE_NAME": worker_group.spec.role,
            "MASTER_ADDR": worker_group.master_addr,
            "MASTER_PORT": worker_group.master_port,
            REPORTS_VARIABLE: 1,
            "TORCHELASTIC_RESTART_COUNT": self._node_rendezvous.number,
            "TORCHELASTIC_MAX_RESTARTS": worker_group.spec.max_restarts,
            "TORCHELASTIC_RUN_ID": worker_group.spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": worker_group.spec.rdzv_handler.use_agent_store,
        }
        self._processes.forget()
        self._processes.await_warm()
        self._memory = HostMemory()
        self._keys_before = self._node_rendezvous.count_keys()
        environ = self._environ | _texts(shared)
        return {
            worker.local_rank: self._processes.start(
                self._command,
                environ=environ
                | _texts(
                    {
                        "RANK": worker.global_rank,
                        "LOCAL_RANK": worker.local_rank,
                        "WORLD_SIZE": worker.world_size,
                        "ROLE_RANK": worker.role_rank,
                        "ROLE_WORLD_SIZE": worker.role_world_size,
                    }
                ),
                lines=True,
            ).pid
            for worker in worker_group.workers
        }

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        grace = 0 if self._remaining_restarts > 0 else FAILURE_GRACE
        ended = self._processes.poll(self._poll_seconds, failure_grace=grace)
        told_to_stop = self._processes.told_to_stop or stop_announced(os.environ)
        self._look_for_failure(worker_group, told_to_stop=told_to_stop, ended=ended)
        if not ended or self._awaits_cause:
            if self._remaining_restarts == 0 or not self._round_ended_elsewhere():
                return RunResult(state=WorkerState.HEALTHY)
            if not told_to_stop:
                self._end_healthy()
                return RunResult(state=WorkerState.FAILED)
            logger.error("A rank of another node failed during the stop: no checkpoint can be agreed on.")
            self._processes.kill()
        return self._result(worker_group, told_to_stop=told_to_stop)

    def _result(self, worker_group: WorkerGroup, *, told_to_stop: bool) -> RunResult:
        """Return the result of a round whose ranks all ended."""
        exits = {worker_group.workers[exited.index].global_rank: exited for exited in self._processes.exits}
        failures = {rank: _failure(exited) for rank, exited in exits.items() if exited.code != 0}
        is_stop = told_to_stop or any(exited.code == RESUMABLE for exited in exits.values())
        keys = self._keys_before
        if len(exits) > 1 and not failures and keys is not None and keys == self._node_rendezvous.count_keys():
            logger.warning(
                "no rank joined the process group of this run: if the script trains, each of the %d ranks has trained "
                "a model of its own. smddp.run(main) joins the group, and so does "
                "torch.distributed.init_process_group()",
                len(exits),
            )
        if self._remaining_restarts > 0 and (is_stop or not failures):
            self._remaining_restarts = 0
            self._node_rendezvous.set_closed()
        if self._remaining_restarts == 0:
            if self._failure is not None and self._is_reason:
                self._report_file.record(self._failure.report)
                if self._untold:  # after the last lines of the ranks, which lost contact
                    logger.error("What failed first: %s", self._untold)
            self._node_rendezvous.lines.part()
        # torchrun's agent waits in the exit barrier after a success. After a stop other nodes may never come there.
        self.has_succeeded = not failures and not told_to_stop and self._failure is None
        if self.has_succeeded and self._node_rendezvous.lines.failure is None:
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(exits))
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _look_for_failure(self, worker_group: WorkerGroup, *, told_to_stop: bool, ended: bool) -> None:
        """Publish this node's failure if it ends the job, or adopt another node's; once per job."""
        lines = self._node_rendezvous.lines
        self._awaits_cause = False
        if self._failure is None and lines.failure is None and self._remaining_restarts == 0 and not told_to_stop:
            failed = self._first_failed(worker_group, ended=ended)
            if failed is not None:
                worker = worker_group.workers[failed.index]
                describe = partial(
                    describe_rank_exit,
                    failed.code,
                    rank=worker.global_rank,
                    world_size=worker.world_size,
                    host=host_name(),
                    tail=failed.tail,
                    memory=self._memory,
                )
                how = describe()
                of_rank = self._report_file.read()
                report = self._node_rendezvous.tell_ranks(of_rank or how)
                self._failure = lines.settle(JobFailure(code=failed.code, report=report))
                in_log = {of_rank: "", how: describe(context=False)}  # the rank's own report, and its output
                self._untold = in_log.get(self._failure.report, self._failure.report)
                # If this process does not read the ranks' output, its reader knows more about a rank that ended by
                # itself.
                read = failed.tail is not None or killed_by(failed.code) is not None
                self._is_reason = self._failure.report != how or read
        if self._failure is None and lines.failure is not None:
            self._failure = lines.failure
            self._remaining_restarts = 0  # the other node can't restart, or can't join another round
            logger.error("What failed first: %s", self._failure.report)  # it names the host, even this one
            self._node_rendezvous.tell_ranks(self._failure.report)
            self._processes.end(FAILURE_GRACE)

    def _first_failed(self, worker_group: WorkerGroup, *, ended: bool) -> ProcessExit | None:
        """Return the rank here that failed first by itself; None if no rank has, or it may still end.

        ``ended`` means that all ranks of this node have ended.
        """
        failures = [exited for exited in self._processes.exits if exited.code not in (0, RESUMABLE)]
        if not failures:
            return None
        if (report := self._report_file.read()) is not None:
            # Each rank writes the report of the one that failed first, which may end last: its exit code counts.
            named = rank_of(report)
            index = next((i for i, worker in enumerate(worker_group.workers) if worker.global_rank == named), None)
            reporter = next((exited for exited in failures if exited.index == index), None)
            self._awaits_cause = index is not None and reporter is None and not ended
            return None if self._awaits_cause else reporter or failures[0]
        return self._cause(failures, is_last=ended and worker_group.group_world_size == 1)

    def _cause(self, failures: Sequence[ProcessExit], *, is_last: bool) -> ProcessExit | None:
        """Return the rank that failed first, by what the failed ranks printed; None if it may still end.

        A rank that lost contact may end before the rank that caused it, on any node. Return it only if no cause comes
        in CAUSE_SECONDS. ``is_last``: all ranks of all nodes have ended.
        """
        printed = [find_printed(exited.code, exited.tail or "") for exited in failures]
        if printed[0] is None or not printed[0].is_lost_contact:
            return failures[0]
        cause = next(
            (
                exited
                for exited, error in zip(failures, printed, strict=True)
                if killed_by(exited.code) != "SIGTERM" and not (error is not None and error.is_lost_contact)
            ),
            None,
        )
        self._lost_contact_at = self._lost_contact_at or time.monotonic()
        if cause is None and not is_last and time.monotonic() < self._lost_contact_at + CAUSE_SECONDS:
            self._awaits_cause = True
            time.sleep(_LOOK_SECONDS)  # if all ranks here have ended, poll() returns at once
            return None
        return cause or failures[0]

    def _round_ended_elsewhere(self) -> bool:
        try:
            return self._node_rendezvous.next_has_begun()
        except RendezvousConnectionError:
            self._end_healthy()
            raise

    def _end_healthy(self) -> None:
        """Kill the ranks that did not fail, and ignore their exit codes: they do not explain why the job ended."""
        self._processes.kill()
        self._processes.forget()

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        first = next((exited for exited in self._processes.exits if exited.code != 0), None)
        ranks = [worker.global_rank for worker in worker_group.workers]
        cause = f"Rank {ranks[first.index]} {first}" if first is not None else "Another node ended the round"
        logger.warning(
            "%s: restarting all ranks of all nodes; %d of %d restarts are left.",
            self._node_rendezvous.settle_cause(cause),
            self._remaining_restarts,
            worker_group.spec.max_restarts,
        )
        if (report := self._report_file.read()) is not None:
            logger.warning("The report of the round that ended: %s", report.partition("\n")[0])
            self._report_file.forget()  # every node ends its ranks before it joins the next round
        self._lost_contact_at = None
        self._processes.end_leftovers()  # they use GPU memory, and may write to the checkpoint directory
        super()._restart_workers(worker_group)

    # The arguments of these two differ between versions of torch, and are not needed here.
    def _stop_workers(self, *_: Any, **__: Any) -> None:
        self._processes.kill()

    def _shutdown(self, *_: Any, **__: Any) -> None:
        self._processes.kill()


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _failure(exited: ProcessExit) -> ProcessFailure:
    return ProcessFailure(local_rank=exited.index, pid=exited.pid, exitcode=exited.code, error_file="")
