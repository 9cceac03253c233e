"""``python -m smddp.launch.torchrun``: the ranks of one node, joined with the others by torchrun's rendezvous.

It replaces the program ``torchrun``, and differs where that one loses work: SIGTERM and SIGINT reach every rank as soon
as it has a handler (after 15 s without one), whatever the agent is doing; ranks have 120 s to end; the exit code is the
first failing rank's (75 if all of them can resume). ``--max-restarts`` starts the ranks of all nodes again after a
failure.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import NoReturn

from smddp.display_text import shown_names
from smddp.errors import DistributedError
from smddp.failure import find_printed, tell_failure
from smddp.launch.host_name import host_name
from smddp.launch.ports import check_port, free_port
from smddp.process.children import FAILURE_GRACE, ChildProcesses, ProcessExit, exit_code
from smddp.process.exit_codes import RESUMABLE
from smddp.process.inherited import reset_inherited
from smddp.process.leftovers import Leftovers
from smddp.process.log_format import start_log
from smddp.process.program import SIGNAL_SECONDS, forward_signals
from smddp.process.script_multiprocessing import SPAWN_REMEDY, find_spawn_call
from smddp.process.terminal_line import make_room_for_other_process
from smddp.process.warm_parent import WarmParent
from smddp.script_syntax import find_entry_point, handles_signals
from smddp.script_syntax.warm_start import start_warm_parent

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5

_AGENT = "agent"

_LAST_SECONDS = FAILURE_GRACE + 2.0
"""Seconds that the first node, which serves the store with the failure's reason, waits for the other nodes' end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """This node's part in a launch."""

    nodes: int
    processes: int
    """Ranks on this node."""
    rank: int
    master_addr: str
    master_port: int
    """0 for a free port, on a single node only."""
    job_id: str = ""
    """The job's id, the same on all nodes: a node of another job at this address is refused. "" if unknown."""
    max_restarts: int = 0
    """How often the ranks of all nodes are restarted after a failure; the same on all nodes."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.processes < 1:
            raise DistributedError(f"{self.nodes} nodes of {self.processes} processes: there must be one or more.")
        if not 0 <= self.rank < self.nodes:
            raise DistributedError(f"Node rank {self.rank} is not one of 0 to {self.nodes - 1}.")
        if self.max_restarts < 0:
            raise DistributedError(f"{self.max_restarts} restarts: there must be 0 or more.")
        check_port(self.master_port)
        if self.nodes > 1 and self.master_port == 0:
            raise DistributedError("Several nodes need one --master-port that all of them know.")


def launch(
    node: Node,
    command: Sequence[str],
    environ: Mapping[str, str],
    warm: WarmParent | None = None,
    *,
    awaits_handlers: bool = True,
) -> int:
    """Run ``command`` once per rank; return 0, 75 if all failing ranks can resume, or the first failing rank's code.

    ``environ`` has the variables that all ranks share. With ``warm``, the ranks are forked from that process. Without
    ``awaits_handlers``, a stop does not wait until ranks that have just started can handle it.

    Raise DistributedError if the nodes do not find each other, or lose the first one.
    """
    ranks = ChildProcesses(Leftovers())
    ranks.warm = warm
    ranks.awaits_handlers = awaits_handlers
    outcome: queue.SimpleQueue[BaseException | int] = queue.SimpleQueue()
    leaving = ExitStack()  # closed to inform the other nodes if a stop ends this node while no rank runs

    def run_agent() -> None:
        try:
            outcome.put(_run_agent(node, command, environ, ranks, leaving, end=outcome.put))
        except BaseException as error:
            outcome.put(error)

    def stop(signum: int) -> None:
        if not ranks.forward(signum):
            # No rank runs: the ranks have not started, or the agent waits in the exit barrier. So end at once; before
            # the start no work is lost, and the run can resume.
            before = RESUMABLE if signum == signal.SIGTERM else 128 + signum
            if exit_code(ranks.exits) in (0, RESUMABLE):  # after a failure other nodes must see this node as lost
                leaving.close()
            if node.rank == 0 and not ranks.has_started:
                logger.info("stopped before the ranks began, exit code %d: this run saved nothing", before)
            ranks.end_leftovers()
            os._exit(exit_code(ranks.exits) if ranks.exits else before)

    forward_signals(stop, ranks.pass_on)
    # The agent blocks in C++, where Python can't run signal handlers. So it runs in a thread, and signals in the main
    # thread. Hand-over: the first item in `outcome` ends the wait below; later ones are ignored.
    threading.Thread(target=run_agent, name=_AGENT, daemon=True).start()
    ended: BaseException | int | None = None
    while ended is None:
        with suppress(queue.Empty):
            ended = outcome.get(timeout=SIGNAL_SECONDS)
    failed = any(exited.code != 0 for exited in ranks.exits)
    ranks.kill()  # ranks still run only if the agent itself failed
    ranks.close_warm()
    ranks.end_leftovers()
    if isinstance(ended, BaseException):
        if not failed and isinstance(ended, DistributedError):  # it says itself what is wrong, and of which node
            raise ended
        if not failed:
            where = f"{node.master_addr}:{node.master_port}"
            cut_off = f"Node {node.rank} of {node.nodes} is cut off from the others at {where}"
            what = cut_off if node.nodes > 1 else "The ranks can't be run"
            raise DistributedError(f"{what}: {type(ended).__name__}: {ended}") from ended
        logger.error("The ranks can't be restarted: %s.", ended)
    _tell_failed(ranks.exits, first_rank=node.rank * node.processes)
    return exit_code(ranks.exits) if isinstance(ended, BaseException) else ended


def _tell_failed(exits: Sequence[ProcessExit], *, first_rank: int) -> None:
    """Log how the ranks of this node failed: a line for all that ended with one code after one error."""
    alike: dict[tuple[int, str], list[ProcessExit]] = {}
    for exited in exits:
        if exited.code != 0:
            printed = find_printed(exited.code, exited.tail or "")
            error = f"{printed.message}{printed.context}" if printed is not None and not printed.is_last_line else ""
            alike.setdefault((exited.code, error), []).append(exited)
    for (code, error), group in alike.items():
        ranks = sorted(first_rank + exited.index for exited in group)
        who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {shown_names(ranks)}"
        same = ", after the same error" if error and len(ranks) > 1 else ""
        logger.log(logging.DEBUG if code == RESUMABLE else logging.ERROR, "%s %s%s.", who, group[0], same)


def _run_agent(
    node: Node,
    command: Sequence[str],
    environ: Mapping[str, str],
    ranks: ChildProcesses,
    leaving: ExitStack,
    *,
    end: Callable[[BaseException | int], None],
) -> int:
    """Run the ranks, and return the exit code.

    While the agent waits for other nodes in C++, another thread calls ``end`` with the lost first node's error, or with
    the exit code. ``leaving`` gets the callback that informs the other nodes of a stop.
    """
    # They import torch. The main thread has installed its signal handlers by now.
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    from smddp.launch.agent import Agent
    from smddp.launch.node_connections import NodeLines
    from smddp.launch.rendezvous import NodeRendezvous

    port = node.master_port or free_port()

    def leave_barrier() -> None:
        if agent.has_succeeded:  # so it waits in the barrier, for minutes, for a node that will not come
            lines.await_others(_LAST_SECONDS)
            end(agent.exit_code)

    lines = NodeLines(
        host=host_name(),
        lost_first=lambda: end(rendezvous.lost()),
        failed=leave_barrier,
        stopped=lambda: ranks.forward(signal.SIGTERM),
    )
    leaving.callback(lambda: lines.part(stopped=not ranks.exits))
    rendezvous = NodeRendezvous(
        node=node.rank,
        nodes=node.nodes,
        max_restarts=node.max_restarts,
        address=node.master_addr,
        port=port,
        job_id=node.job_id,
        lines=lines,
    )
    spec = WorkerSpec(
        role="rank",
        local_world_size=node.processes,
        rdzv_handler=rendezvous,
        entrypoint=command[0],
        max_restarts=node.max_restarts,
        monitor_interval=0.001,  # each check of the ranks waits up to POLL_SECONDS itself
    )
    agent = Agent(
        spec,
        rendezvous=rendezvous,
        command=command,
        environ=environ,
        processes=ranks,
        poll_seconds=POLL_SECONDS,
    )
    if not agent.run().is_failed():
        rendezvous.part()
    elif lines.failure is not None:
        lines.await_others(_LAST_SECONDS)
    return agent.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    reset_inherited()
    parser = argparse.ArgumentParser(
        prog="python -m smddp.launch.torchrun", description=__doc__ and __doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=0, help="on one node 0: any free port")
    parser.add_argument("--job-id", default="", help="what the launcher of the nodes calls the job")
    parser.add_argument("--max-restarts", type=int, default=0, help="of all ranks of all nodes, after a failure")
    parser.add_argument("--stop-with-parent", action="store_true", help="stop, with a checkpoint, if the parent dies")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as for python -m")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if given.stop_with_parent:
        set_parent_death_signal = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
    start_log()
    make_room_for_other_process()  # rank 0 may show a live line there
    entry_point = find_entry_point(given.script, module=given.module)
    if given.node_rank == 0 and (line := find_spawn_call(entry_point.path)) is not None:
        logger.warning(
            "%s spawns ranks in line %d, and torchrun's agent starts ranks, too: if the script does so in each of "
            "them, they wait for one another until a timeout. %s",
            given.script,
            line,
            SPAWN_REMEDY,
        )
    try:
        node = Node(
            nodes=given.nnodes,
            processes=given.nproc_per_node,
            rank=given.node_rank,
            master_addr=given.master_addr,
            master_port=given.master_port,
            job_id=given.job_id,
            max_restarts=given.max_restarts,
        )
        command = [sys.executable, *entry_point.words, *given.arguments]
        environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **os.environ}
        warm = start_warm_parent(command, entry_point.modules, environ)
        return launch(node, command, environ, warm, awaits_handlers=handles_signals(entry_point.modules))
    except DistributedError as error:
        tell_failure(error)
        return 1


def _end(code: int) -> NoReturn:
    """End the process without the interpreter's own end, which frees all modules: 0.4 s with torch.

    It also aborts the process if the agent's thread, which may wait for a lost store, returns from C++ meanwhile
    (pytorch#190489): the exit code would be 134 instead of the rank's. No code of the user's runs in this process.
    """
    for agent in [thread for thread in threading.enumerate() if thread.name == _AGENT]:
        agent.join(SIGNAL_SECONDS)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader is gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())
