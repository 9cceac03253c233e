"""``smddp run``: runs a script on this machine, as one process or as several nodes of several ranks.

Without a node rank, all nodes are agents on this machine, joined over 127.0.0.1. With a node rank, or as a task of srun
or OpenPAI, this is one node of a real cluster, and the command runs once on each machine. For SageMaker and /opt/ml see
``smddp.container``.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from smddp.cluster import OF_RUN_DIRECTORY, Cluster, openpai, slurm
from smddp.cluster.gpus import count_gpus, count_visible, host_gpus
from smddp.cluster.strict_variables import TIMEOUT_VARIABLE, Environment, check_timeout
from smddp.display_text import counted, shown_path
from smddp.errors import DistributedError
from smddp.job import CHECKPOINT_URI_VARIABLE, direct_checkpoint_uri, with_run_variables
from smddp.job.job import checked_checkpoint_uri, default_run_directory, make_directories, run_directory
from smddp.job.main_arguments import asks_for_help
from smddp.job.run_script import claim_run_directory, lock_run_directory
from smddp.launch.ports import check_port, hold_port
from smddp.launch.script_check import check_script
from smddp.process.children import ChildProcesses, exit_code
from smddp.process.exit_codes import as_shell
from smddp.process.leftovers import Leftovers
from smddp.process.program import forward_signals
from smddp.process.rank_start import RankStart, launch_variables, threads_of_rank
from smddp.script_syntax import EntryPoint, find_entry_point, handles_signals
from smddp.script_syntax.warm_start import start_launcher_parent

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0

_OF_OTHER_LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables from which scripts join a process group, and which the agent sets anew for each rank."""

_AGENT = (sys.executable, "-m", "smddp.launch.torchrun", "--stop-with-parent")


def run_local(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    module: bool = False,
    nodes: int | None = None,
    processes_per_node: int | None = None,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    max_restarts: int = 0,
    timeout: float | None = None,
    run_dir: str | Path | None = None,
    checkpoint_s3_uri: str | None = None,
) -> int:
    """Run a script on ``nodes`` times ``processes_per_node`` ranks, wait for it, and return the exit code.

    SIGTERM, or Ctrl-C once, stops every rank with a checkpoint; if one node fails, the others are ended. ``--help`` and
    ``-h`` alone run the script once, without ranks. Call it from the main thread. With ``module``, ``script`` is the
    name of a module, which each rank runs as ``python -m`` does.

    Without ``processes_per_node``, a node has a rank for each GPU, or one. Without ``nodes``, each task of srun or
    OpenPAI is a node; outside of them there is one node. Without ``node_rank``, all nodes run here. ``run_dir`` keeps
    the model, output and checkpoints (default: ``SMDDP_RUN_DIR``, or ``runs/<script's name>``), and running again there
    resumes. ``timeout`` is in seconds.

    The exit code is 0, 75 if the run was stopped and can resume, or the code of the first failing rank. Raise
    DistributedError if the arguments contradict each other, or the script is missing or can't run here,
    HyperparameterError if the script refuses its arguments, JobError if ``checkpoint_s3_uri`` is not an S3 URI,
    or ``run_dir`` can't be written.
    """
    entry_point = find_entry_point(script, module=module)
    if entry_point.missing:
        raise DistributedError(entry_point.missing)
    check_script(entry_point.modules, arguments, os.environ)
    if asks_for_help(arguments):
        return _show_help(entry_point, arguments, run_dir)
    if processes_per_node is not None and processes_per_node < 1:
        raise DistributedError(f"{processes_per_node} processes per node: give one or more.")
    found = find_nodes(os.environ, count=nodes, rank=node_rank, master_addr=master_addr, master_port=master_port)
    if max_restarts < 0:
        raise DistributedError(f"{max_restarts} restarts: give 0 or more.")
    if timeout is not None:
        check_timeout(timeout, f"A timeout of {timeout:g}")
    gpus = count_gpus(os.environ)
    shares = dict(zip(found.here, host_gpus(len(found.here), gpus, os.environ), strict=True))
    if processes_per_node is None:
        processes_per_node = max(count_visible(gpus, {**os.environ, **shares[found.here[0]]}), 1)
    environ = _environ(entry_point, run_dir, checkpoint_s3_uri, ranks_here=len(found.here) * processes_per_node)
    if timeout is not None:
        environ[TIMEOUT_VARIABLE] = f"{timeout:g}"
    of_node = _with_run_variables(environ, shares, found.count, gpus=gpus)
    command = ["--nproc-per-node", str(processes_per_node), "--max-restarts", str(max_restarts)]
    # Other nodes may share the directory with the first one.
    with lock_run_directory(Path(environ["SMDDP_RUN_DIR"])) if 0 in found.here else nullcontext():
        return _run_nodes(found, of_node, [*_AGENT, *command], entry_point, arguments)


def _run_nodes(
    found: _Nodes,
    of_node: Mapping[int, Mapping[str, str]],
    agent: Sequence[str],
    entry_point: EntryPoint,
    arguments: Sequence[str],
) -> int:
    """Run the nodes that are here, each by an agent with its environment in ``of_node``; return the exit code."""
    words = [*entry_point.words, *arguments]
    leftovers = Leftovers()
    agents = ChildProcesses()

    asked = set[int]()

    def stop(signum: int) -> None:
        if signum == signal.SIGINT and signum not in asked:
            # The first Ctrl-C is a stop, which saves work; a second one is passed on as SIGINT.
            asked.add(signum)
            saves = ", with a checkpoint if training has begun" if handles_signals(entry_point.modules) else ""
            logger.warning("stopping%s; Ctrl-C again ends it", saves)
            agents.forward(signal.SIGTERM)
            return
        logger.info("%s: telling every rank.", signal.Signals(signum).name)
        agents.forward(signum)

    restore_handlers = forward_signals(stop, agents.pass_on)
    try:
        with RankStart(entry_point.path, nodes=found.count, is_first=0 in found.here) as start, hold_port() as held:
            port = found.master_port or held.getsockname()[1]
            meeting = ["--nnodes", str(found.count), "--master-addr", found.master_addr, "--master-port", str(port)]
            commands = {
                rank: [*agent, *meeting, f"--job-id={found.job_id}", "--node-rank", str(rank), *words]
                for rank in found.here
            }
            longest, of_all = commands[found.here[-1]], _of_all(of_node.values())
            agents.warm = start_launcher_parent(longest, entry_point.modules, of_all, directory=Path.cwd())
            agents.await_warm()
            for rank, command in commands.items():
                agents.start(command, environ=of_node[rank], new_session=True)
            agents.close_warm()  # each agent has a copy
            while not agents.poll(POLL_SECONDS):
                start.look()
    finally:
        agents.close_warm()
        agents.kill()
        leftovers.end(logger.warning)  # the ranks of a killed agent
        restore_handlers()
    return exit_code(agents.exits)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Nodes:
    """All nodes of a run, and those on this machine."""

    count: int
    rank: int | None
    """This machine's number among the nodes; None if all of them are here."""
    master_addr: str
    """The first node's address."""
    master_port: int
    """A port there; 0 if all nodes are here, and may use any."""
    job_id: str
    """What the launcher of the nodes calls the job; "" without one."""

    @property
    def here(self) -> range:
        """The numbers of the nodes on this machine."""
        return range(self.count) if self.rank is None else range(self.rank, self.rank + 1)


def find_nodes(
    environ: Mapping[str, str],
    *,
    count: int | None = None,
    rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> _Nodes:
    """Return the nodes of a run; raise DistributedError if arguments and launcher contradict each other.

    A task of srun or OpenPAI is one node, unless ``rank`` is set. Otherwise all nodes are here, on a free port of the
    loopback address. Raise ClusterError if the launcher's variables are contradictory or incomplete.

    Examples:
        >>> find_nodes({}, count=2, master_port=29500).here
        range(0, 2)
    """
    job_id = ""
    placed = _placed(environ) if rank is None else None
    if placed is not None:
        if count not in (None, placed.node_count):
            raise DistributedError(
                f"--nodes {count}, but {placed.sources['launcher']} started this on {placed.node_count} nodes: leave "
                "--nodes out, or give each task its --node-rank."
            )
        count, rank = placed.node_count, placed.node_rank
        master_addr, master_port = master_addr or placed.master_addr, master_port or placed.master_port
        job_id = placed.job_id
    elif count is None and rank is None and (unused := slurm.unused_nodes(environ)) is not None:
        logger.warning("NODES ARE LEFT UNUSED: %s", unused)
    if placed is None and rank is None and (unread := [name for name in _OF_OTHER_LAUNCHERS if name in environ]):
        logger.info(
            "%s: set, and ignored, as torchrun does. All ranks run on this machine. To run one node of several, give "
            "--nodes, --node-rank, --master-addr and --master-port",
            ", ".join(unread),
        )
    count = 1 if count is None else count
    if count < 1:
        raise DistributedError(f"{count} nodes: give one or more.")
    check_port(master_port or 0)
    if rank is None and master_addr is not None:
        raise DistributedError("A master address is for the nodes of a real cluster: give the node rank as well.")
    if rank is not None:
        if not 0 <= rank < count:
            raise DistributedError(f"--node-rank {rank}: expected one of 0 to {count - 1}, the number of this machine.")
        if count > 1 and (master_addr is None or master_port is None):
            raise DistributedError(
                "One node of several needs the first node's address and port, the same on every node: give "
                "--master-addr and --master-port."
            )
    address, port = master_addr or "127.0.0.1", master_port or 0
    return _Nodes(count=count, rank=rank, master_addr=address, master_port=port, job_id=job_id)


def _placed(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster of a launcher that started one task on each of several nodes; None otherwise."""
    environment = Environment(environ)
    if not (slurm.started(environment) or openpai.started(environment)):
        return None
    cluster = Cluster.detect(environ)
    if cluster.launcher not in ("slurm", "openpai") or cluster.world_size == 1:
        return None
    if cluster.world_size != cluster.node_count:
        raise DistributedError(
            f"{cluster.sources['launcher']} started {cluster.world_size} tasks on {cluster.node_count} node(s), and "
            "smddp run starts all the ranks of a node itself: start one task on each (srun --ntasks-per-node=1), or "
            "let srun start the ranks (srun python …)."
        )
    return cluster


def _with_run_variables(
    environ: Mapping[str, str], shares: Mapping[int, Mapping[str, str]], count: int, *, gpus: int
) -> dict[int, dict[str, str]]:
    """Return each local node's variables, with the SM_* of the run's directory, and make those directories.

    ``shares`` has the variables of each local node's share of this machine's GPUs.
    """
    directory, hosts = Path(environ["SMDDP_RUN_DIR"]), [f"algo-{node + 1}" for node in range(count)]
    of_node = {}
    for node, share in shares.items():
        own = {**environ, **share}
        visible = count_visible(gpus, own)
        of_node[node] = with_run_variables(own, directory, hosts=hosts, host=hosts[node], gpus=visible)
    added = next((each.get(OF_RUN_DIRECTORY, "") for each in of_node.values()), "")
    own_names = {"SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR"} & set(added.split(","))
    make_directories(Path(next(iter(of_node.values()))[name]) for name in sorted(own_names))
    if added:
        logger.debug("Set for scripts written for SageMaker, to the run's directory: %s.", added.replace(",", ", "))
    return of_node


def _of_all(environs: Collection[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that have one value in all of these."""
    first = next(iter(environs))
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in environs)}


def _show_help(entry_point: EntryPoint, arguments: Sequence[str], run_dir: str | Path | None) -> int:
    """Run the script as one process with a rank's variables, and return its exit code; make no directory."""
    directory = _run_directory(entry_point, run_dir, os.environ)
    environ = with_run_variables(
        {**os.environ, "SMDDP_RUN_DIR": str(directory)}, directory, hosts=["algo-1"], host="algo-1", gpus=0
    )
    command = [sys.executable, *entry_point.words, *arguments]
    return as_shell(subprocess.run(command, env=environ, check=False).returncode)


def _run_directory(entry_point: EntryPoint, run_dir: str | Path | None, environ: Mapping[str, str]) -> Path:
    given = run_dir or environ.get("SMDDP_RUN_DIR")
    return run_directory(given) if given else default_run_directory(entry_point.path)


def _environ(
    entry_point: EntryPoint, run_dir: str | Path | None, checkpoint_s3_uri: str | None, *, ranks_here: int
) -> dict[str, str]:
    environ = dict(os.environ)
    if checkpoint_s3_uri is not None:
        environ[CHECKPOINT_URI_VARIABLE] = checked_checkpoint_uri(checkpoint_s3_uri, "--checkpoint-s3-uri")
    uri = direct_checkpoint_uri(environ)
    directory = _run_directory(entry_point, run_dir, environ)
    if not (run_dir or environ.get("SMDDP_RUN_DIR")):
        claim_run_directory(directory, entry_point.path)
    environ["SMDDP_RUN_DIR"] = str(directory)
    environ |= launch_variables()
    environ.setdefault("PYTHONUNBUFFERED", "1")
    # One agent knows only its own ranks, but the ranks of all nodes here share the cores.
    environ.setdefault("OMP_NUM_THREADS", threads_of_rank(ranks_here))
    logger.info(
        "starting %s of %s; the run's directory is %s%s",
        counted(ranks_here, "rank"),
        entry_point.name,
        shown_path(directory),
        f", its checkpoints are in {uri}" if uri else "",
    )
    return environ
