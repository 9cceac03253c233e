"""R8: two processes commit the same step at the same moment, and exactly one of them does.

Both write their files, meet, and commit. One succeeds, the other is told that it was too late, and the checkpoint is
the first one's to the last byte. It must be so where a file system has hard links and locks, and where it lacks either;
and also when both replace the same damaged checkpoint, for which locks are needed.

    python -m tests.torture.two_writers [--meetings 200] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.reader import read_checkpoint
from smddp.checkpoint.stores import AlreadyCommittedError
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.filesystem import FileSystem
from tests.smddp.checkpoint.by_hand import RUN, write_checkpoint
from tests.torture.outcome import Outcome

STEP = 7
_COMMITTED, _TOO_LATE = 10, 11  # exit codes
_processes = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a file system can do, and what lies in it."""

    links: bool = True
    locks: bool = True
    damaged: bool = False
    """A manifest that is to be replaced stands there."""


PLACES = Place(), Place(locks=False), Place(links=False), Place(damaged=True)


class MeetingFiles(FileSystem):
    """A file system in which a writer waits for the other just before it commits, and which may lack something."""

    def __init__(self, place: Place, meeting: Barrier, seconds: float) -> None:
        self._place = place
        self._meeting = meeting
        self._seconds = seconds

    def sync_directory(self, path: Path) -> None:
        if self._place.locks and path.name.startswith(RUN):  # the first that a commit flushes
            self._meet()
        super().sync_directory(path)

    def link(self, source: Path, target: Path) -> None:
        if not self._place.links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(target))
        if not self._place.locks:
            self._meet()
        super().link(source, target)

    def replace(self, source: Path, target: Path) -> None:
        time.sleep(0.01)  # in which the other, if it is not locked out, sees what stood there before
        super().replace(source, target)

    @contextlib.contextmanager
    def lock(self, path: Path) -> Iterator[None]:
        with super().lock(path) if self._place.locks else contextlib.nullcontext():
            yield

    def _meet(self) -> None:
        self._meeting.wait(60)
        time.sleep(self._seconds)


def two_writers(*, meetings: int, seed: int, directory: Path) -> Outcome:
    """Let two processes meet so many times, in each kind of place in turn.

    Args:
        meetings: how many.
        seed: of the small differences in time with which they commit.
        directory: an empty one.
    """
    chance, failures = random.Random(seed), []
    for number in range(meetings):
        place = PLACES[number % len(PLACES)]
        root = directory / f"meeting-{number}"
        found = meet(place, root, [chance.choice((0.0, chance.uniform(0.0, 0.0005))) for _ in range(2)])
        failures += [f"{place}: {text}" for text in found]
        shutil.rmtree(root)
    return Outcome(done=meetings, unit="meetings", notes=f"in {len(PLACES)} places", failures=tuple(failures))


def meet(place: Place, root: Path, seconds: list[float]) -> list[str]:
    """Let two processes commit the same step, each so many seconds after they met; say what is wrong then."""
    damaged = DirectoryStore(root).path(STEP)
    if place.damaged:
        Path(damaged).mkdir(parents=True)
        Path(damaged, "manifest.json").write_bytes(b"damaged")
    meeting = _processes.Barrier(2)
    writers = [
        _processes.Process(target=_write, args=(root, writer + 1, MeetingFiles(place, meeting, seconds[writer])))
        for writer in range(2)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    codes = [process.exitcode for process in writers]
    if sorted(map(str, codes)) != [str(_COMMITTED), str(_TOO_LATE)]:
        return [f"they ended with {codes}"]
    store = DirectoryStore(root)
    winner = codes.index(_COMMITTED) + 1
    loaded = read_checkpoint(store, STEP)
    if loaded.manifest.directory != f"{RUN}-{winner:04}" or loaded.unflatten("model") != {"writer": winner}:
        return [f"writer {winner} committed, and {loaded.manifest} is there"]
    if store.attempts(STEP) != [loaded.manifest.directory]:
        return [f"{store.attempts(STEP)} are left"]
    return []


def _write(root: Path, writer: int, files: FileSystem) -> None:
    store = DirectoryStore(root, files=files)
    try:
        manifest = write_checkpoint(store, STEP, {"model": {"writer": writer}}, attempt=writer)
    except AlreadyCommittedError:
        store.discard(STEP, f"{RUN}-{writer:04}")
        os._exit(_TOO_LATE)
    assert isinstance(manifest, Manifest)
    os._exit(_COMMITTED)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--meetings", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = two_writers(meetings=arguments.meetings, seed=arguments.seed, directory=Path(directory))
    print(outcome)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
