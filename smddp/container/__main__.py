"""``python -m smddp.container``: an image's ``train`` program, from the platform's files to the exit code."""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

from smddp.cluster.gpus import count_gpus, count_visible
from smddp.container.command import choose_command
from smddp.container.contract import base_directory, read_contract, with_bundled_hyperparameters
from smddp.container.environment import passable, process_environment
from smddp.container.hosts import await_names
from smddp.container.job_process import Result, StoppedBeforeStart, raise_on_stop, run
from smddp.container.outcome import forget_outcome, is_full_disk, report_failure, report_success
from smddp.container.requirements import activated, install_requirements
from smddp.container.source import check_entry_point, fetch_source
from smddp.errors import JobError, SmddpError
from smddp.job.failure_report import describe_exit
from smddp.process.exit_codes import RESUMABLE

logger = logging.getLogger("smddp.container")


def train(environ: Mapping[str, str]) -> int:
    """Run the job of ``environ`` and /opt/ml, write ``output/failure`` or ``output/success``, and return the exit code.

    Raise SmddpError if the job can't be started, StoppedBeforeStart if a stop comes first.
    """
    contract = read_contract(environ)
    forget_outcome(contract.output_dir)
    _set_level(contract.platform.get("sagemaker_container_log_level", logging.INFO))
    region = environ.get("AWS_REGION") or contract.platform.get("sagemaker_region")
    fetch_source(contract.submit_directory, contract.code_dir, region=region, environ=environ)
    entry_point = check_entry_point(
        environ.get("SAGEMAKER_PROGRAM") or contract.platform.get("sagemaker_program"), contract.code_dir
    )
    gpus = count_gpus()
    contract = passable(with_bundled_hyperparameters(contract), environ, gpus=gpus)
    command = choose_command(contract, entry_point, environ, gpus=count_visible(gpus, environ))
    python = install_requirements(contract.code_dir, contract.base / "venv", package=command.package, environ=environ)
    if len(contract.hosts) > 1 and environ.get("SM_STUDIO_LOCAL_MODE", "").lower() != "true":
        await_names(contract.hosts)
    line = command.line(python)
    logger.info("Starting %s", " ".join(line))
    result = run(
        line,
        environ=activated(process_environment(contract, environ, gpus=gpus), python),
        directory=contract.code_dir,
        group=command.through_shell,
    )
    logger.info("The largest process had %d MiB of memory.", _largest_child() >> 20)
    reason = describe_exit(entry_point, contract.current_host, result.code, result.tail, many=command.many)
    _report(contract.output_dir, result, reason)
    return result.code


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
        logger.info("The job was stopped and ended with exit code %d.", result.code)
    else:
        report_failure(output_dir, reason)


def main() -> int:
    """Run the program; return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)  # it logs the source of its credentials at INFO
    raise_on_stop()
    try:
        return train(os.environ)
    except StoppedBeforeStart as stop:
        logger.info("%s", stop)
        return stop.code
    except SmddpError as error:
        _report_own(str(error))
    except Exception as error:
        if is_full_disk(error):
            _report_own(f"The disk is full: {error}")
        else:
            logger.exception("This is a defect of smddp.container, not of the job:")
            _report_own(f"smddp.container failed: {type(error).__name__}: {error}")
    return 1


def _report_own(reason: str) -> None:
    base = base_directory(os.environ)
    if base.is_dir():
        report_failure(base / "output", reason)
    else:
        logger.error("%s", reason)


if __name__ == "__main__":
    sys.exit(main())
