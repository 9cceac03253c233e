"""R19: a bit that flips in one replica is found at the next comparison, with its tensor and rank, and is not saved.

Each life is a training of a few steps on 2 or 4 ranks; many share one job, whose Pythons are forked. Tensor, bit, step
and rank are drawn by the seed. A weight's bit may flip after any step. A buffer is compared with its values after the
last step only, so its bit flips where a comparison follows before the next copy of rank 0's buffers: by a save, and of
a buffer that no step writes also by the next step.

    python -m tests.torture.flips [--flips 300] [--steps 10000] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.torture.flipping_job import Network, tensors
from tests.torture.hangs import forked_program
from tests.torture.outcome import Outcome

JOB = Path(__file__).with_name("flipping_job.py")
_EVERY, _SAVES, _STEPS = 3, 4, 12
_WRITTEN = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
"""The buffers that each step writes."""
_END_SECONDS = 1800.0

Plan = dict[str, Any]
Told = dict[str, Any]


def draw(count: int, seed: int) -> list[Plan]:
    """Draw lives; a tensor is as likely as another one, whatever its size."""
    chance = random.Random(seed)
    sizes = {name: each.nbytes for name, each in tensors(Network()).items()}
    buffers = {name for name, _ in Network().named_buffers()}
    plans = []
    for number in range(count):
        name = chance.choice(sorted(sizes))
        steps = list(range(1, _STEPS - 1))
        if name in _WRITTEN:
            steps = [step for step in steps if step % _SAVES == 0]
        elif name in buffers:
            steps = [step for step in steps if step % _SAVES == 0 or (step + 1) % _EVERY == 0]
        world_size = chance.choice((2, 4))
        plan = {"seed": number, "steps": _STEPS, "every": _EVERY, "saves": _SAVES, "name": name}
        plan |= {"is_buffer": name in buffers, "world_size": world_size, "rank": chance.randrange(world_size)}
        bit = 0 if name == "mask" else chance.randrange(8)  # a bool has one bit
        plan |= {"step": chance.choice(steps), "byte": chance.randrange(sizes[name]), "bit": bit}
        plans.append(plan)
    return plans


def _found_at(step: int) -> int:
    """Return the step of the next comparison after a flip between this step and its save."""
    return step if step % _SAVES == 0 else min((step // _EVERY + 1) * _EVERY, (step // _SAVES + 1) * _SAVES)


def run_job(program: Path, directory: Path, world_size: int, plans: Sequence[Plan]) -> list[list[Told]]:
    """Run the trainings in a job of so many ranks, and return what each rank was told in each of them."""
    directory.mkdir()
    (directory / "plans").write_text(json.dumps(list(plans)))
    command = [program, "run", "--processes-per-node", str(world_size), "--run-dir", "run", JOB]
    environ = {**os.environ, "FLIPPING_JOB": "plans", "OMP_NUM_THREADS": "1"}
    with (directory / "log").open("w") as log:
        code = subprocess.run(
            command, cwd=directory, stdout=log, stderr=log, env=environ, timeout=_END_SECONDS, check=False
        ).returncode
    if code:
        raise RuntimeError(f"{directory}: exit code {code}: {(directory / 'log').read_text()[-2000:]}")
    ranks = [(directory / f"told-{rank}").read_text().splitlines() for rank in range(world_size)]
    return [[json.loads(line) for line in lines] for lines in zip(*ranks, strict=True)]


def judge(plan: Plan, told: list[Told]) -> tuple[str, str]:
    """Return what became of a flip, ``found``, ``vanished`` or ``missed``, and what is wrong with it, if anything."""
    found_at, rank, world_size, name = _found_at(plan["step"]), plan["rank"], plan["world_size"], plan["name"]
    texts = {(told[0]["warnings"] or [""])[0]} if plan["is_buffer"] else {each["error"] for each in told}
    if texts == {""}:
        if not plan["is_buffer"] and all(each["are_equal"] for each in told):
            return "vanished", ""  # a step's rounding has swallowed the bit
        return "missed", "nothing was said"
    who = rf"rank {rank} on \S+"
    at = "|".join(map(str, range(plan["step"], found_at + 1)))  # a loss that is not finite is looked into earlier
    if plan["is_buffer"]:
        pattern = (
            rf"step ({at}): since the step before, one bit of the buffer {re.escape(name)} has changed, on {who} only\."
        )
        allowed = f"$|TrainingDivergedError: .* the loss of rank {rank} is not"
        problems = [each["error"] for each in told if not re.match(allowed, each["error"])]
    else:
        many = ", ".join(rf"rank {each} on \S+" for each in range(world_size)) + " differ from each other"
        odd = many if world_size == 2 else rf"{who} differs from the other {world_size - 1} ranks"
        pattern = rf"ReplicasDifferError: at step ({at}) the ranks have different weights: {odd} in {re.escape(name)}\."
        newest = max((step for each in told for step in each["saved"]), default=0)
        problems = [f"step {newest} was saved"] if newest >= found_at else []
    problems += [text for text in texts if not re.match(pattern, text)]
    return ("missed" if problems else "found"), "; ".join(problems)


def flip_bits(directory: Path, *, flips: int, seed: int) -> Outcome:
    """Flip bits, and compare what is said of each with what it was."""
    plans = draw(flips, seed)
    directory.mkdir(exist_ok=True)
    results: list[tuple[Plan, str, str]] = []
    with forked_program(directory / "python") as program:
        for world_size in (2, 4):
            own = [plan for plan in plans if plan["world_size"] == world_size]
            told = run_job(program, directory / f"ranks-{world_size}", world_size, own)
            results += [(plan, *judge(plan, each)) for plan, each in zip(own, told, strict=True)]
    ends = Counter((end, plan["is_buffer"]) for plan, end, _ in results)
    return Outcome(
        done=len(results),
        unit="flips",
        notes=(
            f"{ends['found', False]} in weights and {ends['found', True]} in buffers named at the next comparison; "
            f"{ends['vanished', False]} rounded away by a step before it"
        ),
        failures=tuple(f"{plan}: {problem}" for plan, end, problem in results if end == "missed"),
    )


def compare_undisturbed(directory: Path, *, steps: int) -> Outcome:
    """Train without a flip, with a comparison after each step, and expect silence."""
    directory.mkdir(exist_ok=True)
    kinds: list[dict[str, Any]] = [{}, {"accumulate": 2}, {"ema": 0.9}]
    share = -(-steps // (2 * len(kinds)))
    plain = {"seed": 0, "every": 1, "saves": 50, "name": "", "step": 0, "rank": 0, "steps": share}
    failures: list[str] = []
    done = 0
    with forked_program(directory / "python") as program:
        for world_size in (2, 4):
            plans = [{**plain, **kind} for kind in kinds]
            for plan, told in zip(
                plans, run_job(program, directory / f"ranks-{world_size}", world_size, plans), strict=True
            ):
                done += told[0]["steps"]
                alarms = [each for each in told if each["error"] or each["warnings"]]
                failures += [f"{world_size} ranks, {plan}: {alarm}" for alarm in alarms]
    return Outcome(done=done, unit="steps", notes="no alarm, on 2 and 4 ranks", failures=tuple(failures))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.flips", allow_abbrev=False)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--steps", type=int, default=10_000, help="undisturbed ones")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smddp-flips-") as directory:
        outcomes = [
            flip_bits(Path(directory) / "flips", flips=arguments.flips, seed=arguments.seed),
            compare_undisturbed(Path(directory) / "undisturbed", steps=arguments.steps),
        ]
    print(*outcomes, sep="\n")
    sys.exit(any(outcome.failures for outcome in outcomes))


if __name__ == "__main__":
    main()
