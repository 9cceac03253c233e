"""R4: the power is lost after any operation of a run that saves, saves again, fails and prunes.

All operations of a run are recorded. After each of them disks are made as they may look then, with a random part of
what was not made durable; see `tests.torture.disk`. On each of them all that looks finished must be valid to the last
byte, and the newest checkpoint whose save had returned, or one after it, must load. Some of these disks are where the
next life of the run begins, and it is recorded too.

    python -m tests.torture.crash [--disks 5000] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from smddp.errors import CheckpointError
from tests.torture.disk import Disk
from tests.torture.outcome import Outcome
from tests.torture.stored_run import StoredRun, loaded_step, untrustworthy
from tests.torture.watched_files import Operation, WatchedFiles

LIVES = 3  # of a run that began in an empty directory
ACTIONS = 4  # of a life
DISKS_AN_OPERATION = 3
OPERATIONS_OF_A_SAVE = 30  # or so


def lose_power(*, disks: int, seed: int, directory: Path) -> Outcome:
    """Lose the power until so many disks were looked at.

    Args:
        disks: how many.
        seed: from which all randomness follows.
        directory: an empty one.
    """
    chance = random.Random(seed)
    failures: list[str] = []
    looks = itertools.chain.from_iterable(_run(directory / f"run-{run}", chance) for run in itertools.count())
    for found in itertools.islice(looks, disks):
        failures += [f"seed {seed}, {text}" for text in found]
        if len(failures) > 20:
            break
    return Outcome(done=disks, unit="disks", failures=tuple(failures))


def _run(directory: Path, chance: random.Random) -> Iterator[list[str]]:
    """Give what is wrong with each disk of all lives of a run."""
    place, durable = directory / "life-0", 0
    place.mkdir(parents=True)
    for life in range(LIVES):
        disk, record = Disk(place), _Record(durable)
        _live(place / "checkpoints", life, record, chance)
        next_place, next_durable = directory / f"life-{life + 1}", 0
        birth = chance.randrange(len(record.operations))
        for number, (operation, durable) in enumerate(record.operations):
            disk.apply(operation)
            for copy in range(DISKS_AN_OPERATION):
                survivor = directory / "survivor"
                disk.survive(survivor, random.Random(chance.random()) if copy else None)
                yield [
                    f"{directory.name}, life {life}, after {number}, {operation.kind} of {operation.path.name}: {text}"
                    for text in _wrong(survivor / "checkpoints", durable)
                ]
                if number == birth and not next_place.exists():
                    survivor.rename(next_place)
                    next_durable = durable
                else:
                    shutil.rmtree(survivor)
        place, durable = next_place, next_durable
    shutil.rmtree(directory)


class _Record:
    """All operations, and after each the newest step that is durable then. One of them may fail."""

    def __init__(self, durable: int) -> None:
        self.operations: list[tuple[Operation, int]] = []
        self.fails_after = -1
        self._durable = durable

    def __call__(self, operation: Operation) -> None:
        self.fails_after -= 1
        if self.fails_after == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))
        self.operations.append((operation, self._durable))

    def is_durable(self, step: int) -> None:
        self._durable = step
        last, _ = self.operations.pop()
        self.operations.append((last, step))


def _live(root: Path, life: int, record: _Record, chance: random.Random) -> None:
    """Go on from the newest checkpoint, and do some of what runs do."""
    run = StoredRun(root, life=life, files=WatchedFiles(record), on_durable=record.is_durable)
    for _ in range(ACTIONS):
        action = chance.choice(("go on", "go on", "again", "fail"))
        step = run.step if action == "again" and run.step else run.step + 10
        record.fails_after = chance.randint(1, OPERATIONS_OF_A_SAVE) if action == "fail" else -1
        with contextlib.suppress(CheckpointError):
            run.save(step)


def _wrong(root: Path, durable: int) -> list[str]:
    if found := untrustworthy(root):
        return found
    step = loaded_step(root)
    return [] if step >= durable else [f"loaded step {step} although step {durable} was durable"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--disks", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("smddp").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        outcome = lose_power(disks=arguments.disks, seed=arguments.seed, directory=Path(directory))
    print(outcome)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
