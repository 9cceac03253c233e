"""``smddp run``: a script on this machine, as one process or as many nodes of many ranks, through torchrun's agent.

Without a node rank, all the nodes are agents on this machine, joined over 127.0.0.1; with one, or as a task of srun or
OpenPAI, this is just that node of a real cluster, and the command is given once on each machine. No SageMaker, no
/opt/ml: see ``smddp.container``.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from smddp.cluster import OF_RUN_DIRECTORY
from smddp.cluster.gpus import count_gpus, count_visible
from smddp.cluster.timeout import TIMEOUT_VARIABLE, check_timeout
from smddp.errors import DistributedError
from smddp.job import CHECKPOINT_URI_VARIABLE, direct_checkpoint_uri, failure_report, with_run_variables
from smddp.launch.nodes import find_nodes
from smddp.process.children import ChildProcesses, exit_code
from smddp.process.exit_codes import RESUMABLE
from smddp.process.program import forward_signals

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0


def run_local(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    nodes: int | None = None,
    processes_per_node: int = 1,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    max_restarts: int = 0,
    timeout: float | None = None,
    run_dir: str | Path | None = None,
    checkpoint_s3_uri: str | None = None,
) -> int:
    """Run a script on ``nodes`` times ``processes_per_node`` ranks and wait for it.

    SIGTERM, or Ctrl-C once, stops every rank with a checkpoint; when one node fails, the others are ended. Call it
    from the main thread.

    Args:
        script: The Python file.
        arguments: Its command line.
        nodes: All the nodes of the run. Default: those on which srun or OpenPAI has started this, or one.
        processes_per_node: Ranks on each of them.
        node_rank: This machine's place among the nodes; None runs all nodes here.
        master_addr: The first node's address, with ``node_rank`` only.
        master_port: The first node's port; None takes a free one where all nodes run here.
        max_restarts: How often the ranks of all nodes start again, from the newest checkpoint, after one failed.
        timeout: Seconds that a rank waits for the others in a collective. Default: ``SMDDP_TIMEOUT``, else 1800.
        run_dir: Where the run keeps its model, output and checkpoints; the same directory goes on where it
            stopped. Default: ``SMDDP_RUN_DIR``, else ``runs/<script's name>``.
        checkpoint_s3_uri: Where in S3 the checkpoints go instead. Default: ``SMDDP_CHECKPOINT_S3_URI``.

    Returns:
        The exit code: 0, 75 if the run was stopped and can go on, else that of the first failing rank.

    Raises:
        DistributedError: The arguments contradict each other, or there is no such script.
        JobError: The checkpoints' place is no URI of S3.
    """
    script = Path(script)
    if not script.is_file():
        raise DistributedError(f"There is no script {script} (looked in {Path.cwd()}).")
    if processes_per_node < 1:
        raise DistributedError(f"{processes_per_node} processes per node: give one or more.")
    found = find_nodes(os.environ, count=nodes, rank=node_rank, master_addr=master_addr, master_port=master_port)
    if max_restarts < 0:
        raise DistributedError(f"{max_restarts} restarts: give 0 or more.")
    if timeout is not None:
        check_timeout(timeout, f"A timeout of {timeout:g}")
    environ = _environ(script, run_dir, checkpoint_s3_uri, ranks_here=len(found.here) * processes_per_node)
    if timeout is not None:
        environ[TIMEOUT_VARIABLE] = f"{timeout:g}"
    of_node = _with_run_variables(environ, found.here, found.count)
    earlier = failure_report.find(Path(environ["SMDDP_RUN_DIR"]) / "output")
    agents = ChildProcesses()

    asked = set[int]()

    def stop(signum: int) -> None:
        if signum == signal.SIGINT and signum not in asked:
            # Ctrl-C is a stop like any other: work is saved. Whoever can't wait presses it again.
            asked.add(signum)
            logger.warning("Stopping at the next step, with a checkpoint; Ctrl-C again ends the ranks at once.")
            agents.forward(signal.SIGTERM)
            return
        logger.info("%s: telling every rank.", signal.Signals(signum).name)
        agents.forward(signum)

    restore_handlers = forward_signals(stop, agents.pass_on)
    try:
        for rank in found.here:
            command = [sys.executable, "-m", "smddp.launch.torchrun", "--stop-with-parent"]
            command += ["--nnodes", str(found.count), "--nproc-per-node", str(processes_per_node)]
            command += ["--node-rank", str(rank), "--master-addr", found.master_addr]
            command += ["--master-port", str(found.master_port)]
            command += ["--max-restarts", str(max_restarts)]
            agents.start([*command, str(script), *arguments], environ=of_node[rank], new_session=True)
        while not agents.poll(POLL_SECONDS):
            pass
    finally:
        agents.kill()
        restore_handlers()
    code = exit_code(agents.exits)
    if code not in (0, RESUMABLE):
        _show_first_failure(Path(environ["SMDDP_RUN_DIR"]) / "output", earlier)
    return code


def _with_run_variables(environ: Mapping[str, str], here: Iterable[int], count: int) -> dict[int, dict[str, str]]:
    """Return each node's variables, with the SM_* of the run's directory; those directories are made."""
    directory, hosts = Path(environ["SMDDP_RUN_DIR"]), [f"algo-{node + 1}" for node in range(count)]
    gpus = count_visible(count_gpus(), environ)
    of_node = {node: with_run_variables(environ, directory, hosts=hosts, host=hosts[node], gpus=gpus) for node in here}
    added = next((each.get(OF_RUN_DIRECTORY, "") for each in of_node.values()), "")
    for name in {"SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR"} & set(added.split(",")):
        Path(next(iter(of_node.values()))[name]).mkdir(parents=True, exist_ok=True)
    if added:
        logger.info("Set for scripts written for SageMaker, to the run's directory: %s.", added.replace(",", ", "))
    return of_node


def _show_first_failure(output_dir: Path, earlier: tuple[int, int] | None) -> None:
    """Say last what failed first: the ranks' own lines end with whoever lost contact."""
    if failure_report.find(output_dir) not in (None, earlier):
        logger.error("What failed first:\n%s", failure_report.read(output_dir / "failure"))


def _environ(
    script: Path, run_dir: str | Path | None, checkpoint_s3_uri: str | None, *, ranks_here: int
) -> dict[str, str]:
    environ = dict(os.environ)
    if checkpoint_s3_uri is not None:
        environ[CHECKPOINT_URI_VARIABLE] = checkpoint_s3_uri
    uri = direct_checkpoint_uri(environ)
    directory = Path(run_dir or environ.get("SMDDP_RUN_DIR") or Path("runs") / script.stem).absolute()
    environ["SMDDP_RUN_DIR"] = str(directory)
    environ.setdefault("PYTHONUNBUFFERED", "1")
    # One agent sees only its own ranks: the cores are shared by those of all nodes here.
    environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks_here)))
    logger.info("The run's directory is %s%s.", directory, f", its checkpoints are in {uri}" if uri else "")
    return environ
