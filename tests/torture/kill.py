"""R1: a run that is killed by SIGKILL again and again ends as one that nobody disturbed, bit for bit.

Every life is compared, not only the end: each resumed state, each loss and each sample must be those of the undisturbed
run at that step, and no life may begin before what an earlier one knew to be durable.

    python -m tests.torture.kill [--kills 200] [--seed 0] [--ranks 1 | --ranks 2 [--sharded]]
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from smddp.checkpoint import list_checkpoints
from tests.torture.children import Child, be_a_parent, kill, last_words, read_journal, wait
from tests.torture.layout import Layout
from tests.torture.life import STEPS, live
from tests.torture.outcome import Outcome

_LONGEST_BIRTH = {1: 0.1, 2: 0.6}  # seconds to a kill that comes before the first step, by ranks
_LONGEST_LIFE = 0.2  # seconds of steps until a kill
_KILLS_A_RUN = 12


@dataclass(slots=True)
class Tally:
    """What was hit."""

    runs: int = 0
    kills: int = 0
    loading: int = 0
    """Kills before the life had begun its first step."""
    saving: int = 0
    """Kills between a save's begin and the news that it is durable."""
    failures: list[str] = field(default_factory=list)


def kill_at_random(*, kills: int, seed: int, directory: Path, ranks: int = 1, sharded: bool = False) -> Outcome:
    """Kill a run of so many ranks at random moments, so many times; each dozen of kills is a run of its own.

    The ranks have copies of the model, or divide it if it is sharded.
    """
    be_a_parent()
    chance = random.Random(seed)
    undisturbed = directory / "undisturbed"
    undisturbed.mkdir()
    codes = wait(_start(undisturbed, ranks, sharded))
    if any(codes):
        return Outcome(
            done=0, unit="kills", failures=(f"undisturbed, it ended with {codes}\n{last_words(undisturbed, 'log-*')}",)
        )
    expected = [Expected(journal(undisturbed, rank)) for rank in range(ranks)]

    tally = Tally()
    while tally.kills < kills and not tally.failures:
        tally.runs += 1
        run = directory / f"run-{tally.runs}"
        run.mkdir()
        _disturb(run, min(_KILLS_A_RUN, kills - tally.kills), tally, chance, ranks, sharded)
        tally.failures += [
            f"{run.name} (seed {seed}), rank {rank}: {text}"
            for rank in range(ranks)
            for text in expected[rank].differences(journal(run, rank))
        ]
    of_ranks = f"{ranks} rank(s)" + (" with a sharded model" if sharded else "")
    notes = f"{tally.saving} within a save, {tally.loading} before the first step, {tally.runs} runs of {of_ranks}"
    return Outcome(done=tally.kills, unit="kills", notes=notes, failures=tuple(tally.failures))


def _disturb(run: Path, kills: int, tally: Tally, chance: random.Random, ranks: int, sharded: bool) -> None:
    """Kill a run so many times, unless it comes to its end before; then let it come to its end."""
    for _ in range(kills):
        began = len(journal(run, 0))
        children = _start(run, ranks, sharded)
        if chance.random() < 0.2:
            wait(children, chance.uniform(0.0, _LONGEST_BIRTH[ranks]))
        else:
            _await_birth(run, began, children)
            wait(children, chance.uniform(0.0, _LONGEST_LIFE))
        victim = chance.choice(children)
        kill([victim])
        if victim.code != -signal.SIGKILL:
            break  # it has ended, or failed
        time.sleep(chance.choice((0.0, 0.0, 0.05)))  # in which the others may go on, as far as they come
        kill(children)
        tally.kills += 1
        newest = {kind: int(step) for kind, step, *_ in journal(run, 0)[began:]}
        tally.loading += "step" not in newest
        tally.saving += newest.get("saving", 0) > newest.get("durable", 0)
    else:
        children = _start(run, ranks, sharded)
    if any(codes := wait(children)):
        tally.failures.append(f"{run.name} ended with {codes}\n{last_words(run, 'log-*')}")
    if wrong := [info for info in list_checkpoints(run / "checkpoints") if not info.valid]:
        tally.failures.append(f"{run.name} left {wrong}")


def _await_birth(run: Path, began: int, children: list[Child]) -> None:
    """Return once a life is in its steps, or has ended."""
    while all(kind != "step" for kind, *_ in journal(run, 0)[began:]) and None in wait(children, 0.0):
        time.sleep(0.005)


def _start(run: Path, ranks: int, sharded: bool) -> list[Child]:
    return Layout(ranks=ranks).fork(lambda: live(run, sharded=sharded), run, "log")


def journal(run: Path, rank: int) -> list[list[str]]:
    return read_journal(run / f"journal-{rank}")


class Expected:
    """What one rank of the undisturbed run did."""

    def __init__(self, lines: list[list[str]]) -> None:
        self.steps = {int(step): words for kind, step, *words in lines if kind == "step"}
        self.end = lines[-1]
        self.states = {int(step): words for kind, step, *words in lines if kind in ("resumed", "saving")}
        assert lines[0][:2] == ["resumed", "0"]
        assert self.end[:2] == ["end", str(STEPS)]

    def differences(self, lines: list[list[str]]) -> list[str]:
        """Say where a run, through all its lives, was another one than this."""
        found: list[str] = []
        effective: dict[int, list[str]] = {}  # the samples that count: of each life those up to where the next began
        durable = 0
        for kind, number, *words in lines:
            step = int(number)
            if kind == "resumed":
                if step < durable:
                    found.append(f"went back to step {step} although step {durable} was durable")
                effective = {taken: words for taken, words in effective.items() if taken <= step}
                if words != self.states.get(step):
                    found.append(f"loaded another state at step {step}")
                if len(effective) != step:
                    found.append(f"loaded step {step}, which it had not come to")
            elif kind == "step":
                if words != self.steps[step]:
                    found.append(f"took step {step} with (loss, samples) {words} instead of {self.steps[step]}")
                effective[step] = words
            elif kind == "saving" and words != self.states[step]:
                found.append(f"saved another state at step {step}")
            elif kind == "durable":
                durable = max(durable, step)
        if lines[-1:] != [self.end]:
            found.append(f"ended with {lines[-1:]} instead of {self.end}")
        if effective != self.steps:
            found.append("the samples that count are not those of the undisturbed run")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1, choices=sorted(_LONGEST_BIRTH))
    parser.add_argument("--sharded", action="store_true", help="the ranks divide the model")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = kill_at_random(
            kills=arguments.kills,
            seed=arguments.seed,
            ranks=arguments.ranks,
            sharded=arguments.sharded,
            directory=Path(directory),
        )
    print(outcome)
    sys.exit("\n".join(outcome.failures) or 0)


if __name__ == "__main__":
    main()
