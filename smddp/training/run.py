"""``smddp.run(main)``: the frame around every training script, so that the script contains only the training.

It reads hyperparameters into a dataclass, joins the rank to its job, turns SIGTERM into a stop with a checkpoint, and a
failure into the report that SageMaker shows. The process always ends, with an exit code that tells how.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import process as processes
from concurrent.futures import thread as threads
from contextlib import ExitStack, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from smddp.cluster import Cluster
from smddp.data.worker_signals import end_daemons_at_exit
from smddp.distributed import (
    FirstFailure,
    Membership,
    StopQuestion,
    detect_cluster,
    is_communication_error,
    join,
    leave,
)
from smddp.errors import CheckpointError, SmddpError, UnguardedScriptError
from smddp.job import Job, failure_report
from smddp.job.host_memory import HostMemory
from smddp.job.job import answer_stop_question
from smddp.job.main_arguments import ConfigReader, asks_for_help, main_arguments, read_dataclass, refuse_in_notebook
from smddp.process.exit_codes import RESUMABLE, write_exit_code
from smddp.process.heartbeat import Heartbeat
from smddp.process.log_format import start_log
from smddp.process.preemption import STOP_SIGNALS, Stopped, stop_signal
from smddp.process.script_multiprocessing import refuse_in_import
from smddp.training.active_runs import active_runs
from smddp.training.failure_log import FailureLog
from smddp.training.stop_deadline import LEAST_SECONDS, STOP_SECONDS, StopDeadline
from smddp.watch import Watch, Watchdog, is_hang, nccl_recorder

logger = logging.getLogger(__name__)

_INTERRUPTED = 130
_EXIT_SECONDS = 15.0
_VERDICT_SECONDS = 2.0
"""Seconds by which a rank without a verdict lets one with it explain a stop that takes no effect."""
_THREADS_SECONDS = 1.0
"""Seconds that the script's threads get to end before they are told."""
_PREPARING_SECONDS = 300.0  # of a script that never steps an optimizer, no more is told

_steps_taken = 0
"""Steps that the optimizers of this process took since ``run`` began."""
_watchdog: Watchdog | None = None
"""The watchdog of ``run``, whose verdict explains a stop that takes no effect."""


def run(main: Callable[..., None], *, preflight_collectives: bool = False, watch: bool | Watch = True) -> NoReturn:
    """Run the training function as a rank of its job, and end the process.

    Args:
        main: ``main(config, job)``, ``main(job)``, ``main(config)`` or ``main()``. ``job`` is the parameter of that
            name or of type `smddp.Job`. The other one is annotated with a dataclass, which is filled with the job's
            hyperparameters, or outside of a job from the command line.
        preflight_collectives: Whether to check the network between hosts and ranks first, in a second or two. A host
            that is cut off or garbles data ends the job, by name; a slow host is logged.
        watch: Whether a watchdog looks for a rank that hangs. It logs the rank, its line and the kind of fault after
            30 s, and ends the job after five minutes; a `smddp.Watch` sets the times, and whether the job ends.

    Raises:
        JobError: This is a notebook.
        SystemExit: Otherwise. The code is 0 after success, 75 after a stop with a checkpoint (run it again to
            continue), the script's own if it called ``sys.exit``, 130 after Ctrl-C, and 1 after any other failure.

    Examples:
        The end of a training script:

            def main(config: Config, job: smddp.Job) -> None: ...


            if __name__ == "__main__":
                smddp.run(main)
    """
    run_with_config(main, read_dataclass, preflight_collectives=preflight_collectives, watch=watch)


def run_with_config(
    main: Callable[..., None],
    read_config: ConfigReader,
    *,
    preflight_collectives: bool = False,
    watch: bool | Watch = True,
) -> NoReturn:
    """Run the training function as `run` does, with a config from another reader.

    An error of ``read_config`` is reported as the reason why the job could not begin.
    """
    global _steps_taken
    refuse_in_notebook()
    _steps_taken = 0
    if not faulthandler.is_enabled():
        with suppress(OSError, ValueError):  # the script has closed it
            faulthandler.enable(sys.__stderr__ or 2)  # a crash, such as SIGSEGV, then tells its line
    with stop_signal, register_optimizer_step_post_hook(_note_training):
        stop_signal.on_unheeded = _end_unheeded
        try:
            code = _run(main, read_config, preflight_collectives, watch)
        except Stopped:  # a stop before the ranks had joined
            code = RESUMABLE
            _tell(code)
        stop_signal.on_unheeded = None
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a late signal must not change the exit code
    _tell_threads()
    raise SystemExit(code)


def _run(main: Callable[..., None], read_config: ConfigReader, preflight_collectives: bool, watch: bool | Watch) -> int:
    cluster: Cluster | None = None
    job: Job | None = None
    with ExitStack() as watching:
        try:
            adopted = join() if dist.is_initialized() else None
            cluster = adopted.cluster if adopted is not None else detect_cluster()
            _set_up_logging(cluster)
            job = Job.detect(cluster=cluster)
            refuse_in_import("smddp.run")
            options = Watch.of(watch)
            end_daemons_at_exit()
            arguments, job = main_arguments(main, job, read_config)
            job.make_directories()
            earlier = failure_report.find(job.output_dir)
            late = partial(_end_late, job, cluster, earlier)
            watching.enter_context(StopDeadline(stop_signal, STOP_SECONDS + LEAST_SECONDS, late))
            if options is not None and (added := nccl_recorder.switch_on(os.environ)) and cluster.is_main:
                logger.info("set for the watchdog: %s", ", ".join(f"{name}={value}" for name, value in added.items()))
            membership = adopted or join(cluster)
        except Exception as error:
            # The message of a user's mistake is enough; a traceback through our code would bury it.
            logger.critical("the job could not begin: %s", error, exc_info=not isinstance(error, SmddpError))
            output_dir = job.output_dir if job is not None else _output_dir_of_sagemaker()
            # A worker that runs the script again may be late: the parent's report begins with this reason, and stays.
            again = isinstance(error, UnguardedScriptError)
            _record(output_dir, failure_report.describe(error, cluster), keep_longer=again)
            return 1
        if cluster.is_main:
            watching.enter_context(Heartbeat("no step yet", until=lambda: _steps_taken > 0, most=_PREPARING_SECONDS))
        question = StopQuestion(membership.ranks, stop_signal)
        answer_stop_question(question)
        watching.callback(answer_stop_question, None)
        work = partial(main, **arguments)
        work = partial(_check_and, work, membership) if preflight_collectives else work
        code = _train(work, job, membership, earlier, options)
    if code == 0 and question.answer and cluster.is_main:
        logger.warning("the script ended with 0 after it was told to stop: it counts as done; else raise smddp.Stopped")
    if code in (0, RESUMABLE):
        failure_report.forget(job.output_dir, earlier)
    return code


def _train(
    main: Callable[[], None],
    job: Job,
    membership: Membership,
    earlier: tuple[int, int] | None,
    watch: Watch | None,
) -> int:
    give_up = partial(_give_up, job, membership.cluster.rank)
    memory = HostMemory()

    def publish_verdict(report: str) -> bool:
        return first_failure.publish(report) and first_failure.claim_reason()

    def end_unheeding(report: str) -> None:
        give_up(report, is_logged=not first_failure.claim_reason())

    first_failure = FirstFailure(membership, end_unheeding, steps=_count_steps, memory=memory)
    global _watchdog
    _watchdog = None
    if watch is not None:
        _watchdog = Watchdog(
            watch,
            membership,
            steps=_count_steps,
            output_dir=job.output_dir,
            publish=publish_verdict,
            end=partial(give_up, is_logged=True),
            hangs=active_runs.begin_hang,
            moves=active_runs.end_hang,
        )
    saves = ExitStack()
    process = os.getpid()
    # Order of a good end: 1. main returns, 2. the last checkpoints become durable, 3. the exit code is recorded, 4. the
    # rank leaves the group. Order of a failure: 1. record this rank's own report, since the rest may be cut short,
    # 2. let saves under way end, for ten seconds, 3. settle which rank failed first, 4. wait until the others have read
    # it, 5. end, by force after 15 seconds. A rank that only lost contact skips 1, as the cause is another rank's, and
    # does 2 within 5: its trackers hear that the run has failed.
    try:
        with _watchdog or nullcontext(), active_runs.until_script_ends(saves):
            code = _run_well(main)
        _end_fork(process, code)
        lost = active_runs.steps_in_no_checkpoint() if code == RESUMABLE else 0
        if code == RESUMABLE and not lost:
            active_runs.note_stop()
        following = _following_run(job)
        saves.close()  # waits until the last checkpoint is durable or has failed, with a log line
        if lost:
            raise CheckpointError(
                f"the script ended with exit code {RESUMABLE}, which promises that it can resume, and {lost} steps are "
                "in no checkpoint: call trainer.save(wait=True) before"
            )
    except BaseException as error:
        _end_fork(process, _exit_code(error))
        code = _exit_code(error)
        if code != _INTERRUPTED:
            log = FailureLog(error, job.output_data_dir, membership.cluster.rank)
            report = failure_report.describe(error, membership.cluster, memory)
            lost_contact = is_communication_error(error)
            if not lost_contact:
                if first_failure.claim_log():
                    first_failure.claim_reason()
                    log.tell(report)
                else:
                    log.mention()
                report = _with_reason_of_workers(report, job.output_dir, earlier)
                _record(job.output_dir, report)  # at once: the rest may be cut short
                saves.__exit__(type(error), error, error.__traceback__)  # the other ranks save, too, and still wait
            settled = first_failure.settle(report, lost_contact=lost_contact)
            _record(job.output_dir, settled)
            if is_hang(settled):
                active_runs.end_ledgers("hang")
            if lost_contact:
                log.tell(settled) if report in settled else log.mention()
            first_failure.await_readers()
        first_failure.close()
        _end_soon(membership)
        if code != _INTERRUPTED:
            saves.__exit__(type(error), error, error.__traceback__)  # trackers hear of the failure, if contact was lost
        active_runs.end_ledgers("failed")  # after Ctrl-C, no other line has
        return code
    first_failure.close(code=code)
    _tell(code)
    leave(together=code == RESUMABLE)
    if code == RESUMABLE and membership.cluster.is_main:
        logger.info("stopped on request, exit code %d: %s", RESUMABLE, following)
    return code


def _following_run(job: Job) -> str:
    """Return where the next run will start. Without a Trainer, any file may be a checkpoint of the script's own."""
    saves = active_runs.newest_saves()
    if any(save != (0, 0) for save in saves) or (not saves and any(job.checkpoint_dir.glob("*"))):
        return "run it again and it resumes"
    return "nothing was saved; run it again and it starts from the beginning" + (
        "" if saves else f", unless the script saved outside of {job.checkpoint_dir}"
    )


def _with_reason_of_workers(report: str, output_dir: Path, earlier: tuple[int, int] | None) -> str:
    """Return the report, below the report of data loader workers that ran the script again and caused the failure.

    A worker writes its report to ``output_dir``, too; ``earlier`` is the mark of a report from before this rank began.
    """
    if failure_report.find(output_dir) in (None, earlier):
        return report
    told = failure_report.read(output_dir / "failure")
    if UnguardedScriptError.__name__ not in told.partition(":")[0]:
        return report
    logger.critical("its workers could not start: %s", told)
    return failure_report.within_limit(f"{told}\n{report}")


def _check_and(work: Callable[[], None], membership: Membership) -> None:
    from smddp.collectives.preflight import check_ranks

    check_ranks(membership)
    work()


def _end_fork(process: int, code: int) -> None:
    """End a process that the script forked and that returned here; the job belongs to its parent."""
    if os.getpid() != process:
        if code not in (0, RESUMABLE):
            logger.error("a process that the script forked failed", exc_info=True)
        os._exit(code)


def _run_well(main: Callable[[], None]) -> int:
    """Return the exit code of a good end, 0 or 75; raise any other error of main."""
    try:
        main()
    except SystemExit as ending:
        if _exit_code(ending) in (0, RESUMABLE):
            return _exit_code(ending)
        raise
    finally:
        stop_signal.on_unheeded = None  # main has ended
    return 0


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    return 1  # sys.exit("a message")


def _set_up_logging(cluster: Cluster) -> None:
    """Log to stderr, unless the script has set up logging: all lines on rank 0, and warnings on the others."""
    level = int(os.environ.get("SM_LOG_LEVEL") or (logging.WARNING if asks_for_help(sys.argv[1:]) else logging.INFO))
    sender = f"rank {cluster.rank}" if cluster.world_size > 1 else ""
    if cluster.node_count > 1:
        sender += f" on {cluster.host}"
    start_log(sender, named_from=logging.WARNING, level=level if cluster.is_main else max(level, logging.WARNING))


def _output_dir_of_sagemaker() -> Path | None:
    """Return where a job on SageMaker reports a failure to read its configuration; None elsewhere."""
    output_dir = Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")) / "output"
    return output_dir if output_dir.is_dir() else None


def _tell(code: int) -> None:
    """Record for the container's first process that this rank ends well, with 0 or 75."""
    try:
        write_exit_code(code, os.environ)
    except OSError as error:
        logger.warning("how this rank ended could not be told to the container's first process: %s", error)


def _record(output_dir: Path | None, report: str, *, keep_longer: bool = False) -> None:
    """Write the report; with ``keep_longer``, keep a current report that begins with it."""
    if output_dir is None:
        return
    try:
        if not (keep_longer and failure_report.renew(output_dir, report)):
            failure_report.record(output_dir, report)
    except OSError as error:
        _tell_unwritten(output_dir, str(error))


@cache
def _tell_unwritten(output_dir: Path, problem: str) -> None:
    """Log that the failure could not be written, once: the first report and the settled one have the same problem."""
    logger.error("the failure could not be written to %s: %s", output_dir, problem)


def _end_soon(membership: Membership) -> None:
    """End the process in 15 seconds, even if its threads or the process group's destructor wait for lost ranks."""
    if membership.store is not None:
        faulthandler.dump_traceback_later(_EXIT_SECONDS, exit=True, file=sys.__stderr__ or 2)


def _tell_threads() -> None:
    """Warn of the script's threads that do not end now, and for which Python waits before the process ends."""
    deadline = time.monotonic() + _THREADS_SECONDS
    # Python tells the threads of executors to end before it waits for them.
    told_to_end = (*threads._threads_queues, *processes._threads_wakeups)  # noqa: SLF001
    for thread in threading.enumerate():
        if thread.daemon or thread in (threading.main_thread(), *told_to_end):
            continue
        thread.join(max(deadline - time.monotonic(), 0.0))
        frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001, it is documented
        if thread.is_alive() and frame is not None:
            here = failure_report.frame_lines(traceback.extract_stack(frame))[-1]
            logger.warning(
                "the script has ended, and this rank ends only after its thread %s, which is here: %s. End it, or "
                "start it with daemon=True",
                thread.name,
                here,
            )


class StoppedUnheeded(SystemExit):
    """The end of a script that had begun to train, was told to stop, and never checks for a stop."""


def _end_unheeded() -> None:
    """End the main thread at the point that SIGTERM interrupted, because the script never checks for a stop."""
    if _steps_taken:
        raise StoppedUnheeded(
            "told to stop, and nothing in this script asks for that: what was done since its last checkpoint is lost. "
            "Use smddp.Trainer, or ask job.stopping in the loop, save, and raise smddp.Stopped"
        )
    logger.info("told to stop before training began: nothing is lost")
    raise Stopped


def _count_steps() -> int:
    return _steps_taken


def _note_training(*_: object) -> None:
    global _steps_taken
    _steps_taken += 1


def _end_late(job: Job, cluster: Cluster, earlier: tuple[int, int] | None) -> None:
    """End a rank that was told to stop and did not reach a step's end in time; called in a thread."""
    code = RESUMABLE if active_runs.all_work_is_durable() or not _steps_taken else 1
    where = failure_report.main_thread_traceback()
    seconds = stop_signal.age
    if code == RESUMABLE:
        logger.warning("told to stop %.0f s ago, and still busy; all steps are in a checkpoint: ended here", seconds)
        _tell(code)
    else:
        verdict = "" if _watchdog is None else _watchdog.verdict
        late = CheckpointError(
            f"told to stop {seconds:.0f} s ago, and this rank has come to no step's end since: "
            f"{verdict and f'{verdict}. So '}what it did after its last checkpoint is lost. It was here"
        ).with_traceback(where)
        logger.critical("the stop was not heeded in time", exc_info=late)
        if cluster.world_size > 1 and not verdict:
            time.sleep(_VERDICT_SECONDS)
        if failure_report.find(job.output_dir) == earlier:  # else a better reason is there, such as a failed save
            _record(job.output_dir, failure_report.describe(late, cluster))
    active_runs.end_ledgers("stopped" if code == RESUMABLE else "failed")
    logging.shutdown()
    os._exit(code)


def _give_up(job: Job, rank: int, report: str, *, is_logged: bool) -> None:
    """End a rank that hangs after the job has failed; called in a thread, while the main thread hangs.

    With ``is_logged``, this host's log has the report already.
    """
    waiting = SmddpError("the job has failed, and this rank did not end by itself").with_traceback(
        failure_report.main_thread_traceback()
    )
    here = failure_report.frame_lines(traceback.extract_tb(waiting.__traceback__))
    reason = "the job's first failure, above, ends this rank." if is_logged else report
    FailureLog(waiting, job.output_data_dir, rank).tell("\n".join([reason, "This rank was here:", *here]))
    _record(job.output_dir, report)
    active_runs.end_ledgers("hang" if is_hang(report) else "failed")
    os._exit(1)
