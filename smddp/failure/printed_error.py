"""Finds the error that a program printed before it ended: an uncaught exception, or a crash of C++ or Python.

It reads the end of a standard error, also of programs that do not use smddp. Line prefixes are removed: torch writes
``[rank0]: `` before each line of a traceback once a process group exists; torchrun and mpirun write the rank if asked
to.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from smddp.display_text import shown_line

LOG_TIME = r"\d\d:\d\d:\d\d "
"""Matches the beginning of a line in the form of `smddp.process.log_format`."""

LAUNCHER = "smddp"
"""The sender of the log lines of programs around the ranks."""

CAUSE_SECONDS = 3.0
"""Seconds that a rank with lost contact waits for the failure of the rank that caused it."""

LOST_CONTACT = re.compile(r"gloo|nccl|c10d|connection (closed|reset) by peer|MPI error", re.IGNORECASE)
"""Matches torch's errors about an unreachable rank."""

_HINTS = (
    (
        re.compile(r"op\.preamble\.length|gloo::EnforceNotMet"),
        "Ranks called different collectives, or the same with tensors of other shapes: usually one takes another "
        "number of steps, or has another model.",
    ),
    (
        re.compile(r"Watchdog caught collective operation timeout"),
        "Not every rank came to this collective in time: one is slow, stopped, or in another part of the script.",
    ),
    (
        re.compile(
            r"not compiled with CUDA|No CUDA GPUs are available|no NVIDIA driver on your system|"
            r"no CUDA-capable device|torch\.cuda\.is_available\(\) is False"
        ),
        'PyTorch sees no GPU here. Write trainer.device in place of "cuda" and .cuda(); the Trainer moves model and '
        "batches itself. To train on a GPU, see what smddp doctor says of it.",
    ),
    (
        re.compile(
            r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set|"
            r"KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE)'"
        ),
        'No launcher has started this rank. In a job, give the Estimator distribution="torchrun"; elsewhere start the '
        "script by smddp run or torchrun.",
    ),
    (
        re.compile(r"OutOfMemoryError: "),
        "Raise accumulate= of the Trainer: each rank computes smaller micro-batches, and batch_size stays the same. "
        'Or compute in half precision (precision="auto"), or divide the model (parallel=smddp.Sharded(...)).',
    ),
    (
        re.compile(r"device-side assert triggered"),
        "An index was out of range on the GPU, such as a label of a class that the model lacks, or a token beyond the "
        "embedding. Run the script with SMDDP_DEVICE=cpu: there the error names the line and the index.",
    ),
    (
        re.compile(r"Cannot re-initialize \w+ in forked subprocess"),
        "A process that was forked from a rank, such as a DataLoader's worker, used the GPU. Let the dataset return "
        "tensors of the CPU: trainer.batches moves each batch to the GPU.",
    ),
    (
        re.compile(r"to be on the same device"),
        "trainer.batches and trainer.model move batches and the model to the GPU. Move tensors of your own there, too, "
        "such as masks and a loss's weight=: .to(trainer.device).",
    ),
    (
        re.compile(r"Can't (pickle|get) local object|Can't pickle <"),
        "A worker process that spawn or forkserver starts gets its dataset and functions by pickle. Define them at the "
        'top of a module, without lambda; or give the loader multiprocessing_context="fork".',
    ),
    (
        re.compile(r"Too many open files|received 0 items of ancdata"),
        "Each tensor that comes from a DataLoader's worker keeps a file open until it is freed. Keep only copies of "
        "them, such as by .clone(), in lists; use fewer num_workers; or raise the limit: ulimit -n 65536.",
    ),
    (
        re.compile(r"Expected more than 1 value per channel when training"),
        "BatchNorm can't train on a micro-batch of one sample. Give trainer.loader() a larger batch_size or a smaller "
        'accumulate, and no tail="short"; or replace BatchNorm, such as by GroupNorm.',
    ),
    (
        re.compile(r"'(AutocastModel|HalfWeightsModel|PureHalfModel|Replica|ShardedModel)' object has no attribute"),
        "trainer.model and trainer.ema only compute. Attributes and methods of your own model are those of "
        "trainer.module and trainer.ema.module.",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "A disk is full: free some space. In a job, give the Estimator a larger volume_size, which is the size of "
        "/opt/ml and /tmp in GB, and keep caches there, such as by HF_HOME=/tmp/hf.",
    ),
)
_DECORATION = re.compile(r"(?:\[rank\d+\]: |\[[a-z_]+\d+\]:|\[\d+,\d+\]<std\w+>:)+")
_TRACEBACK = re.compile(r"(?P<group>\s+\+ Exception Group )?Traceback \(most recent call last\):")
_OF_A_GROUP = re.compile(r"\s+[|+]")
_ERROR_OF_A_GROUP = re.compile(r"\s+\| (?=\S)(?!.*Traceback \(most recent call last\):)(.*)")
_CHAINED = re.compile(r"(\s+\| )?(The above exception was the direct cause|During handling of the above exception)")
_HANDLED = "Exception ignored"
_BESIDE = re.compile(r"Exception in thread |Process \S+:\s*$|--- Logging error ---|(future|task): <")
"""The line before the traceback of a thread, a child process, a logger or a task, none of which ends Python."""
_MOST_LINES_OF_A_MESSAGE = 10
"""If more lines follow an exception, the program went on after it."""
_NOISE = re.compile(rf"\[[WI]\d+|.*Warning: |\W*$|{LOG_TIME}(?:[A-Z]+ )?(?:[\w.]+: )?{LAUNCHER}: ")
_OTHER_WORDS = re.compile(
    rf"{LOG_TIME}|\d{{4}}-\d\d-\d\d[ T]|[EWI]\d{4} \d\d:|\[[EWI]\d|Exception (ignored|in thread)|.*Warning: |-{{40}}"
)
"""The beginning of a line that no longer belongs to an exception's message, mostly a log line."""
_TERMINATE = re.compile(r"terminate called ")
_LIBC = re.compile(
    r"\*\*\* .+ \*\*\*|[\w ]+\(\): (?:invalid|corrupt|double)|double free|corrupted |.+: Assertion `.+' failed"
)
"""What the C library says before it aborts."""
_WATCHDOG = re.compile(r".*Watchdog caught collective operation timeout")
_FATAL = re.compile(r"Fatal Python error: ")
_STACK = re.compile(r"(?:Current thread|Thread) .*\(most recent call first\):|Stack \(most recent call first\):")
_AFTER_WHAT = re.compile(r"Exception raised from |frame #|Fatal Python error|\[[EWI]\d|\*\*\*")
_REFUSED = re.compile(r"RuntimeError: |\S*Dist\w*Error: |terminate called .*(?:gloo|c10)::")


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedError:
    """An error as a program printed it."""

    message: str
    """The exception with its type, or the crash, in one or more lines."""
    context: str
    """The frames, innermost last, or the lines printed before."""

    was_raised: bool = False
    """Whether it is a Python exception."""
    others: int = 0
    """The number of other exceptions printed."""
    is_beside: bool = False
    """Whether it was raised outside the main program, which did not end by it."""
    followed_by: int = 0
    """The number of lines printed after its first line."""
    is_last_line: bool = False
    """Whether no error was found: it is only what was printed last."""

    @property
    def is_lost_contact(self) -> bool:
        """Whether it only reports an unreachable rank, so that the cause is another rank's failure."""
        if _WATCHDOG.match(self.message):  # NCCL's, which ends the ranks that waited
            return True
        if _REFUSED.match(self.message) is None or _HINTS[0][0].search(self.message):
            return False
        return LOST_CONTACT.search(self.message) is not None


def hint(text: str) -> str | None:
    """Return the usual meaning of an error of torch, and the remedy; None if unknown."""
    return next((told for pattern, told in _HINTS if pattern.search(text)), None)


def find_error(printed: str, *, first: bool = False, crashed: bool = False, raised: bool = True) -> PrintedError | None:
    """Return the error that ended a program, from the end of its standard error; None if it printed nothing.

    An uncaught exception has priority, then the words of C++ and Python about a crash, then the last line.

    1. ``first``: several programs printed there, so the first error without lost contact counts: the others follow from
       it. Of a single program the last error counts, because it continued after the earlier ones.
    2. ``crashed``: a crash signal ended it, so the words about the crash have priority.
    3. ``raised``: its exit code fits an exception. If not, an exception counts only near the end of the output.
    """
    lines = _lines(printed)
    errors = list(_exceptions(lines, mixed=first))
    errors = [error for error in errors if not error.is_beside] or errors
    if errors and not raised and not first and errors[-1].followed_by > _MOST_LINES_OF_A_MESSAGE:
        errors = []
    crash = _crash(lines)
    # A rank that lost contact may abort while it ends: the exception still says more than the signal's name.
    is_victim = not first and bool(errors) and errors[-1].is_lost_contact
    if crash is not None and (crashed or not errors) and not (is_victim and _FATAL.match(crash.message)):
        return crash
    if errors:
        found = next((error for error in errors if not error.is_lost_contact), errors[0]) if first else errors[-1]
        return replace(found, others=len(errors) - 1)
    lines = [line for line in lines if not _NOISE.match(line)]
    if not lines:
        return None
    return PrintedError(message=lines[-1].strip(), context="\n".join(lines[:-1]), is_last_line=True)


def last_lines(printed: str, limit: int) -> list[str]:
    """Return the last lines in so many characters, each cut if it is longer than half of them; noise is left out."""
    kept: list[str] = []
    for line in reversed([line.rstrip() for line in _lines(printed) if not _NOISE.match(line)]):
        shown = line if len(line) <= limit // 2 else f"{line[: limit // 2 - 3]}..."
        limit_left = limit - sum(len(each) + 1 for each in kept)
        if len(shown) > limit_left:
            break
        kept.insert(0, shown)
    return kept


def _lines(printed: str) -> list[str]:
    """Return the lines that are not empty, without control sequences and prefixes."""
    lines = (_undecorated(shown_line(line)) for line in printed.split("\n"))
    return [line for line in lines if line.strip()]


def _undecorated(line: str) -> str:
    decoration = _DECORATION.match(line)
    return line if decoration is None else line[decoration.end() :]


def _exceptions(lines: Sequence[str], *, mixed: bool) -> Iterator[PrintedError]:
    """Yield each exception with its traceback; of a chain, only the last.

    With ``mixed`` lines of several programs, one's traceback may continue behind another's.
    """
    starts = [number for number, line in enumerate(lines) if _TRACEBACK.match(line)]
    chain: int | None = None  # the first line of the chain that leads to the current exception
    for start, following in zip(starts, [*starts[1:], len(lines)], strict=False):
        if start and lines[start - 1].startswith(_HANDLED):
            continue
        begun = _TRACEBACK.match(lines[start])
        if begun is not None and begun["group"]:
            end, message = _group(lines, start)
        else:
            end = _end(lines, start)
            told = set(lines[start : end + 1]) if mixed else set()
            message = [lines[end].strip(), *_rest_of_message(lines[end + 1 :], told)]
        begun_at, chain = start if chain is None else chain, None
        if any(_CHAINED.match(line) for line in lines[end + 1 : following]):
            chain = begun_at
        elif message:
            yield PrintedError(
                message="\n".join(message),
                context="\n".join(lines[begun_at:end]),
                was_raised=True,
                is_beside=begun_at > 0 and _BESIDE.match(lines[begun_at - 1]) is not None,
                followed_by=len(lines) - end - 1,
            )


def _end(lines: Sequence[str], start: int) -> int:
    """Return the line of the exception. If ranks print at once, other tracebacks may begin before it."""
    following = range(start + 1, len(lines))
    is_frame = [line.startswith(" ") or _TRACEBACK.match(line) is not None for line in lines]
    return next((number for number in following if not is_frame[number]), len(lines) - 1)


def _group(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return the last line of an exception group, and its message with the messages of its exceptions."""
    following = range(start + 1, len(lines))
    end = next((number for number in following if not _OF_A_GROUP.match(lines[number])), len(lines)) - 1
    found = [_ERROR_OF_A_GROUP.match(line) for line in lines[start + 1 : end + 1] if not _CHAINED.match(line)]
    return end, [each[1] for each in found if each is not None]


def _rest_of_message(lines: Sequence[str], told: Collection[str]) -> Iterator[str]:
    """Yield the further lines of a message, up to a line that another program repeats or that starts something else."""
    others = (_TRACEBACK, _CHAINED, _BESIDE, _OTHER_WORDS, _TERMINATE, _FATAL)
    for line in lines:
        if line in told or any(pattern.match(line) for pattern in others):
            return
        yield line.rstrip()


def _crash(lines: Sequence[str]) -> PrintedError | None:
    """Return the crash reported by C++, the C library, NCCL's watchdog or Python, with faulthandler's stack.

    If several ranks crashed, one that did not only lose contact counts.
    """
    found = []
    for pattern in (_TERMINATE, _LIBC, _WATCHDOG, _FATAL):
        number = next((number for number, line in enumerate(lines) if pattern.match(line)), None)
        if number is not None:
            what = " ".join(_what(lines[number + 1 :])) if pattern is _TERMINATE else ""
            message = f"{lines[number].strip()}: {what}" if what else lines[number].strip()
            found.append(PrintedError(message=message, context="\n".join(_stack(lines))))
    # Python says "Aborted" of each abort, whatever its reason.
    causes = (crash for crash in found if not crash.is_lost_contact and not crash.message.endswith(": Aborted"))
    return next(causes, found[0] if found else None)


def _what(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a C++ exception's ``what():  ...``."""
    if not lines or not lines[0].lstrip().startswith("what():"):
        return
    yield lines[0].partition("what():")[2].strip()
    for line in lines[1:]:
        if _AFTER_WHAT.match(line) or _STACK.match(line) or _OTHER_WORDS.match(line) or _NOISE.match(line):
            return
        yield line.strip()


def _stack(lines: Sequence[str]) -> list[str]:
    """Return the frames of the crashed thread, innermost last; faulthandler prints them in reverse.

    If a thread without Python crashed, such as one of gloo, the main thread's, which faulthandler prints last.
    """
    begun = [number for number, line in enumerate(lines) if _STACK.match(line)]
    if not begun:
        return []
    current = next((number for number in begun if lines[number].startswith("Current")), begun[-1])
    end = next(
        (number for number in range(current + 1, len(lines)) if not lines[number].startswith("  File ")), len(lines)
    )
    return list(reversed(lines[current + 1 : end]))
