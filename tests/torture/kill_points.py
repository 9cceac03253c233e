"""R2 and R10: killed at each operation of a save, of a second save of the same step and of pruning, a run goes on.

Every operation of the file system is a point at which the process dies by SIGKILL once, and so is the middle of every
write. Then the newest checkpoint must be the one that was being saved or the one before, everything that looks finished
must be valid to the last byte, and the next life must save, prune and leave nothing unfinished behind.

    python -m tests.torture.kill_points [--saves 6]
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from smddp.checkpoint.retention import which_stay
from tests.torture.outcome import Outcome
from tests.torture.stored_run import KEEP, StoredRun, loaded_step, score_of, untrustworthy
from tests.torture.watched_files import Countdown, WatchedFiles, die

INTERVAL = 10


def kill_at_each_operation(*, saves: int, directory: Path) -> tuple[Outcome, Outcome]:
    """Kill each of the first saves of a run, and each once more when its step is saved a second time.

    Returns:
        What came of the first saves of each step, the kills within pruning among them; what came of the second ones.
    """
    both = [
        [kill_in_a_save(number, again=again, directory=directory) for number in range(again, saves)]
        for again in (False, True)
    ]
    first, second = [
        Outcome(
            done=sum(each.done for each in outcomes),
            unit="kills",
            notes=f"at each operation of {len(outcomes)} saves",
            failures=tuple(failure for each in outcomes for failure in each.failures),
        )
        for outcomes in both
    ]
    return first, second


def kill_in_a_save(number: int, *, again: bool = False, directory: Path) -> Outcome:
    """Kill one save of a run at each of its operations.

    Args:
        number: how many steps were saved before. The third save, for which it is 2, removes the first checkpoint.
        again: save the last of these steps once more, instead of the next.
        directory: where to make others.
    """
    before = [INTERVAL * (index + 1) for index in range(number)]
    step = INTERVAL * number if again else INTERVAL * (number + 1)
    name = f"save {number}{' again' if again else ''}"
    prepared = directory / name
    prepared.mkdir()
    run = StoredRun(prepared)
    for earlier in before:
        run.save(earlier)
    points, failures = _save_in_a_child(_copy(prepared, directory / f"{name}, whole"), step, kill_at=None), []
    for point in range(points):
        root = _copy(prepared, directory / f"{name}, {point}")
        _save_in_a_child(root, step, kill_at=point)
        failures += [f"{name}, killed at {point}: {text}" for text in _aftermath(root, before, step)]
        shutil.rmtree(root)
    return Outcome(done=points, unit="kills", failures=tuple(failures))


def _aftermath(root: Path, before: list[int], step: int) -> list[str]:
    """Say what is wrong with what a kill left, and with the next life."""
    failures = untrustworthy(root)
    allowed = {step, before[-1] if before else 0}
    if (found := loaded_step(root)) not in allowed:
        failures.append(f"loaded step {found}, not one of {allowed}")
    again, later = StoredRun(root, life=2), [step, step + INTERVAL]
    for next_step in later:
        again.save(next_step)
    if (found := loaded_step(root)) != later[-1]:
        failures.append(f"loaded step {found} after step {later[-1]} was saved")
    failures += untrustworthy(root)
    expected = sorted(which_stay({saved: score_of(saved) for saved in {*before, *later}}, KEEP))
    if again.store.steps() != expected:
        failures.append(f"kept {again.store.steps()} instead of {expected}")
    manifests, files = [list(root.glob(f"step-*/{name}")) for name in ("manifest.json", "*-*/state.json")]
    if not len(manifests) == len(files) == len(expected) or list(root.rglob("*.smddp-partial")):
        failures.append(f"left {sorted(map(str, root.rglob('*')))}")
    return failures


def _copy(prepared: Path, root: Path) -> Path:
    shutil.copytree(prepared, root, dirs_exist_ok=True)
    return root / "new" / "place" if not any(prepared.iterdir()) else root


def _save_in_a_child(root: Path, step: int, *, kill_at: int | None) -> int:
    """Save a step in a fork that dies at a point. Give how many points there are, with None; else the point."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            countdown = Countdown(kill_at, die)
            StoredRun(root, life=1, files=WatchedFiles(countdown)).save(step)
            os.write(writing, str(countdown.points).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if kill_at is None:
        return int(told)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, f"not killed at {kill_at}"
    return kill_at


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--saves", type=int, default=6)
    arguments = parser.parse_args()
    logging.getLogger("smddp").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        outcomes = kill_at_each_operation(saves=arguments.saves, directory=Path(directory))
    print(*outcomes, sep="\n")
    sys.exit(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    main()
