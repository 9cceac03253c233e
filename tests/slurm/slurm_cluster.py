"""A real Slurm of two nodes on this machine, in a mount namespace of its own: for tests, and for a hand that tries.

``with SlurmCluster(directory) as slurm`` has slurmctld and two slurmd of Debian's slurm-wlm run, as root. Node names
resolve inside alone, so that everything which speaks to Slurm goes in: `SlurmCluster.command` is the prefix, and
`SlurmCluster.programs` a directory for PATH with Slurm's commands, which go in by themselves.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tests.ports import free_ports

PROGRAMS = ("salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
NODES = ("n1", "n2")
_WAIT_SECONDS = 60.0
_SRUN_PORTS = 40

_CONFIGURATION = """
ClusterName=smddp
FirstJobId={controller}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SrunPortRange={first}-{last}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=defer_batch=0,sched_interval=1,batch_sched_delay=0,sched_min_interval=0,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
EnforcePartLimits=ALL
KillWait=30
MessageTimeout=30
ReturnToService=2
{nodes}
PartitionName=low Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 OverSubscribe=NO
PartitionName=high Nodes={names} MaxTime=INFINITE State=UP PriorityTier=2 OverSubscribe=NO
"""


def can_run_slurm() -> bool:
    """Whether this machine has what a `SlurmCluster` needs."""
    needed = ("munged", "slurmctld", "slurmd", "nsenter", "unshare", *PROGRAMS)
    return os.geteuid() == 0 and all(shutil.which(program) for program in needed)


class SlurmCluster:
    """A cluster, from when it is entered until it is left.

    Its jobs are numbered from its controller's port on: ranks derive the port they meet at from the number, and those
    of two clusters on this machine must not meet.

    Args:
        directory: An empty one of its own, with a short path: sockets lie in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.programs = directory / "bin"
        """Slurm's commands, each of which enters the cluster's namespace."""

    @property
    def command(self) -> list[str]:
        """What to put before a program that is to see the cluster; it runs where its caller stands."""
        return [str(self.programs / "inside")]

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with Slurm's commands."""
        return {**os.environ, "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run one of Slurm's commands; what it prints."""
        command = [str(self.programs / arguments[0]), *arguments[1:]]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert ended.returncode == 0, f"{arguments}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def state(self, job: str) -> str:
        """A job's state, as Slurm names it."""
        words = self.run("scontrol", "show", "job", job, "--oneliner").split()
        return next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))

    def await_state(self, job: str, *states: str, timeout: float = 60.0) -> str:
        """Wait until a job is in one of these states; which it is."""
        deadline = time.monotonic() + timeout
        while (state := self.state(job)) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state}, not {states}\n{self.logs()}"
            time.sleep(0.2)
        return state

    def preempt(self) -> None:
        """Run an urgent job on all nodes, which ends what runs in the partition ``low``, to its end."""
        options = ("--partition=high", f"--nodes={len(NODES)}", "--exclusive", "--output=/dev/null", "--wrap=true")
        self.await_state(self.run("sbatch", "--parsable", *options).strip(), "COMPLETED")

    def await_end(self, job: str) -> None:
        """Wait until nothing of a job runs any more."""
        self._await(lambda: not self.run("squeue", "--noheader", "--job", job).strip())

    def clear(self) -> None:
        """End what a test has left running: the next one needs the nodes."""
        if self.run("squeue", "--noheader").strip():
            self.run("scancel", "--signal=KILL", "--full", "--user=root")
            self.run("scancel", "--user=root")
            self._await(lambda: not self.run("squeue", "--noheader").strip())

    def logs(self) -> str:
        """The end of each daemon's log."""
        return "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in sorted(self._directory.glob("*.log")))

    def __enter__(self) -> SlurmCluster:
        self._write_files()
        try:
            # The namespace lives as long as its first process, which ends when this one does.
            keeper = self._start("unshare", "--mount", "--propagation", "private", "sh", "-c", self._KEEP)
            self._await(lambda: (self._directory / "ready").exists())
            self._write_programs(keeper.pid)
            munge = ("--force", "--foreground", f"--key-file={self._directory}/munge.key")
            own = [f"--{name}={self._directory}/munge.{end}" for name, end in _MUNGE.items()]
            self._start(*self.command, "munged", *munge, *own)
            self._await(lambda: (self._directory / "munge.socket").exists())
            self._start(*self.command, "slurmctld", "-D")
            for node in NODES:
                self._start(*self.command, "slurmd", "-D", "-N", node)
            self._await(self._all_idle)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.clear()
        self._end()

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._directory / "output.log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self._directory)
        self._processes.append(process)
        return process

    def _await(self, condition: object) -> None:
        assert callable(condition)
        deadline = time.monotonic() + _WAIT_SECONDS
        while not condition():
            ended = next((each.args for each in self._processes if each.poll() is not None), None)
            assert ended is None, f"{ended} has ended\n{self.logs()}"
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def _all_idle(self) -> bool:
        command = [str(self.programs / "sinfo"), "--noheader", "--Node", "--partition=low", "--format=%t"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ended.stdout.split() == ["idle"] * len(NODES)

    @property
    def _KEEP(self) -> str:  # noqa: N802  # it is a constant but for the directory
        return f"mount --bind {self._directory}/hosts /etc/hosts && touch {self._directory}/ready && exec cat"

    def _write_files(self) -> None:
        self._directory.chmod(0o755)
        for name in ("state", "bin", *(f"spool-{node}" for node in NODES)):
            (self._directory / name).mkdir()
        (self._directory / "munge.key").write_bytes(os.urandom(128))
        (self._directory / "munge.key").chmod(0o600)
        host = socket.gethostname()
        names = "".join(f"127.0.0.1 {name}\n" for name in ("localhost", host, *NODES))
        (self._directory / "hosts").write_text(names)
        controller, *daemons = free_ports(1 + len(NODES))
        first = free_ports(_SRUN_PORTS)[0]
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=2048 State=UNKNOWN"
            for node, port in zip(NODES, daemons, strict=True)
        )
        (self._directory / "slurm.conf").write_text(
            _CONFIGURATION.format(
                host=host,
                controller=controller,
                first=first,
                last=first + _SRUN_PORTS - 1,
                directory=self._directory,
                nodes=nodes,
                names=",".join(NODES),
            )
        )

    def _write_programs(self, keeper: int) -> None:
        inside = f"exec nsenter --target {keeper} --mount -- env SLURM_CONF={self._directory}/slurm.conf"
        self._write_program("inside", f'{inside} sh -c \'cd "$0" && exec "$@"\' "$PWD" "$@"')
        for name in PROGRAMS:
            self._write_program(name, f'exec {self.programs}/inside {shutil.which(name)} "$@"')

    def _write_program(self, name: str, line: str) -> None:
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)


_MUNGE = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
