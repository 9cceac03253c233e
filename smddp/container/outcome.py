"""How a job ended, as the platform reads it: ``output/failure`` with the reason, or ``output/success``.

A failure that a rank wrote itself is the root cause and stays. Here the reason is put together from outside: the exit
code, and what of the standard error matters most.
"""

from __future__ import annotations

import errno
import logging
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 1024
"""What the service keeps of the file."""

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_NOISE = re.compile(r"\[W\d+|.*Warning: |\W*$")


def forget_outcome(output_dir: Path) -> None:
    """Remove what an earlier attempt in the same place ended in: it must not be taken for this one's reason."""
    for name in ("failure", "success"):
        (output_dir / name).unlink(missing_ok=True)


def report_success(output_dir: Path) -> None:
    """Write ``success``, which is empty; a failure that a restart made good is none."""
    path = output_dir / "success"
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "failure").unlink(missing_ok=True)
        path.touch()
    except OSError as error:  # the exit code says it, too
        logger.warning("The job succeeded, but %s can't be written: %s.", path, _cause(error))


def report_failure(output_dir: Path, reason: str) -> None:
    """Write ``failure``, unless a rank has already written what it knows better."""
    path = output_dir / "failure"
    if path.exists():
        logger.error("The job failed; its own reason is in %s.", path)
        return
    reason = reason.encode("utf-8", "backslashreplace").decode()  # names out of an archive need not be text
    logger.error("The job failed: %s", reason)
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        path.write_text(reason[:MAX_CHARACTERS], encoding="utf-8")
    except OSError as error:
        # The platform then shows the log's end instead: so the error itself must stand there, without its traceback.
        logger.error("%s can't be written: %s. The job failed: %s", path, _cause(error), reason.partition("\n")[0])


def is_full_disk(error: BaseException) -> bool:
    """Whether an error says that there is no room left on a disk, or in this user's share of it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _cause(error: OSError) -> str:
    """What an error of the file system means for the reader of a log."""
    return f"the disk is full ({error})" if is_full_disk(error) else str(error)


def describe_failure(program: str, host: str, code: int, tail: str, *, many: bool) -> str:
    """The reason for a failure, at most ``MAX_CHARACTERS`` long: the error first, then as much around it as fits.

    Args:
        program: What ran.
        host: Where.
        code: Its exit code.
        tail: The end of its standard error.
        many: Whether many ranks wrote there: then the first error counts, for those after it follow from it.
    """
    head = f"{program} ended with exit code {code}{_meaning(code)} on {host}"
    error, context = _root_cause(tail, first=many)
    reason = f"{head}: {error}" if error else f"{head}."
    room = MAX_CHARACTERS - len(reason) - 1
    if room < 80 or not context:
        return reason[:MAX_CHARACTERS]
    return f"{reason}\n{context if len(context) <= room else '...' + context[3 - room :]}"


def _meaning(code: int) -> str:
    if code - 128 not in set(signal.Signals):
        return ""
    name = signal.Signals(code - 128).name
    hint = ", often because the host ran out of memory" if name == "SIGKILL" else ""
    return f" (killed by {name}{hint})"


def _root_cause(tail: str, *, first: bool) -> tuple[str, str]:
    """An uncaught exception and its traceback; without one, the last line and those before it."""
    lines = [line for line in tail.splitlines() if line.strip()]
    errors = list(_tracebacks(lines))
    if errors:
        start, end = errors[0 if first else -1]
        return lines[end].strip(), "\n".join(lines[start:end])
    lines = [line for line in lines if not _NOISE.match(line)]
    return (lines[-1].strip(), "\n".join(lines[:-1])) if lines else ("", "")


def _tracebacks(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where each traceback starts, and where its exception stands; of a chain, only the last."""
    for start, line in enumerate(lines):
        if line.startswith(_TRACEBACK):
            following = range(start + 1, len(lines))
            end = next((number for number in following if not lines[number].startswith(" ")), len(lines) - 1)
            if not any(text.startswith(_CHAINED) for text in lines[end + 1 : end + 2]):
                yield start, end
