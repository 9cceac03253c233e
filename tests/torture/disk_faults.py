"""R5: the disk is full, over quota or fails at each operation of a save, and the run goes on.

Every operation of the file system, and the middle of every write, fails once. What was saved before must be there as it
was, everything that looks finished must be valid, the error must say what the system said and what to do, and the next
save must succeed once the disk is well again, without anything left of the one that failed.

    python -m tests.torture.disk_faults [--saves 4]
"""

from __future__ import annotations

import argparse
import errno
import itertools
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

from smddp.checkpoint.retention import which_stay
from smddp.errors import CheckpointError
from tests.torture.outcome import Outcome
from tests.torture.stored_run import KEEP, StoredRun, loaded_step, score_of, untrustworthy
from tests.torture.watched_files import Countdown, FullDisk, WatchedFiles, fail

INTERVAL = 10
ADVICE = {errno.ENOSPC: "free some space", errno.EDQUOT: "free some space", errno.EIO: "dmesg", errno.EROFS: "writable"}


def fail_at_each_operation(*, saves: int, directory: Path) -> Outcome:
    """Let each of the first saves of a run fail at each of its operations, in each way.

    Args:
        saves: how many; the third one prunes.
        directory: an empty one.
    """
    outcomes = [
        fail_in_a_save(number, code, lasting=lasting, directory=directory)
        for number in range(saves)
        for code in ADVICE
        for lasting in (False, True)
    ]
    return Outcome(
        done=sum(each.done for each in outcomes),
        unit="faults",
        notes=f"{', '.join(errno.errorcode[code] for code in ADVICE)}, in each of {saves} saves",
        failures=tuple(failure for each in outcomes for failure in each.failures),
    )


def fail_in_a_save(number: int, code: int, *, lasting: bool, directory: Path) -> Outcome:
    """Let one save of a run fail at each of its operations.

    Args:
        number: how many were saved before.
        code: what the system says.
        lasting: all that needs space fails from then on, as on a full disk, and not only one operation.
        directory: where to make others.
    """
    name = f"{errno.errorcode[code]}{' lasting' if lasting else ''} in save {number}"
    before = [INTERVAL * (index + 1) for index in range(number)]
    prepared = directory / name
    prepared.mkdir()
    run = StoredRun(prepared)
    for earlier in before:
        run.save(earlier)
    failures: list[str] = []
    for point in itertools.count():
        root = directory / f"{name}, {point}"
        shutil.copytree(prepared, root)
        watch = FullDisk(point, code) if lasting else Countdown(point, fail(code))
        found = _disturb(root / "place" if number == 0 else root, before, watch, code)
        shutil.rmtree(root)
        if watch.points <= point:  # all went well: it has fewer operations
            return Outcome(done=point, unit="faults", failures=tuple(failures))
        failures += [f"{name}, at {point}: {text}" for text in found]
    raise AssertionError


def _disturb(root: Path, before: list[int], watch: Countdown | FullDisk, code: int) -> list[str]:
    """Save while the disk fails, and again when it does not; say what is wrong."""
    files = WatchedFiles(watch)
    run = StoredRun(root, life=1, files=files)
    last, step = ([0, *before])[-1], INTERVAL * (len(before) + 1)
    error = ""
    try:
        run.save(step)
    except CheckpointError as raised:
        error = str(raised)
    files.before = lambda operation: None  # the disk is well again

    wrong = untrustworthy(root)
    loaded = loaded_step(root)
    if loaded not in ((last, step) if error else (step,)):
        wrong.append(f"loaded step {loaded} after {error or 'no error'!r}")
    if error and (os.strerror(code) not in error or ADVICE[code] not in error):
        wrong.append(f"the error does not help: {error!r}")
    run.save(step + INTERVAL)
    wrong += untrustworthy(root)
    if (found := loaded_step(root)) != step + INTERVAL:
        wrong.append(f"loaded step {found} after the disk was well again")
    saved = {*before, loaded, step + INTERVAL} - {0}
    expected = sorted(which_stay({saved: score_of(saved) for saved in saved}, KEEP))
    if run.store.steps() != expected or any(len(run.store.attempts(step)) != 1 for step in expected):
        wrong.append(f"left {sorted(map(str, root.rglob('*')))} instead of {expected}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--saves", type=int, default=4)
    arguments = parser.parse_args()
    logging.getLogger("smddp").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        outcome = fail_at_each_operation(saves=arguments.saves, directory=Path(directory))
    print(outcome)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
