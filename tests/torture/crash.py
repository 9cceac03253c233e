"""R4: the power is lost after any operation of a run that saves, saves again, fails and prunes.

All operations of a run are recorded. After each of them disks are made as they may look then, with a random part of
what was not made durable; see `tests.torture.disk`. On each of them all that looks finished must be valid to the last
byte, and the newest checkpoint whose save had returned, or one after it, must load. Some of these disks are where the
next life of the run begins, and it is recorded too.

The layout of each life is drawn: one process, or ranks that divide the state, and write to one disk.

    python -m tests.torture.crash [--disks 5000] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import itertools
import logging
import os
import pickle
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from smddp.errors import CheckpointError
from tests.torture.children import last_words, wait
from tests.torture.disk import Disk
from tests.torture.layout import Layout
from tests.torture.outcome import Outcome
from tests.torture.stored_run import StoredRun, loaded_step, untrustworthy
from tests.torture.watched_files import Operation, WatchedFiles

LIVES = 3  # of a run that began in an empty directory
ACTIONS = 4  # of a life
DISKS_AN_OPERATION = 3
OPERATIONS_OF_A_SAVE = 30, 15  # or so, on rank 0 and on another rank

WHOLE = (Layout(),)
SHARDED = (Layout(ranks=2, shard="all"), Layout(ranks=3, shard="all"), Layout(ranks=4, shard=2))


def lose_power(
    *, disks: int, seed: int, directory: Path, layouts: Sequence[Layout] = (*len(SHARDED) * WHOLE, *SHARDED)
) -> Outcome:
    """Lose the power until so many disks were looked at.

    Args:
        disks: how many.
        seed: from which all randomness follows.
        directory: an empty one.
        layouts: of the lives.
    """
    chance = random.Random(seed)
    failures: list[str] = []
    of_ranks: Counter[int] = Counter()
    looks = itertools.chain.from_iterable(_run(directory / f"run-{run}", chance, layouts) for run in itertools.count())
    for ranks, found in itertools.islice(looks, disks):
        of_ranks[ranks] += 1
        failures += [f"seed {seed}, {text}" for text in found]
        if len(failures) > 20:
            break
    notes = ", ".join(f"{count} of {ranks} rank(s)" for ranks, count in sorted(of_ranks.items()))
    return Outcome(done=of_ranks.total(), unit="disks", notes=notes, failures=tuple(failures))


def _run(directory: Path, chance: random.Random, layouts: Sequence[Layout]) -> Iterator[tuple[int, list[str]]]:
    """Give the number of ranks, and what is wrong, with each disk of all lives of a run."""
    place, durable = directory / "life-0", 0
    place.mkdir(parents=True)
    for life in range(LIVES):
        disk, layout = Disk(place), chance.choice(layouts)
        operations = _recorded(directory, life, layout, durable, chance)
        next_place, next_durable = directory / f"life-{life + 1}", 0
        birth = chance.randrange(len(operations))
        for number, (operation, durable) in enumerate(operations):
            disk.apply(operation)
            for copy in range(DISKS_AN_OPERATION):
                survivor = directory / "survivor"
                disk.survive(survivor, random.Random(chance.random()) if copy else None)
                where = f"{directory.name}, life {life}, {layout}, after {number}, {operation.kind}"
                wrong = _wrong(survivor / "checkpoints", durable)
                yield layout.ranks, [f"{where} of {operation.path.name}: {text}" for text in wrong]
                if number == birth and not next_place.exists():
                    survivor.rename(next_place)
                    next_durable = durable
                else:
                    shutil.rmtree(survivor)
        place, durable = next_place, next_durable
    shutil.rmtree(directory)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Action:
    """What all ranks of a life do next."""

    again: bool
    """Save the newest step once more, instead of the next."""
    failing_rank: int
    """The rank on which an operation fails."""
    fails_after: int
    """Which operation, from 1; 0: none."""


def _draw(layout: Layout, chance: random.Random) -> _Action:
    action = chance.choice(("go on", "go on", "again", "fail"))
    rank = chance.randrange(layout.ranks)
    fails_after = chance.randint(1, OPERATIONS_OF_A_SAVE[rank > 0]) if action == "fail" else 0
    return _Action(again=action == "again", failing_rank=rank, fails_after=fails_after)


def _recorded(
    directory: Path, life: int, layout: Layout, durable: int, chance: random.Random
) -> list[tuple[Operation, int]]:
    """Lead a life; give all operations of its ranks, and after each the newest step that is durable then."""
    actions = [_draw(layout, chance) for _ in range(ACTIONS)]
    record, root = directory / f"record-{life}", directory / f"life-{life}" / "checkpoints"
    ranks = layout.fork(lambda: _live(root, life, layout, actions, _Record(record)), directory, f"log-{life}")
    codes = wait(ranks)
    assert codes == [0] * layout.ranks, f"{codes}: {last_words(directory, f'log-{life}-*')}"
    operations: list[tuple[Operation, int]] = []
    with record.open("rb") as file:
        while file.peek(1):
            entry = pickle.load(file)
            if isinstance(entry, int):
                last, _ = operations.pop()
                durable = entry
            else:
                last = entry
            operations.append((last, durable))
    return operations


class _Record:
    """A file of all ranks' operations, and of the steps that are durable. An operation may fail.

    Each entry is one write, before the operation is done. So what one rank does after another has told it is behind it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.fails_after = 0

    def __call__(self, operation: Operation) -> None:
        self.fails_after -= 1
        if self.fails_after == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(operation.path))
        os.write(self._descriptor, pickle.dumps(operation))

    def is_durable(self, step: int) -> None:
        os.write(self._descriptor, pickle.dumps(step))


def _live(root: Path, life: int, layout: Layout, actions: Sequence[_Action], record: _Record) -> None:
    """Go on from the newest checkpoint, as a rank, and do some of what runs do."""
    rank, mesh = layout.join()
    run = StoredRun(root, life=life, files=WatchedFiles(record), on_durable=record.is_durable, mesh=mesh)
    for action in actions:
        step = run.step if action.again and run.step else run.step + 10
        record.fails_after = action.fails_after if rank == action.failing_rank else 0
        with contextlib.suppress(*[CheckpointError] if action.fails_after else []):
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
