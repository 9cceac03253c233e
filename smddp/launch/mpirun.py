"""``python -m smddp.launch.mpirun``: the ranks of a job through OpenMPI's mpirun, on this host and, by ssh, on others.

mpirun answers SIGTERM by killing its ranks a second later. So this program, as its parent, sends SIGTERM and SIGINT to
the ranks themselves, which can then save and end in their own time; mpirun reports their exit codes.
``smddp.launch.mpi_host`` does the same on each other host. If a host is lost, the job ends.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from smddp.errors import DistributedError
from smddp.failure import HostMemory, ReportFile, describe_rank_exit, tell_failure
from smddp.launch.host_name import host_name
from smddp.launch.mpi_host import SSH, SshConnection, connect
from smddp.process.exit_codes import REPORTS_VARIABLE, RESUMABLE
from smddp.process.inherited import reset_inherited
from smddp.process.leftovers import Leftovers
from smddp.process.log_format import start_log
from smddp.process.output_lines import Tail
from smddp.process.process_tree import RankStops, find_ranks, send_to_those_that_catch
from smddp.process.program import Program

logger = logging.getLogger(__name__)

_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on signal (\d+)")
"""mpirun's message about a killed rank, and about no other."""

_ENDED = re.compile(r"Process name: \[.*[,@](\d+)\]|MPI_ABORT was invoked on rank (\d+) ")
"""mpirun's message about the first rank that ended with an exit code other than 0, or aborted the others."""

_UNNAMED = "Primary job  terminated normally, but"
"""mpirun's message that some rank ended with an exit code other than 0. OpenMPI 4 omits `_ENDED` if the other ranks end
at the same moment, because it then counts the job as ended."""

_BANNER = re.compile(r"(?<!-)-{70,}\n(?=Primary job|mpirun |MPI_ABORT )")
"""The beginning of mpirun's own messages, also behind a rank's last line without a newline."""

_LOOK_SECONDS = 0.2
_LOST_SECONDS = 5.0


def mpirun_command(
    processes: int,
    options: Sequence[str],
    command: Sequence[str],
    *,
    hosts: Sequence[str] = (),
    interface: str | None = None,
    ranks: int | None = None,
) -> list[str]:
    """Return the mpirun command line that runs ``command`` in ``processes`` ranks on each host.

    ``options`` are the user's; they come last and so win. ``hosts`` begins with this host; empty means this host alone.
    Without ``interface`` mpirun chooses the network interface. ``ranks`` is the total, if smaller: the first hosts are
    filled first.
    """
    np = str(ranks or processes * max(len(hosts), 1))
    if len(hosts) < 2:
        # One host needs no ssh: without this option, OpenMPI 4 refuses to start if ssh is missing.
        mpirun = ["mpirun", "--host", f"localhost:{processes}", "-np", np, "--mca", "plm", "isolated"]
    else:
        # The full path tells the other hosts, whose ssh sessions do not have our PATH, where OpenMPI is.
        mpirun = [shutil.which("mpirun") or "mpirun", "--host", ",".join(f"{host}:{processes}" for host in hosts)]
        mpirun += ["-np", np, "--mca", "plm_rsh_agent", " ".join(SSH)]
        mpirun += ["--mca", "plm_rsh_no_tree_spawn", "1"]
        for layer in ("btl", "oob") if interface else ():
            mpirun += ["--mca", f"{layer}_tcp_if_include", str(interface)]
    # As in SageMaker's toolkit: ranks may use all cores, and shared memory needs no ptrace, which containers forbid.
    mpirun += ["--bind-to", "none", "--map-by", "slot", "--mca", "btl_vader_single_copy_mechanism", "none"]
    return [*mpirun, "--allow-run-as-root", *options, *command]


def launch(command: Sequence[str], *, ranks: int, per_host: int, others: Sequence[str] = ()) -> int:
    """Run an mpirun command line, wait for it, and return its exit code: the first failing rank's.

    SIGTERM and SIGINT go to the ranks on this host. The command starts ``ranks`` ranks, ``per_host`` on each host.
    Raise DistributedError if mpirun is missing, or another host does not answer or is lost.
    """
    if shutil.which(command[0]) is None:
        raise DistributedError(f"There is no {command[0]} on PATH ({os.environ.get('PATH', '')}): install OpenMPI.")
    connections = connect(others)
    report_file, memory = ReportFile(), HostMemory()
    tail = Tail()

    def stop(mpirun: int, signum: int) -> None:
        if not find_ranks(mpirun):  # no rank runs; if ranks run, `_await` signals them instead of mpirun
            with suppress(ProcessLookupError):
                os.kill(mpirun, signum)

    def pass_on(mpirun: int, signum: int) -> None:
        send_to_those_that_catch(find_ranks(mpirun), signum)

    leftovers = Leftovers()
    environ = {**os.environ, REPORTS_VARIABLE: "1"}
    mpirun = Program(command, environ=environ, stop=stop, pass_on=pass_on, heed=tail.keep)
    lost = _await(mpirun, connections, leftovers)
    code = mpirun.exit_code()
    hosts = [host_name(), *others]
    is_failure = code not in (0, RESUMABLE) and not lost and not mpirun.stops
    reason = _reason(tail.text, code, ranks=ranks, per_host=per_host, hosts=hosts, memory=memory) if is_failure else ""
    for connection in connections:
        connection.close(code or int(bool(lost)), reason)
    if lost:
        raise DistributedError(
            f"{' and '.join(lost)} was lost: its container or its host has ended, or the network to it is broken."
        )
    if reason:
        report_file.record(reason)
    return code


def _reason(printed: str, code: int, *, ranks: int, per_host: int, hosts: Sequence[str], memory: HostMemory) -> str:
    """Return the reason of the failure, from the output of all ranks and mpirun; empty if mpirun reports no rank.

    ``memory`` has this host's counters from before the ranks began.
    """
    of_ranks = _BANNER.split(printed, maxsplit=1)[0]
    rank, host = (0 if ranks == 1 else None), hosts[0]
    if killed := _KILLED.search(printed):
        rank, host, code = int(killed[1]), killed[2], 128 + int(killed[3])
    elif ended := _ENDED.search(printed):
        rank = int(ended[1] or ended[2])
        host = hosts[rank // per_host]
    elif _UNNAMED not in printed:
        return ""
    here = memory if ranks <= per_host or (rank is not None and rank < per_host) else None
    return describe_rank_exit(code, rank=rank, world_size=ranks, host=host, tail=of_ranks, many=ranks > 1, memory=here)


def _await(program: Program, connections: Sequence[SshConnection], leftovers: Leftovers) -> list[str]:
    """Wait for mpirun, signal its ranks at each stop, and return the lost hosts.

    After a loss mpirun has 5 s to end by itself, then SIGTERM and SIGKILL follow, 5 s each.
    """
    mpirun, ranks = program.process, RankStops(program.process.pid)
    lost: list[str] = []
    while mpirun.returncode is None and not lost:
        with suppress(subprocess.TimeoutExpired):
            mpirun.wait(_LOOK_SECONDS)
        ranks.tell(program.stops)
        leftovers.reap({mpirun.pid})
        leftovers.end_those_of_ranks({mpirun.pid}, logger.warning)
        lost = [connection.host for connection in connections if not connection.is_open]
    if lost:
        for signum in (0, signal.SIGTERM, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                mpirun.send_signal(signum)
                mpirun.wait(_LOST_SECONDS)
    return lost


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    reset_inherited()
    parser = argparse.ArgumentParser(
        prog="python -m smddp.launch.mpirun", description=__doc__ and __doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--processes", type=int, default=1, help="ranks on each host")
    parser.add_argument("--ranks", type=int, help="ranks on all hosts, if fewer")
    parser.add_argument("--hosts", type=lambda text: text.split(","), default=[], help="all hosts, this one first")
    parser.add_argument("--interface", help="the network interface between the hosts")
    parser.add_argument("--option", action="append", default=[], help="one more word for mpirun; may be repeated")
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as for python -m")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    start_log()
    python = [sys.executable]
    if importlib.util.find_spec("mpi4py") is not None:
        python += ["-m", "mpi4py"]  # an uncaught exception then aborts the other ranks
    if given.module:
        python.append("-m")
    of_rank = [sys.executable, str(Path(__file__).with_name("mpi_rank.py"))]
    if given.hosts:
        of_rank.append("--several-hosts")
    ranks = given.ranks or given.processes * max(len(given.hosts), 1)
    command = mpirun_command(
        given.processes,
        given.option,
        [*of_rank, *python, given.script, *given.arguments],
        hosts=given.hosts,
        interface=given.interface,
        ranks=ranks,
    )
    try:
        return launch(command, ranks=ranks, per_host=given.processes, others=given.hosts[1:])
    except DistributedError as error:
        tell_failure(error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
