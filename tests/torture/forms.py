"""The long forms: which promise each is about, how often it is done unless one says otherwise, and what does it.

What they need is imported only where they run, which is a process of their own.
"""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.torture.outcome import Outcome

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One long form."""

    promises: tuple[str, ...]
    """What each of its outcomes is about."""
    title: str
    option: str
    """What its count is called on the command line."""
    count: int
    """How often, unless one says otherwise."""
    run: Callable[[int, int, Path], tuple[Outcome, ...]]
    """Given the count, a seed, and a directory that is empty."""


def be_quiet() -> None:
    """Leave the log to those who look into it: it warns of what is done here on purpose."""
    logging.getLogger().addHandler(logging.NullHandler())


def kill_one_rank(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill import kill_at_random

    return (kill_at_random(kills=count, seed=seed, directory=directory),)


def kill_two_ranks(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill import kill_at_random

    return (kill_at_random(kills=count, seed=seed, directory=directory, ranks=2),)


def kill_sharded(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill import kill_at_random

    return (kill_at_random(kills=count, seed=seed, directory=directory, ranks=2, sharded=True),)


def kill_at_each_operation(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill_points import kill_at_each_operation

    return kill_at_each_operation(saves=count, directory=directory)


def kill_sharded_at_each_operation(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.kill_points import SHARDED, kill_at_each_operation

    return kill_at_each_operation(saves=count, directory=directory, layout=SHARDED)


def damage(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.damage import damage_at_random

    return (damage_at_random(count=count, seed=seed, directory=directory),)


def lose_power(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.crash import lose_power

    return (lose_power(disks=count, seed=seed, directory=directory),)


def fail_at_each_operation(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.disk_faults import fail_at_each_operation

    return (fail_at_each_operation(saves=count, directory=directory),)


def s3_faults(count: int, seed: int, _directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.s3_faults import s3_faults

    return (s3_faults(count, seed),)


def two_writers(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.two_writers import two_writers

    return (two_writers(meetings=count, seed=seed, directory=directory),)


def change_ranks(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.elastic import change_ranks

    return change_ranks(interruptions=count, seed=seed, directory=directory)


def reshard(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.elastic import reshard

    return reshard(chains=count, seed=seed, directory=directory)


def cost(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.cost import cost

    return (cost(count=count, directory=directory),)


@dataclass(frozen=True, slots=True)
class TestsPass:
    """A form that needs no chance: tests that try all there is, run so many times."""

    nodes: tuple[str, ...]
    """What to give to pytest."""

    def __call__(self, count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
        """Run them."""
        passed, failures = 0, []
        for number in range(count):
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", f"--basetemp={directory / str(number)}", *self.nodes],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            found = re.search(r"(\d+) passed", run.stdout)
            passed += int(found[1]) if found else 0
            if run.returncode:
                failures.append(f"{' '.join(self.nodes)}: {run.stdout[-2000:]}{run.stderr[-2000:]}")
        return (Outcome(done=passed, unit="tests", failures=tuple(failures)),)


_CHECKPOINT = "tests/smddp/checkpoint"


def kill_platforms(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.platform_kills import kill_platforms

    return (kill_platforms(kills=count, seed=seed, directory=directory),)


def restart_platforms(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.platform_restarts import kill_servers

    return (kill_servers(kills=count, seed=seed, directory=directory),)


def run_jobs_at_once(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from estimators.local import LocalSageMaker
    from tests.torture.many_jobs import run_at_once

    with LocalSageMaker(directory) as platform:
        return (run_at_once(platform, jobs=count),)


def race_stops(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from estimators.local import LocalSageMaker
    from tests.torture.stop_races import race_stops

    with LocalSageMaker(directory) as platform:
        return (race_stops(platform, races=count, seed=seed),)


def fuzz_requests(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from estimators.local import LocalSageMaker
    from tests.torture.request_fuzz import fuzz

    with LocalSageMaker(directory) as platform:
        return (fuzz(platform, requests=count, seed=seed),)


def name_culprits(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.hangs import name_culprits

    return (name_culprits(directory, faults=count, seed=seed),)


def flip_bits(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.flips import flip_bits

    return (flip_bits(directory, flips=count, seed=seed),)


def compare_undisturbed(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.flips import compare_undisturbed

    return (compare_undisturbed(directory, steps=count),)


def disturb_nothing(count: int, _seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.hangs import disturb_nothing

    return (disturb_nothing(directory, steps=count),)


def keep_ledgers(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.goodput import lead_lives, outcome

    return (outcome(lead_lives(directory / "runs", lives=count, seed=seed)),)


def kill_warm_starts(count: int, seed: int, directory: Path) -> tuple[Outcome, ...]:
    from tests.torture.warm_starts import kill_warm_starts

    return (kill_warm_starts(directory, kills=count, seed=seed),)


FORMS = (
    Form(promises=("R1",), title="SIGKILL at random", option="kills", count=200, run=kill_one_rank),
    Form(promises=("R1",), title="SIGKILL at random, two ranks", option="kills-of-two", count=50, run=kill_two_ranks),
    Form(
        promises=("R1",),
        title="SIGKILL at random, two ranks of a sharded model",
        option="kills-of-sharded",
        count=50,
        run=kill_sharded,
    ),
    Form(
        promises=("R2, R10", "R2, R10"),
        title="SIGKILL at each operation of a save and of pruning",
        option="killed-saves",
        count=6,
        run=kill_at_each_operation,
    ),
    Form(
        promises=("R2, R10", "R2, R10"),
        title="the same, on each of two ranks that divide the state",
        option="killed-sharded-saves",
        count=3,
        run=kill_sharded_at_each_operation,
    ),
    Form(promises=("R3",), title="damage to any byte", option="damages", count=5000, run=damage),
    Form(promises=("R4",), title="power lost after any operation", option="crashes", count=5000, run=lose_power),
    Form(
        promises=("R5",),
        title="the disk fails at each operation",
        option="failed-saves",
        count=4,
        run=fail_at_each_operation,
    ),
    Form(promises=("R6",), title="S3 fails at any request", option="s3-faults", count=300, run=s3_faults),
    Form(
        promises=("R7",),
        title="one rank of several fails",
        option="rank-failures",
        count=3,
        run=TestsPass((f"{_CHECKPOINT}/test_several_ranks.py",)),
    ),
    Form(promises=("R8",), title="two writers of one step", option="meetings", count=200, run=two_writers),
    Form(
        promises=("R8",),
        title="two writers of 25 steps in S3",
        option="s3-meetings",
        count=4,
        run=TestsPass((f"{_CHECKPOINT}/stores/test_s3.py::test_of_two_writers_one_commits_each_step",)),
    ),
    Form(
        promises=("R9", "R12"),
        title="other numbers of ranks, SIGTERM and SIGKILL",
        option="interruptions",
        count=200,
        run=change_ranks,
    ),
    Form(
        promises=("R9", "R12"),
        title="other layouts of a sharded model, SIGTERM and SIGKILL",
        option="resharding-chains",
        count=100,
        run=reshard,
    ),
    Form(
        promises=("R13",),
        title="SIGKILL takes any process of a local platform",
        option="platform-kills",
        count=20,
        run=kill_platforms,
    ),
    Form(
        promises=("R14",),
        title="SIGKILL takes a local platform's server",
        option="platform-restarts",
        count=50,
        run=restart_platforms,
    ),
    Form(
        promises=("R15",),
        title="many jobs at once on a local platform",
        option="jobs-at-once",
        count=50,
        run=run_jobs_at_once,
    ),
    Form(promises=("R16",), title="a stop races the job's end", option="stop-races", count=200, run=race_stops),
    Form(
        promises=("R17",),
        title="CreateTrainingJob drawn at random, and damaged",
        option="fuzzed-requests",
        count=5000,
        run=fuzz_requests,
    ),
    Form(
        promises=("R18",),
        title="one rank hangs, dies or takes another collective",
        option="hangs",
        count=200,
        run=name_culprits,
    ),
    Form(
        promises=("R18",),
        title="nothing hangs: the watchdog is silent",
        option="undisturbed-steps",
        count=100_000,
        run=disturb_nothing,
    ),
    Form(promises=("R19",), title="a bit of one replica flips", option="flipped-bits", count=300, run=flip_bits),
    Form(
        promises=("R19",),
        title="nothing flips: no alarm",
        option="compared-steps",
        count=10_000,
        run=compare_undisturbed,
    ),
    Form(
        promises=("R20",),
        title="the goodput ledger through stops, kills, hangs and restarts",
        option="goodput-lives",
        count=50,
        run=keep_ledgers,
    ),
    Form(
        promises=("R21",),
        title="SIGKILL of a warm parent, a rank or their launcher",
        option="warm-starts",
        count=300,
        run=kill_warm_starts,
    ),
    Form(promises=("R11",), title="what it costs training", option="measurements", count=3, run=cost),
)
