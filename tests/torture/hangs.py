"""R18: a fault in one rank of a job is named, with its rank and kind, within seconds; an undisturbed job is left alone.

Each life is a real job of 2 or 4 ranks, started by ``smddp run``, whose Pythons are forked. Kind, phase, step and rank
of its fault are drawn by the seed.

    python -m tests.torture.hangs [--faults 200] [--steps 100000] [--seed 0] [--together 4] [--after 2]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smddp.process import process_tree
from smddp.watch.watchdog import REPORT
from tests.fork_python import TORCH, ForkPython
from tests.torture.outcome import Outcome

JOB = Path(__file__).with_name("hanging_job.py")
_AFTER = 2.0
"""The watchdog's bound in seconds. A rank that gets no core for so long counts as one that hangs."""
_LATEST_SECONDS = 10.0
"""How long after the bound a fault must be named."""
_END_SECONDS = 300.0
_UNDISTURBED_SECONDS = 3600.0
_TOGETHER = 4
_MOST_LOG = 4000
"""Characters of the log of a life that was judged wrongly."""
_STEPS = 40
_IN_STEP = ("script", "forward", "backward", "optimizer", "evaluation")
_IN_LOADER = ("data", "worker")
_ANYWHERE = (*_IN_STEP, "data", "save")
_GIL = "native call with the GIL"
_WARNED = re.compile(r" slow: rank (\d+) .*torch\.save\(")
_OF = r" \(rank {rank} of {world_size} on "
_KILLED = r"Rank {rank} of {world_size} on \S+ was killed by "
_BY_SIGKILL = r"SIGKILL, by a person or a program: the kernel has counted no OOM kill"
_UNEQUAL = r"(?:Hang \(unequal steps\)|Unequal steps): rank {rank} o[fn] .* after {step} optimizer steps, and rank "
_WORKER_KILLED = rf"(?:RuntimeError: DataLoader worker|\w+Error).*{_OF}(?s:.*)\nA DataLoader worker "
_RAISED = r"(?:.*: )?ValueError: (?s:.*)injected(?s:.*)" + _OF


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault, and what must be said of it."""

    name: str
    """As the table of results calls it."""
    fault: str
    phases: Sequence[str]
    reason: str
    """The pattern with which the job's failure begins; of ``rank``, ``world_size`` and ``step``."""
    waits: bool = True
    """Whether the fault is only known once the watchdog's bound is over."""


def _hang(kind: str) -> str:
    return rf"Hang \({kind}\): rank {{rank}} on "


KINDS = (
    *(
        Kind(name=f"{each}, {where}", fault=each, phases=phases, reason=_hang(kind))
        for each in ("sleep", "lock that is never released", "native call")
        for where, phases, kind in (
            ("in a step", _IN_STEP, "blocking call"),
            ("in a loader", _IN_LOADER, "loader stall"),
        )
    ),
    Kind(name="SIGSTOP of a worker", fault="SIGSTOP", phases=("worker",), reason=_hang("loader stall")),
    Kind(name="SIGSTOP", fault="SIGSTOP", phases=_ANYWHERE, reason=_hang("stopped process")),
    Kind(name=_GIL, fault=_GIL, phases=_ANYWHERE, reason=_hang("native block")),
    Kind(name="early end", fault="early end", phases=("script", "evaluation"), reason=_UNEQUAL),
    *(
        Kind(name=each, fault=each, phases=("collective",), reason=r"Hang \(mismatched collective\): ")
        for each in ("skipped collective", "other collective", "other shape", "other type")
    ),
    Kind(name="full FIFO", fault="full FIFO", phases=("script", "evaluation", "save"), reason=""),
    Kind(name="SIGKILL", fault="SIGKILL", phases=_ANYWHERE, reason=_KILLED + _BY_SIGKILL, waits=False),
    *(
        Kind(
            name=name,
            fault=name,
            phases=_ANYWHERE,
            reason=rf"{_KILLED}{name}.*: Fatal Python error: {printed}\n(?s:.*)hanging_job\.py:\d+ {where}: ",
            waits=False,
        )
        for name, printed, where in (
            ("SIGABRT", "Aborted", "happen"),
            ("SIGSEGV", "Segmentation fault", "happen"),
            ("SIGBUS", "Bus error", "_read_past_the_end"),
        )
    ),
    *(
        Kind(
            name=f"{name} of a worker",
            fault=name,
            phases=("worker",),
            reason=rf"{_WORKER_KILLED}(?:ended|was killed by {how})",
            waits=False,
        )
        for name, how in (("SIGKILL", _BY_SIGKILL), ("SIGBUS", "SIGBUS, often because /dev/shm is full; it has "))
    ),
    Kind(name="exception", fault="exception", phases=(*_ANYWHERE, "worker"), reason=_RAISED, waits=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One job and its fault."""

    kind: Kind
    world_size: int
    plan: dict[str, Any]


def draw(count: int, seed: int, after: float = _AFTER) -> list[Life]:
    """Draw lives, of each kind equally many, with this bound of the watchdog."""
    chance = random.Random(seed)
    kinds = list(KINDS)
    lives = []
    for number in range(count):
        if number % len(kinds) == 0:
            chance.shuffle(kinds)
        kind, world_size = kinds[number % len(kinds)], chance.choice((2, 4))
        phase = chance.choice(kind.phases)
        plan = {"after": after, "steps": _STEPS, "fault": kind.fault, "phase": phase}
        plan |= {"rank": chance.randrange(world_size), "step": chance.randrange(1, _STEPS // 2)}
        plan |= {"workers": int(phase == "worker")}
        lives.append(Life(kind=kind, world_size=world_size, plan=plan))
    return lives


@contextmanager
def forked_program(directory: Path) -> Iterator[Path]:
    """Yield an ``smddp`` whose Pythons, and those of its ranks, are forked."""
    directory.mkdir(exist_ok=True)
    python = ForkPython(directory / "python", modules=TORCH)
    try:
        yield Path(python.programs) / "smddp"
    finally:
        python.close()


def start(program: Path, directory: Path, world_size: int, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a job in a new directory, with what it says in ``log``."""
    directory.mkdir()
    command = [program, "run", "--processes-per-node", str(world_size), "--run-dir", "run", JOB]
    # torch asks DNS for the name of each peer, and waits 5 s for a lost answer: longer than the watchdog's bound.
    environ = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", "HANGING_JOB": json.dumps(plan)}
    with (directory / "log").open("w") as log:
        return subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, env=environ)


def wait(job: subprocess.Popen[bytes], directory: Path, seconds: float = _END_SECONDS) -> int | None:
    """Return a job's exit code, None if it did not end; empty its FIFO once the watchdog has warned of it."""
    end = time.monotonic() + seconds
    while job.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
        if (fifo := directory / "fifo").exists() and _WARNED.search((directory / "log").read_text()):
            (directory / "warned").touch()
            fifo.read_bytes()
            fifo.unlink()
    if job.returncode is None:
        job.terminate()
        try:
            job.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        return None
    return job.returncode


def judge(life: Life, directory: Path, code: int | None) -> tuple[float | None, str]:
    """Return the seconds to the verdict, past the bound if there is one, and what is wrong with it; empty: nothing."""
    output = directory / "run" / "output"
    failure = (output / "failure").read_text() if (output / "failure").exists() else ""
    if not (directory / "fault").exists():
        return None, f"the fault did not happen, exit code {code}: {failure}"
    happened, step, process, started = (directory / "fault").read_text().split()
    if str(process_tree.started(int(process))) == started:  # a worker that hangs outlives its rank
        os.kill(int(process), signal.SIGKILL)
    rank, world_size = life.plan["rank"], life.world_size
    report = json.loads((output / REPORT).read_text()) if (output / REPORT).exists() else None
    if life.kind.reason:
        named, problems = output / (REPORT if report else "failure"), []
        if code in (0, 75, None):
            problems.append(f"exit code {code}")
        if not re.match(life.kind.reason.format(rank=rank, world_size=world_size, step=step), failure):
            problems.append(f"the failure is {failure!r}")
        if "mismatched" in life.kind.reason and report:
            culprits = [rank] if world_size > 2 else list(range(world_size))
            if report["verdict"]["ranks"] != culprits:
                problems.append(f"the culprits are {report['verdict']['ranks']}")
    else:
        named, problems = directory / "warned", []
        warned = _WARNED.search((directory / "log").read_text())
        if code or failure or report or not warned or int(warned[1]) != rank:
            problems.append(f"exit code {code}, warned of {warned and warned[1]}: {failure}")
    if not named.exists():
        return None, "; ".join(problems) or "no verdict"
    seconds = named.stat().st_mtime - float(happened) - (life.plan["after"] if life.kind.waits else 0)
    if seconds > _LATEST_SECONDS:
        problems.append(f"named {seconds:.1f} s past the bound")
    return seconds, "; ".join(problems)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one life."""

    life: Life
    seconds: float | None
    problem: str


def inject(directory: Path, *, faults: int, seed: int, together: int, after: float = _AFTER) -> list[Result]:
    """Run so many jobs with a fault each, some at once; keep the directories of those that were judged wrongly."""

    def live(numbered: tuple[int, Life]) -> Result:
        number, life = numbered
        own = directory / str(number)
        code = wait(start(program, own, life.world_size, life.plan), own)
        seconds, problem = judge(life, own, code)
        if not problem:
            shutil.rmtree(own)
            return Result(life, seconds, "")
        log = (own / "log").read_text()[-_MOST_LOG:]
        return Result(life, seconds, f"{own}: {life.plan} of {life.world_size} ranks: {problem}; its log:\n{log}")

    with forked_program(directory) as program, ThreadPoolExecutor(together) as pool:
        return list(pool.map(live, enumerate(draw(faults, seed, after))))


def disturb_nothing(directory: Path, *, steps: int, together: int = 2, after: float = _AFTER) -> Outcome:
    """Run jobs without a fault, so many steps in all: evaluation, checkpoints, compilation, a loader slow at times."""
    kinds = [(world_size, workers) for world_size in (2, 4) for workers in (0, 1)]
    share = -(-steps // len(kinds))

    def live(kind: tuple[int, int]) -> tuple[int, str]:
        world_size, workers = kind
        own = directory / f"{world_size}-{workers}"
        plan = {"after": after, "steps": share, "workers": workers, "pause_every": 10_000, "compiles": not workers}
        code = wait(start(program, own, world_size, plan), own, _UNDISTURBED_SECONDS)
        done = int(text) if (text := (own / "steps-0").read_text() if (own / "steps-0").exists() else "") else 0
        log = (own / "log").read_text()
        told = [line for line in log.splitlines() if " hang: " in line]
        is_bad = code or told or (own / "run" / "output" / REPORT).exists()
        return done, f"{world_size} ranks, {workers} workers: exit code {code}: {told or log[-1000:]}" if is_bad else ""

    with forked_program(directory) as program, ThreadPoolExecutor(together) as pool:
        results = list(pool.map(live, kinds))
    failures = tuple(problem for _, problem in results if problem)
    return Outcome(done=sum(done for done, _ in results), unit="steps", notes="no false alarm", failures=failures)


def name_culprits(directory: Path, *, faults: int, seed: int, together: int = _TOGETHER) -> Outcome:
    """Inject faults into jobs, and compare what is said of each with what it was."""
    results = inject(directory, faults=faults, seed=seed, together=together)
    seconds = [each.seconds for each in results if each.seconds is not None]
    return Outcome(
        done=len(results),
        unit="faults",
        notes=f"{len(KINDS)} kinds, 2 and 4 ranks; verdict at most {max(seconds, default=0):.1f} s past the bound",
        failures=tuple(each.problem for each in results if each.problem),
    )


def table(results: Sequence[Result]) -> str:
    """Return the results by kind of fault, as lines of a table."""
    lines = ["| fault | injected | right | median, slowest seconds |", "|---|---|---|---|"]
    for name in dict.fromkeys(each.name for each in KINDS):
        found = [each for each in results if each.life.kind.name == name]
        seconds = sorted(each.seconds for each in found if each.seconds is not None) or [float("nan")]
        right = sum(not each.problem for each in found)
        lines.append(f"| {name} | {len(found)} | {right} | {statistics.median(seconds):.1f}, {seconds[-1]:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.hangs", allow_abbrev=False)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100_000, help="undisturbed ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=_TOGETHER, help="jobs side by side")
    parser.add_argument("--after", type=float, default=_AFTER, help="the watchdog's bound in seconds")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="smddp-hangs-"))
    started = time.monotonic()
    results = inject(
        directory / "faults",
        faults=arguments.faults,
        seed=arguments.seed,
        together=arguments.together,
        after=arguments.after,
    )
    wrong = [each.problem for each in results if each.problem]
    print(table(results), *wrong, f"{len(results)} faults, {time.monotonic() - started:.0f} s", sep="\n", flush=True)
    if arguments.steps:
        outcome = disturb_nothing(directory / "undisturbed", steps=arguments.steps, after=arguments.after)
        print(outcome, f"{time.monotonic() - started:.0f} s", sep="\n")
        wrong += outcome.failures
    if not wrong:
        shutil.rmtree(directory)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
