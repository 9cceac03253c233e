"""Measures one contender, with the yardsticks between its saves; a process of its own, which prints JSON.

python -m checkpointing.measure "DCP save" 200 /a/directory      (in benchmarks/)
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from checkpointing.contenders import CONTENDERS, Contender
from checkpointing.state import State, blank_like, copy, make_state, size_of, tensors_of, write_raw

ROUNDS = 4
"""How often one process measures each thing but the first save, the memory and the loop."""


_QUIET_SECONDS = 0.25  # of the loop alone, before a save and after it


def measure(name: str, megabytes: float, directory: Path, *, loops: int) -> dict[str, Any]:
    """Give lists of seconds, rates and bytes by what was measured."""
    make = CONTENDERS[name]
    _load_code(make, directory / "code")
    saves = directory / "saves"
    saves.mkdir()
    state = make_state(megabytes)
    resident = _memory("VmRSS")
    _forget_peak()
    contender = make(state, saves)
    first_stall, first_durable = _save(contender, step=1)
    _save(contender, step=2)
    found: dict[str, Any] = {
        "state": size_of(state),
        "first stall": [first_stall],
        "first durable": [first_durable],
        "memory": [_memory("VmHWM") - resident],
    }
    contender.forget(1)
    found |= _against_yardsticks(contender, state, directory / "raw", first_step=3)
    found |= _beside_loops(contender, state, directory / "raw", first_step=3 + ROUNDS, count=loops)
    contender.close()
    return found


def _against_yardsticks(contender: Contender, state: State, raw: Path, *, first_step: int) -> dict[str, list[float]]:
    buffers = blank_like(state)
    threads = torch.get_num_threads()
    seconds: dict[str, list[float]] = {
        kind: [] for kind in ("memcpy 1 thread", "memcpy", "raw write", "stall", "durable", "load")
    }
    for step in range(first_step, first_step + ROUNDS):
        for kind, count in ("memcpy 1 thread", 1), ("memcpy", threads):
            _settle()  # as before a save: neither finds its core awake, nor OpenMP's threads spinning
            seconds[kind].append(_timed(copy, state, buffers, count))
        _bring_memory(state, raw)
        _settle()
        seconds["raw write"].append(_timed(write_raw, state, raw))
        raw.unlink()
        stall, durable = _save(contender, step=step)
        seconds["stall"].append(stall)
        seconds["durable"].append(durable)
        contender.forget(step - 1)
        contender.prepare_load()
        loaded = contender.load(step)  # this first load takes memory of the host too
        _check(loaded, state)
        del loaded
        contender.prepare_load()
        _settle()
        started = time.perf_counter()
        loaded = contender.load(step)
        seconds["load"].append(time.perf_counter() - started)
        del loaded
    return seconds


def _bring_memory(state: State, raw: Path) -> None:
    """Write once: this takes memory that a virtual machine's host may have to bring; what follows finds it there."""
    write_raw(state, raw)
    raw.unlink()


def _beside_loops(
    contender: Contender, state: State, raw: Path, *, first_step: int, count: int
) -> dict[str, list[float]]:
    """Give what a save does to the loop beside it, each a part of its steps, and the worst gaps in seconds."""
    measured: dict[str, list[float]] = {kind: [] for kind in ("loop", "loop on its core", "gap")}
    for step in range(first_step, first_step + count):
        _bring_memory(state, raw)
        before, beside, after = _beside_a_loop(contender, step=step)
        measured["loop"].append(2 * beside.rate / (before.rate + after.rate))
        measured["loop on its core"].append(
            2 * beside.rate_on_its_core / (before.rate_on_its_core + after.rate_on_its_core)
        )
        measured["gap"].append(beside.gap)
        contender.forget(step - 1)
    return measured


def _load_code(make: type[Contender], directory: Path) -> None:
    """Save something tiny once: what a contender imports is neither a part of its memory nor of its first save."""
    directory.mkdir()
    contender = make(make_state(0.1), directory)
    _save(contender, step=1)
    contender.prepare_load()
    contender.load(1)
    contender.close()


def _save(contender: Contender, *, step: int) -> tuple[float, float]:
    """Give the seconds that `save` took, and those until all was durable."""
    _settle()
    started = time.perf_counter()
    contender.save(step)
    returned = time.perf_counter()
    contender.wait()
    return returned - started, time.perf_counter() - started


def _settle() -> None:
    """Let what came before be over: the disk still frees what was removed, and OpenMP's threads spin for a while."""
    os.sync()
    time.sleep(0.2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """How a loop went."""

    steps: int
    seconds: float
    queued: float
    """Seconds in which it waited for a core, which is for other threads or processes."""
    gap: float
    """The longest time between two steps, in seconds."""

    @property
    def rate(self) -> float:
        """Steps a second."""
        return self.steps / self.seconds

    @property
    def rate_on_its_core(self) -> float:
        """Steps a second but for the wait for a core: what is left is the GIL, caches and memory."""
        return self.steps / (self.seconds - self.queued)


def _beside_a_loop(contender: Contender, *, step: int) -> tuple[Loop, Loop, Loop]:
    """Give a loop alone, one beside a save after its stall, and one alone again."""
    _settle()
    before = _launch_loop(_for_seconds(_QUIET_SECONDS))
    if contender.asynchronous:
        contender.save(step)
        beside = _launch_loop(contender.pending)
        contender.wait()
    else:
        thread = threading.Thread(target=contender.save, args=(step,))
        thread.start()
        beside = _launch_loop(thread.is_alive)
        thread.join()
    _settle()
    return before, beside, _launch_loop(_for_seconds(_QUIET_SECONDS))


def _launch_loop(goes_on: Callable[[], bool]) -> Loop:
    """Run a loop that does little but call torch, as one does that keeps a GPU busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    weights, values = torch.rand(64, 64) / 64, torch.rand(16, 64)
    steps, gap = 0, 0.0
    queued = _seconds_queued()
    started = last = time.perf_counter()
    while goes_on():
        for _ in range(8):
            values = torch.tanh(values @ weights)
        now = time.perf_counter()
        gap = max(gap, now - last)
        last = now
        steps += 1
    loop = Loop(steps=steps, seconds=time.perf_counter() - started, queued=_seconds_queued() - queued, gap=gap)
    torch.set_num_threads(threads)
    return loop


def _seconds_queued() -> float:
    """Return how long this thread has waited for a core so far (Documentation/scheduler/sched-stats.rst)."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _for_seconds(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end


def _check(loaded: State, state: State) -> None:
    found = dict(tensors_of(loaded))
    for name, tensor in tensors_of(state):
        assert torch.equal(found[name], tensor), f"{name} came back with other values"


def _timed(action: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started


def _memory(kind: str) -> int:
    """Bytes resident now (VmRSS), or at most since `_forget_peak` (VmHWM)."""
    found = re.search(rf"^{kind}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("megabytes", type=float)
    parser.add_argument("directory", type=Path, help="an empty one")
    parser.add_argument("--loops", type=int, default=5, help="how often to save beside a loop")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    print(json.dumps(measure(arguments.name, arguments.megabytes, arguments.directory, loops=arguments.loops)))


if __name__ == "__main__":
    main()
