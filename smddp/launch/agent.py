"""torchrun's elastic agent with ranks that can be stopped without losing work.

torchrun's own ``LocalElasticAgent`` kills the ranks 30 s after the first of them ended, and after a SIGTERM it
forgets how they ended. This agent leaves rendezvous, ranks and the exit barrier to torchrun, and starts, watches
and ends the ranks itself, through the four methods that torch documents for that ("Extending the Agent").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from smddp.launch.lines import STDOUT
from smddp.launch.processes import Ending, Processes

logger = logging.getLogger(__name__)


class Agent(SimpleElasticAgent):
    """Runs the ranks of one node; they share this process's group.

    Args:
        spec: What torchrun needs to know: rendezvous, ranks on this node.
        command: What each rank runs.
        processes: Where the ranks are started, so that the caller can signal them and read how they ended.
        poll_seconds: How long one look at the ranks lasts at most.
    """

    def __init__(self, spec: WorkerSpec, *, command: Sequence[str], processes: Processes, poll_seconds: float) -> None:
        super().__init__(spec)
        self._command = command
        self._processes = processes
        self._poll_seconds = poll_seconds

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        shared = {
            "GROUP_RANK": worker_group.group_rank,
            "GROUP_WORLD_SIZE": worker_group.group_world_size,
            "LOCAL_WORLD_SIZE": worker_group.spec.local_world_size,
            "ROLE_NAME": worker_group.spec.role,
            "MASTER_ADDR": worker_group.master_addr,
            "MASTER_PORT": worker_group.master_port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_RUN_ID": worker_group.spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": worker_group.spec.rdzv_handler.use_agent_store,
        }
        environ = _defaults(worker_group.spec.local_world_size) | dict(os.environ) | _texts(shared)
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
                lines=not os.isatty(STDOUT),
            ).pid
            for worker in worker_group.workers
        }

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if not self._processes.poll(self._poll_seconds):
            return RunResult(state=WorkerState.HEALTHY)
        ranks = [worker.global_rank for worker in worker_group.workers]
        endings = {ranks[ending.index]: ending for ending in self._processes.endings}
        failures = {rank: _failure(ending) for rank, ending in endings.items() if ending.code != 0}
        # After a stop the other nodes may never come to the barrier in which an agent that succeeded awaits them.
        if not failures and not self._processes.told_to_stop:
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
        return RunResult(state=WorkerState.FAILED, failures=failures)

    # Between versions of torch these two differ in arguments that do not matter here.
    def _stop_workers(self, *_: Any, **__: Any) -> None:
        self._processes.kill()

    def _shutdown(self, *_: Any, **__: Any) -> None:
        self._processes.kill()


def _defaults(local_world_size: int) -> dict[str, str]:
    """What a rank's environment holds unless the user set it."""
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if local_world_size > 1:
        threads = max(1, len(os.sched_getaffinity(0)) // local_world_size)
        defaults["OMP_NUM_THREADS"] = str(threads)
        if "OMP_NUM_THREADS" not in os.environ:
            logger.info("OMP_NUM_THREADS=%d: this machine's cores, shared by %d ranks.", threads, local_world_size)
    return defaults


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _failure(ending: Ending) -> ProcessFailure:
    return ProcessFailure(local_rank=ending.index, pid=ending.pid, exitcode=ending.code, error_file="")
