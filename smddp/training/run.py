"""``smddp.run(main)``: the frame around every training script, so that the script contains only the training.

It reads hyperparameters into a dataclass, joins the rank to its job, turns SIGTERM into a stop with a checkpoint, and a
failure into the report that SageMaker shows. The process always ends, with an exit code that tells how.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from smddp.cluster import Cluster, without_run_variables
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
from smddp.errors import CheckpointError, JobError, SmddpError, UnguardedScriptError
from smddp.failure import HostMemory, describe_error, report_file, within_limit
from smddp.job import Job
from smddp.job.job import answer_stop_question, is_on_sagemaker, platform_directory
from smddp.job.main_arguments import ConfigReader, asks_for_help, main_arguments, read_dataclass, refuse_in_notebook
from smddp.process.exit_codes import RESUMABLE
from smddp.process.heartbeat import Heartbeat
from smddp.process.log_format import start_log
from smddp.process.preemption import STOP_SIGNALS, Stopped, stop_signal
from smddp.process.script_multiprocessing import refuse_in_import
from smddp.training.active_runs import active_runs
from smddp.training.rank_end import (
    INTERRUPTED,
    FailureLog,
    end_late,
    end_soon,
    exit_code_of,
    give_up,
    record_failure,
    record_good_end,
    tell_threads,
)
from smddp.training.stop_deadline import LEAST_SECONDS, STOP_SECONDS, StopDeadline
from smddp.watch import Watch, Watchdog, is_hang, nccl_recorder

logger = logging.getLogger(__name__)

_PREPARING_SECONDS = 300.0  # then a script without optimizer steps gets no more lines

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
            record_good_end(code)
        stop_signal.on_unheeded = None
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a late signal must not change the exit code
    tell_threads()
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
            earlier = report_file.find(job.output_dir)
            late = partial(end_late, job, cluster, earlier, steps=_count_steps, verdict=_verdict)
            watching.enter_context(StopDeadline(stop_signal, STOP_SECONDS + LEAST_SECONDS, late))
            if options is not None and (added := nccl_recorder.switch_on(os.environ)) and cluster.is_main:
                logger.info("set for the watchdog: %s", ", ".join(f"{name}={value}" for name, value in added.items()))
            membership = adopted or join(cluster)
        except Exception as error:
            # The message of a user's mistake is enough; a traceback through our code would bury it.
            logger.critical("the job could not begin: %s", error, exc_info=not isinstance(error, SmddpError))
            output_dir = job.output_dir if job is not None else _output_dir_of_sagemaker()
            # A data loader worker that runs the script again may fail later: the parent's report has this reason.
            again = isinstance(error, UnguardedScriptError)
            record_failure(output_dir, describe_error(error, cluster), keep_longer=again)
            return 1
        except KeyboardInterrupt:
            logger.warning("interrupted before all ranks had joined, exit code %d: nothing was saved", INTERRUPTED)
            return INTERRUPTED
        if cluster.is_main:
            watching.enter_context(Heartbeat("no step yet", until=lambda: _steps_taken > 0, most=_PREPARING_SECONDS))
        question = StopQuestion(membership.ranks, stop_signal)
        answer_stop_question(question)
        watching.callback(answer_stop_question, None)
        work = partial(main, **arguments)
        work = partial(_check_and, work, membership) if preflight_collectives else work
        code = _train(work, job, membership, earlier, options)
    if code == 0 and question.answer and cluster.is_main:
        logger.warning(
            "the script ended with 0 after it was told to stop: it counts as done; to resume, raise smddp.Stopped"
        )
    on_sagemaker = is_on_sagemaker(without_run_variables(os.environ))
    if code == 0 and cluster.is_main and on_sagemaker and not any(job.model_dir.glob("*")):
        logger.warning(
            "rank 0 leaves no model: %s is empty. trainer.save_model() writes the weights there; after the job, smddp "
            "checkpoints export writes those of a checkpoint",
            job.model_dir,
        )
    if code in (0, RESUMABLE):
        report_file.forget(job.output_dir, earlier)
    return code


def _train(
    main: Callable[[], None],
    job: Job,
    membership: Membership,
    earlier: tuple[int, int] | None,
    watch: Watch | None,
) -> int:
    end_hanging = partial(give_up, job, membership.cluster.rank)
    memory = HostMemory()

    def publish_verdict(report: str) -> bool:
        return first_failure.publish(report) and first_failure.claim_reason()

    def end_unheeding(report: str) -> None:
        end_hanging(report, is_logged=not first_failure.claim_reason())

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
            end=partial(end_hanging, is_logged=True),
            hangs=active_runs.begin_hang,
            moves=active_runs.end_hang,
        )
    ending = ExitStack()  # exits in reverse: after a failure, trackers need not wait for the saves
    saves, views = ending.enter_context(ExitStack()), ending.enter_context(ExitStack())
    process = os.getpid()
    # Order of a good end: 1. main returns, 2. the last checkpoints become durable, 3. the trackers hear of the end,
    # which is good only now, 4. the exit code is recorded, 5. the rank leaves the group. Order of a failure: 1. record
    # this rank's own report, since the rest may be cut short, 2. tell the trackers, and let saves under way end, for
    # ten seconds, 3. settle which rank failed first, 4. wait until the others have read it, 5. end, by force after
    # 15 seconds. A rank that only lost contact skips 1, as the cause is another rank's, and does 2 within 5.
    try:
        with _watchdog or nullcontext(), active_runs.until_script_ends(saves, views):
            code = _run_well(main)
        _end_fork(process, code)
        if code == RESUMABLE:
            if lost := active_runs.steps_in_no_checkpoint():
                raise CheckpointError(
                    f"the script ended with exit code {RESUMABLE}, which promises that it can resume, and {lost} steps "
                    "are in no checkpoint: call trainer.save(wait=True) before"
                )
            active_runs.note_stop()
        following = _following_run(job)
        saves.close()  # waits until the last checkpoint is durable or has failed, with a log line
        views.close()
    except BaseException as error:
        _end_fork(process, exit_code_of(error))
        code = exit_code_of(error)
        if code != INTERRUPTED:
            log = FailureLog(error, job.output_data_dir, membership.cluster.rank)
            report = describe_error(error, membership.cluster, memory)
            lost_contact = is_communication_error(error)
            is_told = not lost_contact and first_failure.claim_log()
            if is_told:
                first_failure.claim_reason()
                log.tell(report)
            if not lost_contact:
                report = _with_reason_of_workers(report, job.output_dir, earlier)
                record_failure(job.output_dir, report)  # at once: the rest may be cut short
                ending.__exit__(type(error), error, error.__traceback__)  # the other ranks save, too, and still wait
            settled = first_failure.settle(report, lost_contact=lost_contact)
            record_failure(job.output_dir, settled)
            if is_hang(settled):
                active_runs.end_ledgers("hang")
            if lost_contact and report in settled:
                is_told = True
                log.tell(settled)
            first_failure.await_readers()
            if not is_told:
                log.mention()  # now, when the rank that failed first has told its error
        elif membership.cluster.is_main:
            logger.warning("interrupted, exit code %d: %s", INTERRUPTED, _following_run(job))
        first_failure.close()
        end_soon(membership)
        if code != INTERRUPTED:
            ending.__exit__(type(error), error, error.__traceback__)  # does nothing unless contact was lost
        active_runs.end_ledgers("failed")  # after Ctrl-C, no other line has
        return code
    first_failure.close(code=code)
    record_good_end(code)
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
    if report_file.find(output_dir) in (None, earlier):
        return report
    told = report_file.read(output_dir / "failure")
    if UnguardedScriptError.__name__ not in told.partition(":")[0]:
        return report
    logger.critical("its workers could not start: %s", told)
    return within_limit(f"{told}\n{report}")


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
        if exit_code_of(ending) in (0, RESUMABLE):
            return exit_code_of(ending)
        raise
    finally:
        stop_signal.on_unheeded = None  # main has ended
    return 0


def _set_up_logging(cluster: Cluster) -> None:
    """Log to stderr, unless the script has set up logging: all lines on rank 0, and warnings on the others."""
    try:
        level = _log_level(os.environ)
    except JobError:
        start_log("", named_from=logging.WARNING, level=logging.INFO)
        raise
    if level is None:
        level = logging.WARNING if asks_for_help(sys.argv[1:]) else logging.INFO
    sender = f"rank {cluster.rank}" if cluster.world_size > 1 else ""
    if cluster.node_count > 1:
        sender += f" on {cluster.host}"
    start_log(sender, named_from=logging.WARNING, level=level if cluster.is_main else max(level, logging.WARNING))


def _log_level(environ: Mapping[str, str]) -> int | None:
    """Return SM_LOG_LEVEL; None if it is unset. Raise JobError for anything but a number or a level's name."""
    text = environ.get("SM_LOG_LEVEL", "").strip()
    level = int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else logging.getLevelName(text.upper())
    if text and not isinstance(level, int):
        raise JobError(f"SM_LOG_LEVEL={text} is no log level: expected a number such as 20, or a name such as INFO.")
    return level if text else None


def _output_dir_of_sagemaker() -> Path | None:
    """Return where a job on SageMaker reports a failure to read its configuration; None elsewhere."""
    output_dir = platform_directory(os.environ) / "output"
    return output_dir if output_dir.is_dir() else None


class StoppedUnheeded(SystemExit):
    """The end of a script that had begun to train, was told to stop, and never checks for a stop."""


def _end_unheeded() -> None:
    """End the main thread at the point that SIGTERM interrupted, because the script never checks for a stop."""
    if _steps_taken:
        raise StoppedUnheeded(
            "told to stop, but this script never checks for a stop: the work since its last checkpoint is lost. "
            "Use smddp.Trainer, or ask job.stopping in the loop, save, and raise smddp.Stopped"
        )
    logger.info("told to stop before training began: nothing is lost")
    raise Stopped


def _count_steps() -> int:
    return _steps_taken


def _verdict() -> str:
    return "" if _watchdog is None else _watchdog.verdict


def _note_training(*_: object) -> None:
    global _steps_taken
    _steps_taken += 1
