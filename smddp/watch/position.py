"""Where a rank is: its step, collective and phase, its line in the user's script, and for how long it has not moved."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from smddp.cluster import Cluster
from smddp.failure import frame_lines, thread_traceback
from smddp.process import process_tree
from smddp.watch.collective_log import CollectiveLog

_BUSY_SHARE, _BUSY_SECONDS, _BUSY_BYTES = 0.02, 0.1, 2**20
"""A rank is busy if it uses more of a core than this share, plus these seconds, or reads and writes more bytes. Seconds
in which its main thread waited for a core do not count: on a machine with too few cores it gets little of one."""
_JITTER_SECONDS, _JITTER_BYTES = 0.005, 512
"""The counters are read one after another, so the usage of an idle process may seem to fall, by less than this."""
_BYTES_A_RANK = 4096
"""Bytes a second and rank that the store, served by rank 0, reads and writes for the positions."""

_PHASES = (
    ("/torch/distributed/checkpoint/", "checkpoint"),
    ("/torch/serialization.py", "checkpoint"),
    ("/torch/utils/data/", "data"),
    ("/smddp/data/", "data"),
    ("/torch/autograd/", "backward"),
    ("/torch/_tensor.py", "backward"),
    ("/torch/optim/", "optimizer"),
    ("/torch/_dynamo/", "compile"),
    ("/torch/_inductor/", "compile"),
    ("/smddp/checkpoint/", "checkpoint"),
    ("/torch/distributed/", "collective"),
    ("/torch/nn/parallel/distributed.py", "collective"),  # DDP itself: the model's forward has frames of its own
    ("/torch/nn/", "forward"),
    ("/socket.py", "network"),
    ("/ssl.py", "network"),
    ("<frozen importlib", "import"),
)
"""The phase of a step, by the file of the innermost frame that is in this table."""
PHASES = tuple(dict.fromkeys(phase for _, phase in _PHASES))
"""All phases of a step, besides ``script``."""
WAITING = "waiting"
"""What a glance counts as while the rank waits for others in a collective, whatever the phase."""
WAITING_PHASES = frozenset({"collective", "backward"})
"""Phases that may wait for other ranks."""
_COMMUNICATING = ("/torch/", "/smddp/watch/")
"""The files of the frames inside which a collective waits."""
_NETWORK_PHASES = frozenset({"data", "checkpoint", "import", "network"})
"""Phases that may wait for the network alone: what this host receives and sends counts as activity, whoever does it."""
_DEBUGGERS = (
    *(str(Path(os.__file__).with_name(name)) for name in ("bdb.py", "pdb.py", "code.py")),
    "/pydevd.py",
    "/IPython/terminal/",
)
"""Python's debugger, which others build on, at a line and after an error; its console; the debugger of VS Code and
PyCharm; IPython's console."""
_MOST_FRAMES = 12
_LATEST_LINES = 15
"""So many of the lines seen in a phase are kept: a single one may be any line through which the rank passes."""
_NEWEST_SHARE = 0.1
"""The weight of the newest pause in what is usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One sample of a rank."""

    rank: int
    host: str
    pid: int
    processes: str
    """The boot ID and PID namespace in which `pid` is valid: two machines may share a host name."""
    beat: int
    """The number of this sample: a rank whose number stays the same does not answer."""
    step: int
    group: str
    """The key of the process group of `collective`; empty for the default group."""
    collectives: int
    """The number of `collective` in its group; 0 on a PyTorch without hooks."""
    collective: str
    """The last collective entered, of those that have not ended if there are any."""
    waits: bool
    """Whether that collective has not ended on this rank."""
    entered: Mapping[str, int]
    """Collectives entered by group, for each group of this rank."""
    digests: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Digests by group of all its collectives up to some numbers, the same on all ranks that call the same ones."""
    idle: float
    """Seconds without a step and without a collective."""
    usual: float
    """The usual idle seconds of this rank before it moves, a moving average."""
    still: float
    """The part of `idle` since the rank, or a child process, last computed, read or wrote."""
    phase: str
    """data, forward, backward, optimizer, checkpoint, compile, import, network, collective, debugger or script.

    At the end: ended (the script has ended well), failed, or unwatched (the watchdog has ended)."""
    glances: Mapping[str, int] = field(default_factory=dict)
    """How often the rank was seen in each phase, or waiting, since the watchdog began: glances are equally spaced."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """The line of the user's code that was seen most often of late in each phase."""
    frames: Sequence[str] = ()
    """The main thread's frames in the user's code, the innermost last; none unless `idle`."""
    neighbours: Mapping[int, str] = field(default_factory=dict)
    """The state of each rank on this host that does not answer: stopped, dead, busy, disk, blocked or unknown."""

    def to_json(self) -> str:
        """Return the position as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> Position:
        """Read a position of a rank of this job."""
        fields = json.loads(text)
        fields["neighbours"] = {int(rank): state for rank, state in fields["neighbours"].items()}
        fields["digests"] = {
            group: {int(number): digest for number, digest in digests.items()}
            for group, digests in fields["digests"].items()
        }
        return cls(**fields)

    @property
    def line(self) -> str:
        """The innermost line of the user's code; empty if unknown."""
        return self.frames[-1] if self.frames else ""


class Sampler:
    """Samples this process. Used by one thread."""

    def __init__(
        self, cluster: Cluster, *, steps: Callable[[], int], collectives: CollectiveLog, on_gpu: bool = False
    ) -> None:
        self._cluster = cluster
        self._on_gpu = on_gpu
        self._processes = process_tree.namespace()
        self._steps, self._collectives = steps, collectives
        self._beat = 0
        self._usual = 0.0
        self._glances = Counter[str]()
        self._lines = defaultdict[str, deque[str]](lambda: deque(maxlen=_LATEST_LINES))
        self.restart()

    def restart(self) -> None:
        """Measure the rank's standstill from now on, because this thread itself was suspended."""
        self._moved = self._active = time.monotonic()
        self._progress: tuple[int, ...] | None = None
        self._used: tuple[float, ...] | None = None

    def glance(self, *, with_line: bool) -> None:
        """Count the phase in which the main thread is now; `with_line`: note its line, too, which takes longer."""
        self._collectives.entered()  # NCCL's recorder is read here
        stack = main_stack() if with_line else None
        phase = _phase(_main_files()) if stack is None else phase_of(stack)
        if self._collectives.is_inside(in_call=phase in WAITING_PHASES) and (self._on_gpu or not _main_computes()):
            phase = WAITING
        self._glances[phase] += 1
        if stack and phase != WAITING:
            self._lines[phase].append(frame_lines(stack)[-1])

    def sample(self, neighbours: Mapping[int, str], *, end: str | None = None) -> Position:
        """Return the position now. `end` is the phase of the last sample: ended, failed or unwatched."""
        now = time.monotonic()
        entered = self._collectives.entered()
        progress = self._steps(), sum(entered.values()), self._collectives.transfers
        stack: Sequence[traceback.FrameSummary] = ()
        if progress != self._progress:
            if self._progress is not None and any(self._progress):  # the time before the first step is the start's
                self._usual += _NEWEST_SHARE * (now - self._moved - self._usual)
            self._progress, self._moved, self._active, self._used = progress, now, now, None
        else:
            stack = main_stack()
            self._look_for_activity(now, may_wait_for_network=phase_of(stack) in _NETWORK_PHASES)
        phase = end or phase_of(stack)
        group, number, collective, waits = self._collectives.last(in_call=phase in WAITING_PHASES)
        if waits and self._on_gpu:
            # CUDA computes while it waits for a GPU: a rank in a collective looks busy, and only waits.
            self._active = self._moved
        self._beat += 1
        return Position(
            rank=self._cluster.rank,
            host=self._cluster.host,
            pid=os.getpid(),
            processes=self._processes,
            beat=self._beat,
            step=progress[0],
            group=group,
            collectives=number,
            collective=collective,
            waits=waits,
            entered=entered,
            digests=self._collectives.digests(),
            idle=now - self._moved,
            usual=self._usual,
            still=now - self._active,
            phase=phase,
            glances=dict(self._glances),
            lines={phase: Counter(lines).most_common(1)[0][0] for phase, lines in self._lines.items()},
            frames=frame_lines(stack)[-_MOST_FRAMES:],
            neighbours=neighbours,
        )

    def _look_for_activity(self, now: float, *, may_wait_for_network: bool) -> None:
        """Move `_active` if the process tree computed, read or wrote more than a rank that only waits."""
        used: tuple[float, ...] | None = process_tree.usage()  # without that of this thread
        if used is not None:
            _, starved = process_tree.scheduled(os.getpid(), os.getpid()) or (0.0, 0.0)
            used = used[0], used[1] + (network_bytes() if may_wait_for_network else 0), starved
        if self._used is None or used is None:
            self._used, self._active = used, now
            return
        seconds, size, starved = (after - before for after, before in zip(used, self._used, strict=True))
        passed = now - self._active - starved
        most = _BUSY_BYTES + _BYTES_A_RANK * self._cluster.world_size * passed
        # A child process that has ended takes its usage with it, and the phase may change: that is activity, too.
        is_less = seconds < -_JITTER_SECONDS or size < -_JITTER_BYTES
        if is_less or seconds > _BUSY_SHARE * passed + _BUSY_SECONDS or size > most:
            self._used, self._active = used, now


def network_bytes() -> int:
    """Return the bytes that this host, or its container, has received and sent, without those to itself."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    except OSError:
        return 0
    fields = [line.replace(":", " ").split() for line in lines]
    return sum(int(each[1]) + int(each[9]) for each in fields if each[0] != "lo")


def main_stack() -> Sequence[traceback.FrameSummary]:
    """Return the main thread's frames, the innermost last."""
    return traceback.extract_tb(thread_traceback())


def phase_of(stack: Sequence[traceback.FrameSummary]) -> str:
    """Return the phase in which a stack is; ``script`` if no frame tells."""
    return _phase(frame.filename for frame in reversed(stack))


def _phase(files: Iterable[str]) -> str:
    """Return the phase by the files of a stack's frames, the innermost first.

    A rank waits for the others inside PyTorch. A frame of other code further inside is a call by a hook of the script.
    """
    found, is_in_torch = "", True
    for file in files:
        phase, communicates = _told_by(file)
        if phase == "debugger":
            return phase
        if phase and not found:
            found = phase if is_in_torch or phase not in WAITING_PHASES else "script"
        is_in_torch = is_in_torch and communicates
    return found or "script"


@lru_cache(maxsize=4096)
def _told_by(file: str) -> tuple[str, bool]:
    """Return the phase that a frame of this file tells, empty for none, and whether a collective may wait inside it."""
    phase = "debugger" if any(part in file for part in _DEBUGGERS) else ""
    phase = phase or next((phase for part, phase in _PHASES if part in file), "")
    return phase, any(part in file for part in _COMMUNICATING)


def _main_files() -> Iterator[str]:
    """Yield the files of the main thread's frames, the innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001, it is documented
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _main_computes() -> bool:
    """Return whether the main thread runs, or waits for a core or a disk."""
    return process_tree.state(os.getpid()) in ("R", "D")
