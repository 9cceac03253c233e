"""R21: whatever of a warm start is killed, each rank runs with its own environment, and nothing is left.

Each life is a small launcher: it forks three rounds of ranks from a warm parent, as torchrun's agent does, without
PyTorch. Which process is killed, and when, is drawn by the seed.

    python -m tests.torture.warm_starts [--kills 300] [--seed 0] [--together 4]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.torture.outcome import Outcome

ROUNDS = 3
_MARK = "WARM_START_LIFE"
_VICTIMS = ("parent", "its child", "rank", "launcher", "whole group by SIGTERM", "nothing")
_LATEST_SECONDS = 0.8
_END_SECONDS = 60.0
_GONE_SECONDS = 60.0

LAUNCHER = """
import os, sys
from pathlib import Path
from smddp.process.children import ChildProcesses
from smddp.process.leftovers import Leftovers
from smddp.process.warm_parent import WarmParent

ranks, rounds = int(sys.argv[1]), int(sys.argv[2])
command = [sys.executable, "rank.py", "an argument"]
warm = WarmParent.start(os.environ, command_bytes=999)
warm.prepare(Path(), modules=["decimal", "json"], extras=["csv"], environ=os.environ)
children = ChildProcesses(Leftovers())
children.warm = warm
print(warm.pid, flush=True)
for number in range(rounds):
    children.await_warm()
    for rank in range(ranks):
        children.start(command, environ={**os.environ, "RANK": str(rank), "ROUND": str(number)})
    while not children.poll(0.05, failure_grace=0):
        pass
    children.end_leftovers()
    children.forget()
warm.close()
"""
RANK = """
import json, os, sys, time
name = f"{os.environ['ROUND']}-{os.environ['RANK']}"
shown = dict(entry.split("=", 1) for entry in open("/proc/self/environ").read().strip("\\0").split("\\0"))
record = {"argv": sys.argv, "shown": [shown["ROUND"], shown["RANK"]], "parent": os.getppid(), "main": __name__}
time.sleep(0.05)
with open(f"{name}.new", "w") as file:
    json.dump(record, file)
os.rename(f"{name}.new", name)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One launcher, and what is killed of it."""

    ranks: int
    victim: str
    after: float
    """Seconds from the start of the launcher to the kill."""


def draw(count: int, seed: int) -> list[Life]:
    """Draw lives."""
    chance = random.Random(seed)
    return [
        Life(ranks=chance.choice((1, 2, 4)), victim=chance.choice(_VICTIMS), after=chance.uniform(0, _LATEST_SECONDS))
        for _ in range(count)
    ]


def marked(name: str) -> dict[int, int]:
    """Return the parent of each process of a life."""
    found = {}
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and f"{_MARK}={name}".encode() in (each / "environ").read_bytes().split(b"\0"):
                found[int(each.name)] = int((each / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):  # it has just ended
            continue
    return found


def kill(life: Life, name: str, launcher: subprocess.Popen[str], parent: int) -> bool:
    """Kill the victim; return whether there was one."""
    processes = marked(name)
    ranks = [each for each, its_parent in processes.items() if its_parent == launcher.pid and each != parent]
    victims = {
        "parent": [parent],
        "its child": [each for each, its_parent in processes.items() if its_parent == parent],
        "rank": ranks[:1],
        "launcher": [launcher.pid],
    }.get(life.victim, [])
    if life.victim == "whole group by SIGTERM":
        os.killpg(launcher.pid, signal.SIGTERM)
        return True
    for victim in victims:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return False
    return bool(victims)


def live(life: Life, directory: Path) -> tuple[bool, str]:
    """Return whether something was killed, and what is wrong; empty: nothing."""
    directory.mkdir()
    (directory / "rank.py").write_text(RANK)
    began = time.monotonic()
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(life.ranks), str(ROUNDS)],
        cwd=directory,
        env={**os.environ, _MARK: directory.name},
        stdout=subprocess.PIPE,
        stderr=(directory / "log").open("w"),
        text=True,
        start_new_session=True,
    )
    assert launcher.stdout is not None
    parent = int(launcher.stdout.readline() or 0)
    time.sleep(max(0.0, life.after - (time.monotonic() - began)))
    killed = launcher.poll() is None and kill(life, directory.name, launcher, parent)
    try:
        code = launcher.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
        return killed, f"{life}: hung"
    finally:
        launcher.stdout.close()
    ends_all = killed and life.victim in ("launcher", "whole group by SIGTERM")
    problems = []
    deadline = time.monotonic() + _GONE_SECONDS
    while left := marked(directory.name):
        if time.monotonic() > deadline:
            problems.append(f"left: {left}")
            break
        time.sleep(0.02)
    for each in left:
        os.kill(each, signal.SIGKILL)
    records = {each.name: json.loads(each.read_text()) for each in directory.glob("[0-9]-[0-9]")}
    for name, record in records.items():
        expected = {"argv": ["rank.py", "an argument"], "shown": name.split("-"), "main": "__main__"}
        if {key: record[key] for key in expected} != expected:
            problems.append(f"{name} was {record}")
        if not ends_all and record["parent"] != launcher.pid:
            problems.append(f"the parent of {name} was {record['parent']}")
    wanted = ROUNDS * life.ranks
    if not ends_all and code:
        problems.append(f"exit code {code}: {(directory / 'log').read_text()[-1000:]}")
    if not ends_all and life.victim != "rank" and len(records) != wanted:
        problems.append(f"{len(records)} of {wanted} ranks ended well")
    return killed, f"{life}: {'; '.join(problems)}" if problems else ""


def kill_warm_starts(directory: Path, *, kills: int, seed: int, together: int = 4) -> Outcome:
    """Run lives, some at once."""
    lives = draw(kills, seed)
    with ThreadPoolExecutor(together) as pool:
        results = list(pool.map(lambda numbered: live(numbered[1], directory / str(numbered[0])), enumerate(lives)))
    counts = Counter(life.victim for life, (killed, _) in zip(lives, results, strict=True) if killed)
    notes = ", ".join(f"{count} × {victim}" for victim, count in sorted(counts.items()))
    return Outcome(
        done=len(lives),
        unit="warm starts",
        notes=f"killed: {notes}",
        failures=tuple(each for _, each in results if each),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.warm_starts", allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", type=int, default=4)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="smddp-warm-"))
    began = time.monotonic()
    outcome = kill_warm_starts(directory, kills=arguments.kills, seed=arguments.seed, together=arguments.together)
    print(outcome, f"{time.monotonic() - began:.0f} s", sep="\n")
    if not outcome.failures:
        shutil.rmtree(directory)
    sys.exit(bool(outcome.failures))


if __name__ == "__main__":
    main()
