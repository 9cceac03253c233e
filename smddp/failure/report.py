"""Composes the report of a failure, in the 1024 characters that SageMaker shows of ``output/failure``.

The report of an exception has its type and message, the rank and host, its cause, and the user's own frames of the
traceback. The report of a program that wrote none has its exit code and the error it printed. All such texts are
composed here; other modules only write them (`report_file`) or show them. ``smddp.distributed.first_failure`` chooses
the rank whose report counts when several fail.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from smddp.cluster import Cluster, without_run_variables
from smddp.display_text import encodable, shortened
from smddp.failure.host_memory import LIKELY_CAUSES, HostMemory, describe_full_shared_memory
from smddp.failure.printed_error import PrintedError, find_error, hint, last_lines
from smddp.failure.stack_frames import PACKAGE_PATH, frame_line, frame_lines, telling_frames
from smddp.job.distribution_names import distributions_of, missing_module, without_index
from smddp.job.job import is_on_sagemaker

LIMIT = 1024
"""Characters of the failure file that SageMaker shows as FailureReason (a limit of DescribeTrainingJob)."""

_MESSAGE_LIMIT = 600
_CAUSE_LIMIT = 160
_MOST_HELD = 2
_QUOTED = 10
"""A cause of so many characters is left out if the error's message has it."""
_PRINTED_LIMIT = 420  # the platform adds its own words to a reason, and cuts the reason's middle to make room
_LEAST_CONTEXT = 80
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")
_DATA_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")  # noqa: PTH118, the end of a path
_KILLED_WORKER = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: (Killed|Bus error)")
_ENDED_WORKER = re.compile(r"DataLoader worker \(pid\(s\) .*\) exited unexpectedly")
_CRASH_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
"""A line of the stack that Python's faulthandler prints."""
_SIGNALS = {"Killed": "SIGKILL", "Bus error": "SIGBUS"}
_OF_RANK = re.compile(r"(?:^R|\(r)ank (\d+) of \d+ on ")
_MOST_LAST_LINES = 400
"""Characters of the last lines of a process that was killed."""


def describe_error(error: BaseException, cluster: Cluster | None, memory: HostMemory | None = None) -> str:
    """Return the failure in at most 1024 characters: message, rank and host, causes, frames with the innermost last.

    A long report loses the middle frames first, then the middle of the message. ``cluster`` is None if the rank is
    unknown, ``memory`` if nobody read the counters before.
    """
    told = traceback.TracebackException.from_exception(error)
    where = "" if cluster is None else f" (rank {cluster.rank} of {cluster.world_size} on {_host(cluster)})"
    lines = [shortened(_summary(told), _MESSAGE_LIMIT - len(where)) + where]
    cause = told
    while (next_cause := _cause(cause)) is not None:
        cause = next_cause
    if cause is not told and not (len(str(cause)) >= _QUOTED and str(cause) in str(told)):
        lines.append(shortened(f"caused by {_summary(cause)}", _CAUSE_LIMIT))
    lines += [shortened(f"it holds {_summary(held)}", _CAUSE_LIMIT) for held in list(_held(told))[:_MOST_HELD]]
    whole = str(told) if cause is told else f"{told}\n{cause}"
    if meaning := _lost_worker(error, memory) or _meaning(f"{lines[0]}\n{whole}", Path(), memory):
        lines.append(meaning)
    frames = [frame_line(frame) for frame in telling_frames(told)]
    if cause is not told:
        frames += [
            frame_line(frame) for frame in telling_frames(cause)[-1:] if not frame.filename.startswith(PACKAGE_PATH)
        ]
    head = "\n".join(lines)
    return "\n".join([head, *_fit(frames, LIMIT - len(head) - 1)])


def describe_exit(
    program: str, host: str, code: int, tail: str, *, many: bool, code_dir: Path, memory: HostMemory | None = None
) -> str:
    """Return a program's failure as seen from outside, within `LIMIT`: the printed error first, then its context.

    ``tail`` is the end of its standard error. With ``many`` ranks writing there, the first error counts: the others
    follow from it. ``code_dir`` has the job's code, ``memory`` the counters from before the program began.
    """
    how, remedy = _kill(code, memory)
    head = f"{program} ended with exit code {code}{how and f' ({how})'} on {host}"
    error = find_printed(code, tail, many=many)
    if error is None:
        return _with_last_lines(f"{head}.", remedy, tail if how else "", many=many)
    return _with_printed(f"{head}: ", error, code_dir=code_dir, remedy=remedy, memory=memory)


def describe_rank_exit(
    code: int,
    *,
    rank: int | None,
    world_size: int,
    host: str,
    tail: str | None = None,
    many: bool = False,
    memory: HostMemory | None = None,
    context: bool = True,
) -> str:
    """Describe the end of a rank without a report, in `LIMIT` characters.

    ``rank`` is None if it is unknown which rank ended; the reason then names no ``host``. ``code`` is the exit code as
    a shell sees it, 128 + n after signal n. ``tail`` is the end of its standard error, None if nobody read it; ``many``
    says whether other ranks wrote there, too. ``memory`` has the counters of the rank's host from before the rank
    began, None if it is another host. Without ``context``, a printed error's frames are left out, for a log that has
    them.
    """
    who = f"one of {world_size} ranks" if rank is None else f"rank {rank} of {world_size} on {host}"
    subject = who[0].upper() + who[1:]
    how, remedy = _kill(code, memory)
    error = None if tail is None else find_printed(code, tail, many=many)
    if error is not None and not context:
        error = replace(error, context="")
    if error is None and how:
        return _with_last_lines(f"{subject} was {how}.", remedy, tail or "", many=many)
    if error is None:
        return f"{subject} ended with code {code}, and said no reason."
    if error.was_raised and not how:
        # If several ranks printed several exceptions, the rank of each one is unknown.
        is_unknown = rank is not None and many and error.others
        whose = f"one of {world_size} ranks; the first to end was {who}" if is_unknown else who
        return _with_printed("", error, f" ({whose})", memory=memory)
    before = f"{subject} was {how}: " if how else f"{subject} ended with code {code}: "
    return _with_printed(before, error, remedy=remedy, memory=memory)


def rank_of(report: str) -> int | None:
    """Return the rank that a report of `describe` or `describe_rank_exit` is about; None if it names none."""
    named = _OF_RANK.search(report)
    return None if named is None else int(named[1])


def find_printed(code: int, tail: str, *, many: bool = False) -> PrintedError | None:
    """Return the error that a program printed before it ended with this code; None if it printed none.

    A process killed by SIGKILL cannot print a reason, so its earlier output does not count. If any other signal killed
    it, its last line is no reason either.
    """
    name = killed_by(code)
    raised = code == 1 or name is not None  # Python's own exit code after an exception
    if name == "SIGKILL":
        return None
    error = find_error(tail, first=many, crashed=name in _CRASHES, raised=raised)
    return None if name is not None and error is not None and error.is_last_line else error


def killed_by(code: int) -> str | None:
    """Return the name of the signal that killed a process with this exit code; None if it ended by itself."""
    return signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else None


def _kill(code: int, memory: HostMemory | None) -> tuple[str, str]:
    """Return the signal that killed a process with this exit code, with its likely cause, and the remedy.

    Both are empty if no signal did.
    """
    name = killed_by(code)
    if name is None:
        return "", ""
    if memory is None:  # the process was on another host
        return f"killed by {name}{LIKELY_CAUSES.get(name, '')}", ""
    return f"killed by {name}{memory.explain(name)}", memory.remedy(name)


def within_limit(text: str, suffix: str = "") -> str:
    """Return ``text`` and ``suffix`` within `LIMIT` characters, cutting the middle of the text."""
    text, suffix = encodable(text), encodable(suffix)
    return shortened(text, LIMIT - len(suffix)) + suffix


def _lost_worker(error: BaseException, memory: HostMemory | None) -> str | None:
    """Return what is known of a DataLoader worker whose connection broke; None if another error is the reason."""
    if not _is_lost_worker(error):
        return None
    memory = memory or HostMemory()
    how = f"it was killed, {oom}" if (oom := memory.oom_kill()) else "it was killed, or has ended by itself"
    what = f"A DataLoader worker ended while it handed over a batch: {how}."
    return f"{what} {memory.remedy('SIGKILL')}".rstrip()


def _is_lost_worker(error: BaseException) -> bool:
    """Return whether the connection between torch's DataLoader and a worker broke.

    A Dataset's own connection breaks in frames of the Dataset, or in a worker, whose error the DataLoader raises again.
    If the DataLoader has noticed that the worker ended, it raises an error of its own from the connection's.
    """
    error = error.__cause__ if error.__cause__ is not None and _ENDED_WORKER.match(str(error)) else error
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    below = [*itertools.takewhile(lambda file: not file.endswith(_DATA_LOADER), reversed(files))]
    is_broken = isinstance(error, ConnectionError | EOFError) and 0 < len(below) < len(files)
    return is_broken and all("multiprocessing" in Path(file).parts for file in below)


def _meaning(error: str, code_dir: Path, memory: HostMemory | None) -> str | None:
    """Return the usual remedy of an error; None if unknown."""
    if killed := _KILLED_WORKER.search(error):
        how, remedy = _kill(128 + signal.Signals[_SIGNALS[killed[1]]], memory)
        return f"A DataLoader worker was {how}. {remedy}".rstrip()
    if module := missing_module(error, code_dir):
        if elsewhere := without_index(module):
            return elsewhere
        package = distributions_of(module)[0]
        in_job = is_on_sagemaker(without_run_variables(os.environ))
        if in_job:
            return (
                f"Add {package} to requirements.txt in source_dir; a module of your own belongs in source_dir itself."
            )
        return f"Install it: pip install {package}"
    return describe_full_shared_memory(error) or hint(error)


def _with_last_lines(head: str, remedy: str, tail: str, *, many: bool) -> str:
    """Return a reason with the last lines of a process that was killed: they are no reason, but all that there is."""
    lines = [encodable(line) for line in last_lines(tail, _MOST_LAST_LINES)]
    whose = "The ranks' last lines" if many else "Its last lines"
    parts = [shortened(head, LIMIT - 2 * _MOST_LAST_LINES), *([remedy] if remedy else [])]
    if lines:
        parts += [f"{whose} on standard error:", *(f"  {line}" for line in lines)]
    return "\n".join(parts)[:LIMIT]


def _with_printed(
    before: str,
    error: PrintedError,
    after: str = "",
    *,
    code_dir: Path = Path(),
    remedy: str = "",
    memory: HostMemory | None = None,
) -> str:
    """Return a reason that quotes a printed error, and the end of its context as far as it fits.

    ``code_dir`` has the job's code; ranks and their launcher run in it. Without a ``remedy`` it is the error's own.
    """
    context = encodable(_own_frames(error.context))
    # A short message leaves room for the context, and a short context for the message.
    most = max(_PRINTED_LIMIT, LIMIT - 1 - len(before) - len(after) - len(context))
    told = before + shortened(encodable(error.message), most) + after
    if meaning := remedy or _meaning(error.message, code_dir, memory):
        told = f"{shortened(told, LIMIT - 1 - len(meaning))}\n{meaning}"
    room = LIMIT - len(told) - 1
    if room < _LEAST_CONTEXT or not context:
        return told[:LIMIT]
    return f"{told}\n{context if len(context) <= room else '...' + context[3 - room :]}"


def _own_frames(context: str) -> str:
    """Return the script's own frames of a crash, with their code; any other context unchanged."""
    found = [_CRASH_FRAME.match(line) for line in context.splitlines()]
    frames = [traceback.FrameSummary(each["file"], int(each["line"]), each["name"]) for each in found if each]
    if not frames or len(frames) < len(found):
        return context
    return "\n".join(f"  {line}" for line in frame_lines(frames))


def _host(cluster: Cluster) -> str:
    """Return the host's name in the job, or this machine's own if the launcher gives no names for several hosts."""
    is_made_up = cluster.node_count > 1 and cluster.sources.get("hosts", "").startswith("default:")
    return socket.gethostname() if is_made_up else cluster.host


def _summary(told: traceback.TracebackException) -> str:
    """Return an exception's type, message and notes, as Python prints them."""
    return encodable("".join(told.format_exception_only()).strip())


def _cause(told: traceback.TracebackException) -> traceback.TracebackException | None:
    if told.__cause__ is not None:
        return told.__cause__
    return None if told.__suppress_context__ else told.__context__


def _held(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield the leaf exceptions of an exception group; nothing for other exceptions."""
    for each in getattr(told, "exceptions", None) or ():
        yield from list(_held(each)) or [each]


def _fit(lines: list[str], room: int) -> list[str]:
    """Return the lines that fit: the outermost one, a mark for omitted ones, and the innermost ones."""
    if sum(len(line) + 1 for line in lines) - 1 <= room:
        return lines
    first, rest = lines[0], lines[1:]
    mark = f"  ... {len(lines)} frames in all ..."
    left = room - len(first) - len(mark) - 1
    kept: list[str] = []
    for line in reversed(rest):
        left -= len(line) + 1
        if left < 0:
            break
        kept.insert(0, line)
    return [first, mark, *kept] if kept else [shortened(lines[-1], room)]
