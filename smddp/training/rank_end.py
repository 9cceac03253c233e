"""The end of a rank: its exit code, what it logs and records, and how it is ended if it does not end by itself.

Several ranks mostly fail together, by the same error or because they lost the rank that failed. So one rank's report is
logged whole, and one line for each other rank; all tracebacks are kept in files.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import process as processes
from concurrent.futures import thread as threads
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from smddp.cluster import Cluster
from smddp.display_text import shown_path
from smddp.distributed import Membership, is_communication_error
from smddp.errors import CheckpointError, SmddpError
from smddp.failure import describe_error, report_file, stack_frames
from smddp.job import Job
from smddp.process.exit_codes import RESUMABLE, write_exit_code
from smddp.process.preemption import stop_signal
from smddp.training.active_runs import active_runs
from smddp.watch import is_hang

logger = logging.getLogger(__name__)

INTERRUPTED = 130
_EXIT_SECONDS = 15.0
_VERDICT_SECONDS = 2.0
"""Seconds that a rank without the watchdog's verdict waits for a rank with the verdict to report."""
_THREADS_SECONDS = 1.0
"""Seconds that the script's threads get to end before they are told."""


class FailureLog:
    """The failure of one rank. The whole traceback is written to a file of the output data at once."""

    def __init__(self, error: BaseException, output_data_dir: Path, rank: int) -> None:
        self._error = error
        self._path = output_data_dir / f"traceback-rank-{rank}.txt"
        self._is_kept = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="replace")
            self._is_kept = True
        except OSError as problem:
            if not self._is_message_enough:
                logger.error("the traceback can't be written to %s: %s", self._path, problem)

    @property
    def _is_message_enough(self) -> bool:
        """Whether the report needs no traceback: smddp itself raised the error, and no other error caused it."""
        frames = traceback.extract_tb(self._error.__traceback__)
        is_own = not frames or frames[-1].filename.startswith(stack_frames.PACKAGE_PATH)
        return isinstance(self._error, SmddpError) and self._error.__cause__ is None and is_own

    def tell(self, report: str) -> None:
        """Log a report of this rank's failure, and the place of the whole traceback."""
        if self._is_kept:
            logger.critical("failed: %s\nThe whole traceback is in %s", report, shown_path(self._path))
        else:
            logger.critical("failed: %s", report, exc_info=None if self._is_message_enough else self._error)

    def mention(self) -> None:
        """Log in one line that this rank failed, too, or lost contact with the rank that failed."""
        if is_communication_error(self._error) and not isinstance(self._error, SmddpError):  # whose words tell more
            logger.error("ended, too: this rank lost contact with another rank")
            return
        what = traceback.format_exception_only(self._error)[-1].partition("\n")[0]
        logger.error("failed, too: %s", what)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a script that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    return 1  # sys.exit("a message")


def record_good_end(code: int) -> None:
    """Record for the container's first process that this rank ends well, with 0 or 75."""
    try:
        write_exit_code(code, os.environ)
    except OSError as error:
        logger.warning("how this rank ended could not be told to the container's first process: %s", error)


def record_failure(output_dir: Path | None, report: str, *, keep_longer: bool = False) -> None:
    """Write the report; with ``keep_longer``, keep a current report that begins with it."""
    if output_dir is None:
        return
    try:
        if not (keep_longer and report_file.renew(output_dir, report)):
            report_file.record(output_dir, report)
    except OSError as error:
        _tell_unwritten(output_dir, str(error))


@cache
def _tell_unwritten(output_dir: Path, problem: str) -> None:
    """Log that the failure could not be written, once: the first report and the settled one have the same problem."""
    logger.error("the failure could not be written to %s: %s", output_dir, problem)


def end_soon(membership: Membership) -> None:
    """End the process in 15 seconds, even if its threads or the process group's destructor wait for lost ranks."""
    if membership.store is not None:
        faulthandler.dump_traceback_later(_EXIT_SECONDS, exit=True, file=sys.__stderr__ or 2)


def tell_threads() -> None:
    """Warn of threads that are not daemons and still run: Python waits for them before the process ends."""
    deadline = time.monotonic() + _THREADS_SECONDS
    # Python tells the threads of executors to end before it waits for them.
    told_to_end = (*threads._threads_queues, *processes._threads_wakeups)  # noqa: SLF001
    for thread in threading.enumerate():
        if thread.daemon or thread in (threading.main_thread(), *told_to_end):
            continue
        thread.join(max(deadline - time.monotonic(), 0.0))
        where = stack_frames.thread_traceback(thread)
        if thread.is_alive() and where is not None:
            here = stack_frames.frame_lines(traceback.extract_tb(where))[-1]
            logger.warning(
                "the script has ended, and this rank ends only after its thread %s, which is here: %s. End it, or "
                "start it with daemon=True",
                thread.name,
                here,
            )


@contextmanager
def _sure_end() -> Iterator[None]:
    """End the process with code 1 after this block, also if it fails: nothing else would end this rank."""
    try:
        yield
    except Exception:
        logger.exception("this rank ends, and its end could not be reported in full")
    finally:
        os._exit(1)


def end_late(
    job: Job,
    cluster: Cluster,
    earlier: tuple[int, int] | None,  # the mark of a report from before this rank began
    *,
    steps: Callable[[], int],
    verdict: Callable[[], str],  # the watchdog's, empty without one
) -> None:
    """End a rank that was told to stop and did not reach a step's end in time; called in a thread."""
    with _sure_end():
        code = RESUMABLE if active_runs.all_work_is_durable() or not steps() else 1
        where = stack_frames.thread_traceback()
        seconds = stop_signal.age
        if code == RESUMABLE:
            logger.warning(
                "told to stop %.0f s ago, and still busy; all steps are in a checkpoint: ended here", seconds
            )
            record_good_end(code)
        else:
            found = verdict()
            late = CheckpointError(
                f"told to stop {seconds:.0f} s ago, and this rank has come to no step's end since: "
                f"{found and f'{found}. So '}what it did after its last checkpoint is lost. It was here"
            ).with_traceback(where)
            logger.critical("the stop was not heeded in time", exc_info=late)
            if cluster.world_size > 1 and not found:
                time.sleep(_VERDICT_SECONDS)
            if report_file.find(job.output_dir) == earlier:  # else a better reason is there, such as a failed save
                record_failure(job.output_dir, describe_error(late, cluster))
        active_runs.end_ledgers("stopped" if code == RESUMABLE else "failed")
        logging.shutdown()
        os._exit(code)


def give_up(job: Job, rank: int, report: str, *, is_logged: bool) -> None:
    """End a rank that hangs after the job has failed; called in a thread, while the main thread hangs.

    With ``is_logged``, this host's log has the report already.
    """
    with _sure_end():
        waiting = SmddpError("the job has failed, and this rank did not end by itself").with_traceback(
            stack_frames.thread_traceback()
        )
        here = stack_frames.frame_lines(traceback.extract_tb(waiting.__traceback__))
        reason = "the job's first failure, above, ends this rank." if is_logged else report
        FailureLog(waiting, job.output_data_dir, rank).tell("\n".join([reason, "This rank was here:", *here]))
        record_failure(job.output_dir, report)
        active_runs.end_ledgers("hang" if is_hang(report) else "failed")
