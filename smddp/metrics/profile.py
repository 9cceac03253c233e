"""Record some steps of a run with torch.profiler, as a trace for Perfetto (ui.perfetto.dev)."""

from __future__ import annotations

import gzip
import logging
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

logger = logging.getLogger(__name__)

_COMPRESSED_FROM = 64 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The steps to profile, for ``Trainer(profile=...)``.

    The trace is ``profile/rank0.pt.trace.json`` in the job's output data directory, with ``.gz`` beyond 64 MiB. The
    profiler starts one step early, so that the trace does not contain its start.

    Examples:
        >>> Profile(first=10, last=12)
        Profile(first=10, last=12, every_rank=False, shapes=False, memory=False)

    Raises:
        ValueError: The steps are out of range.
    """

    first: int
    """The first optimizer step in the trace, counted from 1 since the very first start of the run."""
    last: int
    """The last step. Traces are large: a few steps are enough."""
    every_rank: bool = False
    """Whether each rank writes a trace, or rank 0 alone."""
    shapes: bool = False
    """Whether to record the shapes of the operations' inputs."""
    memory: bool = False
    """Whether to record allocations."""

    def __post_init__(self) -> None:
        if type(self.first) is not int or type(self.last) is not int or not 1 <= self.first <= self.last:
            raise ValueError(
                f"Profile(first={self.first!r}, last={self.last!r}): give steps from 1 on, the last not before "
                "the first"
            )


class StepProfiler:
    """Profile a rank's steps, and write the trace to a directory, which is created."""

    def __init__(self, profile: Profile, directory: Path, *, rank: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._profile = profile
        self._path = directory / f"rank{rank}.pt.trace.json"
        self._profiler: torch.profiler.profile | None = None
        self._steps = 0
        self._is_over = False

    def after_step(self, steps: int) -> None:
        """Start or stop the profiler, if due; call it once before the first step, too."""
        if self._is_over:
            return
        if self._profiler is not None:
            if steps > self._steps:
                self._steps = steps
                self._profiler.step()
            if steps >= self._profile.last:
                self.stop()
        elif steps >= self._profile.last:
            self._is_over = True
            logger.warning("there is no profile: the run resumes at step %d, beyond %r", steps, self._profile)
        elif steps >= self._profile.first - 2:
            self._start(steps)

    def stop(self) -> None:
        """Stop the profiler, and write the trace of the steps so far."""
        if self._profiler is not None:
            self._is_over = True
            profiler, self._profiler = self._profiler, None
            profiler.stop()  # writes the trace, unless the last step has

    def _start(self, steps: int) -> None:
        warm_up = 1 if steps + 1 < self._profile.first else 0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Profiler won't be using warmup")  # there is no step before the first
            schedule = torch.profiler.schedule(
                wait=0, warmup=warm_up, active=self._profile.last - steps - warm_up, repeat=1
            )
        self._steps = steps
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=self._write,
            record_shapes=self._profile.shapes,
            profile_memory=self._profile.memory,
        )
        self._profiler.start()

    def _write(self, profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(str(self._path))
        path = self._path
        if path.stat().st_size > _COMPRESSED_FROM:
            path = path.with_name(path.name + ".gz")
            with self._path.open("rb") as source, gzip.open(path, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target)
            self._path.unlink()
        logger.info("the profile is %s: open it at https://ui.perfetto.dev", path)
