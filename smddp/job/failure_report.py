"""What is told about a failure: the file ``output/failure``, whose first 1024 characters become SageMaker's reason.

So few characters must do: the exception's type and message, the rank and host, what it was raised from, and the
traceback's frames that tell most, the user's own; of a program that wrote none, its exit code and the error that it
printed. Every such text is composed here; who writes it, or shows it, only carries it. Which rank's text it is to be
when several fail is settled in ``smddp.distributed.first_failure``.
"""

from __future__ import annotations

import os
import signal
import site
import socket
import stat
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from smddp.cluster import Cluster
from smddp.errors import SmddpError
from smddp.job.printed_error import PrintedError, find_error, hint

LIMIT = 1024
"""How many characters of the failure file SageMaker shows as FailureReason (a limit of DescribeTrainingJob)."""

_END_BYTES = 4 * LIMIT  # as many as LIMIT characters can have
_MESSAGE_LIMIT = 600
_CAUSE_LIMIT = 160
_MOST_HELD = 2
_CODE_LIMIT = 120
_PRINTED_LIMIT = 420  # the platform puts words of its own around a reason, and cuts the middle for them
_LEAST_CONTEXT = 80
_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")
_LIKELY_CAUSES = {
    "SIGKILL": ", often because the host ran out of memory",
    "SIGBUS": ", often because /dev/shm is full",
}


def describe(error: BaseException, cluster: Cluster | None) -> str:
    """Return the failure in at most 1024 characters: message, rank and host, causes, frames with the innermost last.

    What does not fit is cut from the middle of the frames, where calls pass through; then from a long message's middle.

    Args:
        error: What was raised, with its traceback.
        cluster: Which rank raised it; None when that was not known yet.
    """
    told = traceback.TracebackException.from_exception(error)
    where = "" if cluster is None else f" (rank {cluster.rank} of {cluster.world_size} on {_host(cluster)})"
    lines = [_shorten(_summary(told), _MESSAGE_LIMIT - len(where)) + where]
    cause = told
    while (next_cause := _cause(cause)) is not None:
        cause = next_cause
    if cause is not told:
        lines.append(_shorten(f"caused by {_summary(cause)}", _CAUSE_LIMIT))
    lines += [_shorten(f"it holds {_summary(held)}", _CAUSE_LIMIT) for held in list(_held(told))[:_MOST_HELD]]
    if meaning := hint(lines[0]):
        lines.append(meaning)
    frames = [_frame_line(frame) for frame in _telling(told)]
    if cause is not told:
        frames += [_frame_line(frame) for frame in _telling(cause)[-1:]]
    head = "\n".join(lines)
    return "\n".join([head, *_fit(frames, LIMIT - len(head) - 1)])


def describe_exit(program: str, host: str, code: int, tail: str, *, many: bool) -> str:
    """Return a program's failure as seen from outside, within `LIMIT`: the error first, then what fits around it.

    Args:
        program: What ran.
        host: Where.
        code: Its exit code.
        tail: The end of its standard error.
        many: Whether many ranks wrote there: then the first error counts, for those after it follow from it.
    """
    how = describe_kill(code)
    head = f"{program} ended with exit code {code}{how and f' ({how})'} on {host}"
    error = find_printed(code, tail, many=many)
    return f"{head}."[:LIMIT] if error is None else _with_printed(f"{head}: ", error)


def describe_rank_exit(
    code: int, *, rank: int, world_size: int, host: str, tail: str | None = None, many: bool = False
) -> str:
    """Return how a rank ended that has not said so itself, within `LIMIT`.

    Args:
        code: Its exit code as a shell sees it: 128 + n if signal n killed it.
        rank: Which.
        world_size: Of how many.
        host: Where.
        tail: The end of its standard error; None if nobody has read that.
        many: Whether other ranks wrote there, too.
    """
    where = f"ank {rank} of {world_size} on {host}"
    how = describe_kill(code)
    error = None if tail is None else find_printed(code, tail, many=many)
    if error is None:
        return f"R{where} was {how}." if how else f"R{where} ended with code {code}, and said no reason."
    if error.was_raised and not how:
        # Of several exceptions of several ranks it is not known whose each is.
        whose = f"one of {world_size} ranks; the first to end was r{where}" if many and error.others else f"r{where}"
        return _with_printed("", error, f" ({whose})")
    return _with_printed(f"R{where} was {how}: " if how else f"R{where} ended with code {code}: ", error)


def find_printed(code: int, tail: str, *, many: bool = False) -> PrintedError | None:
    """Return the error that a program printed before it ended with this code; None if it printed none.

    A process that was killed by SIGKILL could not say so: what it printed before is not the reason.
    """
    name = killed_by(code)
    raised = code == 1 or name is not None  # Python's own exit code after an exception
    return None if name == "SIGKILL" else find_error(tail, first=many, crashed=name in _CRASHES, raised=raised)


def killed_by(code: int) -> str | None:
    """Return the name of the signal that killed a process with this exit code; None if it ended by itself."""
    return signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else None


def describe_kill(code: int) -> str:
    """Say that a process with this exit code was killed, by what and why; nothing if it ended by itself."""
    name = killed_by(code)
    return f"killed by {name}{_LIKELY_CAUSES.get(name, '')}" if name else ""


def within_limit(text: str, suffix: str = "") -> str:
    """Return ``text`` and ``suffix`` within `LIMIT` characters, cut in the middle of the text."""
    text, suffix = _plain(text), _plain(suffix)
    return _shorten(text, LIMIT - len(suffix)) + suffix


def record(output_dir: Path, report: str) -> None:
    """Write the report, its first 1024 characters, to ``failure`` in the output directory, whole or not at all."""
    output_dir.mkdir(parents=True, exist_ok=True)
    temporary = output_dir / f".failure.{os.getpid()}"
    try:
        temporary.write_text(report[:LIMIT], encoding="utf-8")
        temporary.replace(output_dir / "failure")
    finally:
        temporary.unlink(missing_ok=True)  # it is still there if the disk is full


def read(file: Path) -> str:
    """Return the report in a file that any program may have written: of a long one, its beginning and its end.

    Raises:
        OSError: It can't be read.
    """
    with file.open("rb") as content:
        text = content.read(2 * _END_BYTES)
        if (size := os.fstat(content.fileno()).st_size) > len(text):
            content.seek(size - _END_BYTES)
            text = text[:_END_BYTES] + content.read(_END_BYTES)
    return text.decode("utf-8", "replace").strip()


def find(output_dir: Path) -> tuple[int, int] | None:
    """Return a mark by which to tell this report from any later one; None if there is no such file."""
    try:
        found = (output_dir / "failure").stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def forget(output_dir: Path, earlier: tuple[int, int] | None) -> None:
    """Remove the report of an earlier attempt, and no other: another rank may have failed meanwhile.

    Args:
        output_dir: Where it is.
        earlier: What `find` gave when this attempt began.
    """
    if earlier is not None and find(output_dir) == earlier:
        (output_dir / "failure").unlink(missing_ok=True)


def _with_printed(before: str, error: PrintedError, after: str = "") -> str:
    """Return a reason with an error that was printed, and what fits of its context, whose end tells most."""
    context = _plain(error.context)
    # A short message leaves its room to the context, and the other way round.
    most = max(_PRINTED_LIMIT, LIMIT - 1 - len(before) - len(after) - len(context))
    told = before + _shorten(_plain(error.message), most) + after
    if meaning := hint(error.message):
        told = f"{_shorten(told, LIMIT - 1 - len(meaning))}\n{meaning}"
    room = LIMIT - len(told) - 1
    if room < _LEAST_CONTEXT or not context:
        return told[:LIMIT]
    return f"{told}\n{context if len(context) <= room else '...' + context[3 - room :]}"


def _host(cluster: Cluster) -> str:
    """Return the host's name in the job; the machine's own where the launcher names none of several."""
    is_made_up = cluster.node_count > 1 and cluster.sources.get("hosts", "").startswith("default:")
    return socket.gethostname() if is_made_up else cluster.host


def _summary(told: traceback.TracebackException) -> str:
    """Return type, message and notes, as Python prints them."""
    return _plain("".join(told.format_exception_only()).strip())


def _cause(told: traceback.TracebackException) -> traceback.TracebackException | None:
    if told.__cause__ is not None:
        return told.__cause__
    return None if told.__suppress_context__ else told.__context__


def _held(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield the exceptions that are no groups themselves in an exception group; none of another exception."""
    for each in getattr(told, "exceptions", None) or ():
        yield from list(_held(each)) or [each]


def _telling(error: traceback.TracebackException) -> list[traceback.FrameSummary]:
    """Return the user's own frames and the innermost one, unless that is one of our checks: the fault is not there."""
    own = [frame for frame in error.stack[:-1] if not _is_installed(frame.filename)]
    is_refusal = error.exc_type is not None and issubclass(error.exc_type, SmddpError)
    checks = _PACKAGE if own or is_refusal else None
    return own + [frame for frame in error.stack[-1:] if checks is None or not frame.filename.startswith(checks)]


def _is_installed(filename: str) -> bool:
    return filename.startswith(_INSTALLED)


_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def _installed_prefixes() -> tuple[str, ...]:
    """Return where Python's own and installed code lies, this package and ``<frozen importlib>`` included."""
    paths = sysconfig.get_paths()
    homes = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    return (*(home + os.sep for home in sorted(homes)), _PACKAGE, "<")


_INSTALLED = _installed_prefixes()


def _frame_line(frame: traceback.FrameSummary) -> str:
    code = f": {_shorten(frame.line, _CODE_LIMIT)}" if frame.line else ""
    path = Path(frame.filename)
    return _plain(f"  {path.parent.name}/{path.name}:{frame.lineno} {frame.name}{code}")


def _fit(lines: list[str], room: int) -> list[str]:
    """Return as many lines as fit: the outermost one, a mark for what is left out, and the innermost ones."""
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
    return [first, mark, *kept] if kept else [_shorten(lines[-1], room)]


def _shorten(text: str, limit: int) -> str:
    """Return the text's beginning and end, with a mark between them where it is cut."""
    if len(text) <= limit:
        return text
    head = (limit - 5) // 2
    return f"{text[:head]} ... {text[head + 5 - limit :]}"


def _plain(text: str) -> str:
    """Return the text in characters that any file, terminal and JSON takes: names of files need not be text."""
    return text.encode("utf-8", "backslashreplace").decode()
