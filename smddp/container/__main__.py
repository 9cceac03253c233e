"""``python -m smddp.container``: an image's ``train`` program, from the platform's files to the exit code.

It ends with the job's outcome for the platform: ``output/failure`` with the reason, or ``output/success``. A failure
that a rank wrote itself is the root cause and stays. ``smddp.failure.report`` composes all reasons.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from smddp.cluster.gpus import count_gpus, count_visible
from smddp.container.command import choose_command
from smddp.container.contract import read_contract, with_bundled_hyperparameters
from smddp.container.environment import passable, process_environment
from smddp.container.job_process import Result, StoppedBeforeStart, raise_on_stop, run
from smddp.container.requirements import install_requirements
from smddp.container.source import check_entry_point, fetch_source
from smddp.container.virtual_environment import activated
from smddp.display_text import shown_names
from smddp.errors import ClusterError, JobError, SmddpError
from smddp.failure import HostMemory, describe_exit, report_file, within_limit
from smddp.job.job import platform_directory
from smddp.process.exit_codes import RESUMABLE
from smddp.process.heartbeat import Heartbeat
from smddp.process.inherited import reset_inherited
from smddp.process.log_format import start_log
from smddp.process.rank_start import RankStart, launch_variables, threads_of_rank
from smddp.process.warm_parent import WarmParent
from smddp.script_syntax import Modules, find_entry_point
from smddp.script_syntax.warm_start import start_launcher_parent, start_warm_parent
from smddp.secret_text import masked

logger = logging.getLogger("smddp.container")

_WAIT_SECONDS = 300.0
RETRY_SECONDS = 0.5


def train(environ: Mapping[str, str]) -> int:
    """Run the job of ``environ`` and /opt/ml, write ``output/failure`` or ``output/success``, and return the exit code.

    Raise SmddpError if the job can't be started, StoppedBeforeStart if a stop comes first.
    """
    contract = read_contract(environ)
    _forget_outcome(contract.output_dir)
    _set_level(contract.platform.get("sagemaker_container_log_level", logging.INFO))
    region = environ.get("AWS_REGION") or contract.platform.get("sagemaker_region")
    fetch_source(contract.submit_directory, contract.code_dir, region=region, environ=environ)
    entry_point = check_entry_point(
        environ.get("SAGEMAKER_PROGRAM") or contract.platform.get("sagemaker_program"), contract.code_dir
    )
    gpus = count_gpus(environ)
    contract = passable(with_bundled_hyperparameters(contract), environ, gpus=gpus)
    command = choose_command(contract, entry_point, environ, gpus=count_visible(gpus, environ))
    python = install_requirements(contract.code_dir, contract.base / "venv", package=command.package, environ=environ)
    if len(contract.hosts) > 1 and environ.get("SM_STUDIO_LOCAL_MODE", "").lower() != "true":
        await_names(contract.hosts)
    line = command.line(python)
    logger.info("Starting %s.", entry_point)
    logger.debug("The command is %s", " ".join(masked(line)))
    memory = HostMemory()
    of_job = activated({**process_environment(contract, environ, gpus=gpus), **launch_variables()}, python)
    if (ranks := command.ranks_of_torchrun) > 1 and "OMP_NUM_THREADS" not in of_job:
        of_job["OMP_NUM_THREADS"] = threads_of_rank(ranks)
        logger.info("OMP_NUM_THREADS=%s: this machine's cores, shared by %d ranks.", of_job["OMP_NUM_THREADS"], ranks)
    meeting = len(contract.hosts) if command.many else 1  # a script alone begins at once
    is_first = contract.current_host == contract.master_host
    script = find_entry_point(contract.code_dir / entry_point)
    with RankStart(script.path, nodes=meeting, is_first=is_first) as start:
        warm = _warm_parent(line, script.modules, of_job, directory=contract.code_dir, is_torchrun=ranks > 0)
        if warm is not None:
            warm.settle()  # seconds, which a stop ends: nothing runs yet
        result = run(
            line,
            environ=of_job,
            directory=contract.code_dir,
            group=command.through_shell,
            look=(lambda _: start.look()) if command.many else start.look,
            warm=warm,
        )
    logger.info("The largest process had %d MiB of memory.", _largest_child() >> 20)
    reason = describe_exit(
        entry_point,
        contract.current_host,
        result.code,
        result.tail,
        many=command.many,
        code_dir=contract.code_dir,
        memory=memory,
    )
    _report(contract.output_dir, result, reason)
    return result.code


def _warm_parent(
    line: Sequence[str], modules: Modules, environ: Mapping[str, str], *, directory: Path, is_torchrun: bool
) -> WarmParent | None:
    """Return the parent that forks the command: the one that this program was given, or a new one for torchrun."""
    if line[0] == sys.executable and line[1] != "-m":
        return start_warm_parent(line, modules, environ, new=False)
    if line[1] == "-m" and line[2].startswith("smddp."):
        return start_launcher_parent(line, modules, environ, directory=directory, new=is_torchrun)
    if (warm := WarmParent.inherited()) is not None:
        warm.close()
    return None


def _largest_child() -> int:
    """Return the peak memory, in bytes, of the job's largest process."""
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _set_level(level: object) -> None:
    if type(level) is not int:
        raise JobError(
            f"sagemaker_container_log_level={level!r} must be a whole number, a level of Python's logging: 20 is INFO."
        )
    logging.getLogger("smddp").setLevel(level)


def _report(output_dir: Path, result: Result, reason: str) -> None:
    if result.code == 0:
        report_success(output_dir)
    elif result.stop is not None and (result.code == RESUMABLE or result.code > 128):
        logger.debug("The job was stopped and ended with exit code %d.", result.code)
    else:
        report_failure(output_dir, reason)


def _forget_outcome(output_dir: Path) -> None:
    """Remove the outcome of an earlier attempt in the same directory."""
    for name in ("failure", "success"):
        (output_dir / name).unlink(missing_ok=True)


def report_success(output_dir: Path) -> None:
    """Write an empty ``success``, and remove a failure that a restart overcame."""
    path = output_dir / "success"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "failure").unlink(missing_ok=True)
        path.touch()
    except OSError as error:  # the exit code shows the success, too
        logger.warning("The job succeeded, but %s can't be written: %s.", path, _cause(error))


def report_failure(output_dir: Path, reason: str) -> None:
    """Write ``failure``, unless a rank has written its own, more precise reason."""
    path = output_dir / "failure"
    if path.exists():
        logger.error("The job failed; its own reason is in %s.", path)
        return
    reason = within_limit(reason)
    logger.error("The job failed: %s", reason)
    try:
        report_file.record(output_dir, reason)
    except OSError as error:
        # The platform then shows the end of the log instead, so log the error itself last, without its traceback.
        logger.error("%s can't be written: %s. The job failed: %s", path, _cause(error), reason.partition("\n")[0])


def _is_full_disk(error: BaseException) -> bool:
    """Return whether an error means a full disk, or an exhausted quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _cause(error: OSError) -> str:
    """Return a file system error's meaning for the reader of a log."""
    return f"the disk is full ({error})" if _is_full_disk(error) else str(error)


def await_names(hosts: Sequence[str], *, seconds: float = _WAIT_SECONDS) -> None:
    """Wait until every host's name resolves; raise ClusterError after ``seconds``."""
    missing = list(hosts)
    resolved = threading.Event()

    def resolve() -> None:
        while missing:
            missing[:] = [host for host in missing if not _resolves(host)]
            if missing:
                time.sleep(RETRY_SECONDS)
        resolved.set()

    # One lookup can block in C for half a minute. It runs in a thread, so that a stop can interrupt the main thread.
    threading.Thread(target=resolve, daemon=True).start()
    if not resolved.wait(RETRY_SECONDS):
        logger.info("Waiting for the names of %s.", shown_names(missing))
        with Heartbeat(lambda: f"waiting for the names of {shown_names(missing)}, at most {seconds:g} s"):
            resolved.wait(seconds)
        if not resolved.is_set():
            raise ClusterError(
                f"The names of {', '.join(missing)} did not resolve within {seconds:.0f} s: these hosts did not start, "
                "or no name service or /etc/hosts knows them. SM_STUDIO_LOCAL_MODE=true skips this check."
            )


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def main() -> int:
    """Run the program; return its exit code."""
    reset_inherited()
    start_log()
    raise_on_stop()
    try:
        return train(os.environ)
    except StoppedBeforeStart as stop:
        logger.info("%s", stop)
        return stop.code
    except SmddpError as error:
        _report_own(str(error))
    except Exception as error:
        if _is_full_disk(error):
            _report_own(f"The disk is full: {error}")
        else:
            logger.exception("This is a defect of smddp.container, not of the job:")
            _report_own(f"smddp.container failed: {type(error).__name__}: {error}")
    return 1


def _report_own(reason: str) -> None:
    base = platform_directory(os.environ)
    if base.is_dir():
        report_failure(base / "output", reason)
    else:
        logger.error("%s", reason)


if __name__ == "__main__":
    sys.exit(main())
