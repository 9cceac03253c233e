"""R2 and R10: killed at each operation of a save, of a second save of the same step and of pruning, a run goes on.

Every operation of the file system is a point at which a rank dies by SIGKILL once, and so is the middle of every write.
Then the newest checkpoint must be the one that was being saved or the one before, everything that looks finished must
be valid to the last byte, and the next life, in one process, must save, prune and leave nothing unfinished behind.

    python -m tests.torture.kill_points [--saves 6] [--sharded]
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from smddp.checkpoint.retention import which_stay
from tests.torture.children import Journal, kill, last_words, read_journal, wait
from tests.torture.layout import Layout
from tests.torture.outcome import Outcome
from tests.torture.stored_run import KEEP, StoredRun, loaded_step, score_of, untrustworthy
from tests.torture.watched_files import Countdown, WatchedFiles, die

INTERVAL = 10
WHOLE, SHARDED = Layout(), Layout(ranks=2, shard="all")


def kill_at_each_operation(*, saves: int, directory: Path, layout: Layout = WHOLE) -> tuple[Outcome, Outcome]:
    """Kill each of the first saves of a run, and each once more when its step is saved a second time.

    Returns:
        What came of the first saves of each step, the kills within pruning among them; what came of the second ones.
    """
    both = [
        [kill_in_a_save(number, again=again, directory=directory, layout=layout) for number in range(again, saves)]
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


def kill_in_a_save(
    number: int, *, again: bool = False, directory: Path, layout: Layout = WHOLE, every: int = 1
) -> Outcome:
    """Kill one save of a run at each of its operations, on each rank.

    Args:
        number: how many steps were saved before. The third save, for which it is 2, removes the first checkpoint.
        again: save the last of these steps once more, instead of the next.
        directory: where to make others.
        layout: of the ranks that save.
        every: from one operation that kills to the next.
    """
    before = [INTERVAL * (index + 1) for index in range(number)]
    step = INTERVAL * number if again else INTERVAL * (number + 1)
    name = f"save {number}{' again' if again else ''}"
    prepared = directory / name
    prepared.mkdir()
    if before:
        _save(prepared, before, layout, life=0)
    points, failures = _save(_copy(prepared, directory / f"{name}, whole"), [step], layout), []
    done = 0
    for rank, point in ((rank, point) for rank, of_rank in enumerate(points) for point in range(0, of_rank, every)):
        root = _copy(prepared, directory / f"{name}, {rank}, {point}")
        done += _kill_in_a_save(root, step, layout, rank, point)
        failures += [f"{name}, rank {rank} killed at {point}: {text}" for text in _aftermath(root, before, step)]
        shutil.rmtree(root)
    return Outcome(done=done, unit="kills", failures=tuple(failures))


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


def _save(root: Path, steps: Sequence[int], layout: Layout, *, life: int = 1) -> list[int]:
    """Save steps in forks; give how many points each rank has."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        codes = wait(layout.fork(lambda: _live(root, steps, layout, life, journals=directory), directory, "log"))
        assert codes == [0] * layout.ranks, last_words(directory, "log-*")
        return [int(points) for rank in range(layout.ranks) for _, points in read_journal(directory / f"points-{rank}")]


def _kill_in_a_save(root: Path, step: int, layout: Layout, rank: int, point: int) -> bool:
    """Save a step in forks, and kill a rank at a point; then the others, which may go on for a moment.

    Return False if another rank made a directory that this one makes at times, so that it did not come to the point.
    """
    with tempfile.TemporaryDirectory() as name:
        ranks = layout.fork(lambda: _live(root, [step], layout, life=1, kill_at=(rank, point)), Path(name), "log")
        victim = ranks.pop(rank)
        (code,) = wait([victim])
        wait(ranks, 0.05 * (point % 2) if code else 60.0)
        kill([victim, *ranks])
        assert code == -signal.SIGKILL or (code == 0 and ranks), f"{code} at {point}: {last_words(Path(name), 'log-*')}"
        return code != 0


def _live(
    root: Path,
    steps: Sequence[int],
    layout: Layout,
    life: int,
    *,
    kill_at: tuple[int, int] | None = None,
    journals: Path | None = None,
) -> None:
    rank, mesh = layout.join()
    countdown = Countdown(kill_at[1] if kill_at is not None and kill_at[0] == rank else None, die)
    run = StoredRun(root, life=life, files=WatchedFiles(countdown), mesh=mesh)
    for step in steps:
        run.save(step)
    if journals is not None:
        Journal(journals / f"points-{rank}").write("points", countdown.points)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--saves", type=int, default=6)
    parser.add_argument("--sharded", action="store_true", help="by two ranks that divide the state")
    arguments = parser.parse_args()
    logging.getLogger("smddp").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        layout = SHARDED if arguments.sharded else WHOLE
        outcomes = kill_at_each_operation(saves=arguments.saves, directory=Path(directory), layout=layout)
    print(*outcomes, sep="\n")
    sys.exit(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    main()
