"""The rank that the others wait for is named, with its slow phase; ranks that are equally fast are not."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from smddp.watch.pace import Pace, find_slow, to_json
from smddp.watch.position import WAITING, Position
from tests.smddp.watch.test_faults import with_hooks
from tests.smddp.watch.test_verdict import at


def seen(rank: int, windows: int = 1, **glances: int) -> Position:
    """Return a rank that was seen so often in each phase, in so many comparisons."""
    lines = {"data": "job/train.py:7 __getitem__: read(file)"}
    return at(rank, glances={phase: windows * number for phase, number in glances.items()}, lines=lines)


FAST = {"waiting": 90, "forward": 30, "backward": 40}


@pytest.mark.parametrize(
    ("slow", "phase"),
    [
        ({"waiting": 20, "forward": 30, "backward": 40, "data": 70}, "data"),
        ({"waiting": 20, "forward": 95, "backward": 45}, "forward"),
        ({"forward": 30, "backward": 40, "script": 90}, "script"),
    ],
)
@pytest.mark.parametrize("world_size", [2, 5])
def test_the_rank_that_waits_least_is_slow_in_the_phase_that_the_others_have_less_of(
    slow: dict[str, int], phase: str, world_size: int
) -> None:
    pace = Pace()
    found = []
    for window in range(6):
        others = [seen(rank, window, **FAST) for rank in range(world_size) if rank != 1]
        found.append(pace.compare([*others, seen(1, window, **slow)]))
    assert [each and (each.rank, each.phase) for each in found] == [None] * 3 + [(1, phase), None, None]
    assert pace.has_named


def test_the_sentence_has_rank_phase_shares_and_line() -> None:
    pace, found = Pace(), None
    for window in range(4):
        found = pace.compare([seen(0, window, **FAST), seen(1, window, waiting=8, data=152)])
    assert found is not None
    assert found.text == (
        "rank 1 on algo-2 makes the other rank wait for 56 % of the time. It spends 95 % of its time in the phase "
        "data, the other rank 0 %: job/train.py:7 __getitem__: read(file)"
    )


def test_ranks_are_compared_once_all_were_seen_often_enough() -> None:
    pace = Pace()
    slow = {"waiting": 8, "data": 152}
    for window in (0, 1, 1, 1, 1):  # rank 1's position stays old
        assert pace.compare([seen(0, window, **FAST), seen(1, min(window, 0), **slow)]) is None
    assert not pace.has_named


def test_a_rank_that_is_slow_only_now_and_then_is_not_named() -> None:
    pace, total = Pace(), [Counter[str](), Counter[str]()]
    for window in range(12):
        for rank, each in enumerate(total):
            each.update({"waiting": 0, "script": 160} if window // 2 % 2 == rank else FAST)
        assert pace.compare([at(rank, glances=dict(each)) for rank, each in enumerate(total)]) is None


@pytest.mark.parametrize("world_size", [2, 8])
def test_equally_fast_ranks_are_not_named_by_chance(world_size: int) -> None:
    chance = random.Random(1)
    pace, total = Pace(), [Counter[str]() for _ in range(world_size)]
    for _ in range(2000):
        for each in total:
            each.update(chance.choices((WAITING, "forward", "backward", "data"), (40, 25, 25, 10), k=160))
        assert pace.compare([at(rank, glances=dict(each)) for rank, each in enumerate(total)]) is None


def test_no_position_and_one_position_are_no_comparison() -> None:
    pace = Pace()
    for positions in ([], [], [seen(0, **FAST)], [seen(0, 2, **FAST)]):
        assert pace.compare(positions) is None


def test_ranks_that_do_not_wait_for_each_other_are_not_slow() -> None:
    assert find_slow({0: {"data": 1.0}, 1: {"forward": 1.0}}) is None


def test_the_table_and_the_file_have_all_ranks() -> None:
    positions = [seen(0, waiting=50, data=50), seen(1, script=60, waiting=40)]
    assert Pace().table(positions).splitlines() == [
        "rank  waiting  data  script",
        "   0       50    50       0",
        "   1       40     0      60",
    ]
    assert json.loads(to_json(positions))["ranks"][1] == {
        "rank": 1,
        "host": "algo-2",
        "shares": {"script": 0.6, "waiting": 0.4},
    }


SCRIPT = """
import os, time
import torch, smddp
from smddp.watch import pace, watchdog

watchdog._COMPARE_SECONDS, pace._LEAST_GLANCES = 3.0, 12
RANK, SLOW = int(os.environ["RANK"]), int(os.environ["SLOW"])
pace._MARGIN = 0.5 if SLOW >= 0 else 0.35  # chance, and a rank with less of a core, are more in so few glances

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        if RANK == SLOW:
            time.sleep(0.003)  # a slow disk
        return torch.randn(8), torch.randint(0, 3, ())

def main(job):
    # BatchNorm's buffers are broadcast in the forward pass: the other rank waits there, too.
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = trainer.loader(Data(), batch_size=16)
    end = time.monotonic() + 22
    for epoch in trainer.epochs(1):
        for x, y in trainer.batches(loader):
            trainer.step(torch.nn.functional.cross_entropy(trainer.model(x), y))
            trainer.finish_if(time.monotonic() > end)

smddp.run(main)
"""


@with_hooks
@pytest.mark.slow
@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize("slow", [0, 1, -1])
def test_a_rank_with_a_slow_loader_is_named(tmp_path: Path, slow: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run", "train.py"]
    environ = {**os.environ, "SLOW": str(slow)}
    told = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=110)
    if slow < 0:
        assert " slow: " not in told.stderr
    else:
        assert f"slow: rank {slow} on localhost makes the other rank wait for " in told.stderr
        named = rf"time\.sleep\(0\.003\)  # a slow disk slow_rank={slow} slow_share=[01]\.[0-9]+$"
        assert re.search(named, told.stderr, re.MULTILINE), told.stderr
        assert "the ranks' time by phase, in %:\nrank  waiting" in told.stderr
    ranks = json.loads((tmp_path / "run" / "output" / "ranks.json").read_text())["ranks"]
    assert [each["rank"] for each in ranks] == [0, 1]
