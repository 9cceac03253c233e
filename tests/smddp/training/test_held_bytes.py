"""What a rank holds between steps: a trial tells it once, and a rehearsal compares it with a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.rehearsal.rehearsal import _HELD

PROGRAM = """
import torch
import smddp


def main(job):
    layouts = (smddp.DDPOptions(), smddp.DDPOptions(gradient_as_bucket_view=True), smddp.Sharded(wrap=(Block,)))
    for name, parallel in zip("abc", layouts):
        torch.manual_seed(0)
        model = torch.nn.Sequential(Block(512, 256), Block(256, 512))
        model[0].bias.requires_grad_(False)
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
        trainer = smddp.Trainer(job, model, optimizer, parallel=parallel, ema=0.9, name=name)
        for _ in trainer.steps_to(2):
            trainer.step(trainer.model(torch.ones(2, 512)).sum())


class Block(torch.nn.Linear):
    pass


smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trial_tells_once_what_rank_0_holds(run_ranks: Callable[..., list[Any]], tmp_path: Path, ranks: int) -> None:
    trial = {"SMDDP_RUN_DIR": str(tmp_path / "run"), "SMDDP_MAX_STEPS": "2"}
    ended = run_ranks(PROGRAM, [trial] * ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    lines = [line.partition("rank 0 of")[2] for line in ended[0].logged.splitlines() if _HELD.search(line)]
    assert not any(_HELD.search(line) for rank in ended[1:] for line in rank.logged.splitlines())
    one = "of weights, {} of gradients, {} of optimizer state, {} of averaged weights"
    if ranks == 1:  # two weights of half a MiB; Adam has two moments
        whole = f"1.0 MiB {one.format('1.0 MiB', '2.0 MiB', '1.0 MiB')}"
        assert lines == [
            f" 1 holds 5.0 MiB beside activations: {whole}",
            f" 1 holds 5.0 MiB beside activations: {whole}",
            f" 1 holds 5.0 MiB of a divided model beside activations: {whole}",
        ]
        return
    assert lines == [
        f" 2 holds 6.0 MiB beside activations: 1.0 MiB {one.format('2.0 MiB', '2.0 MiB', '1.0 MiB')}",  # with buckets
        f" 2 holds 5.0 MiB beside activations: 1.0 MiB {one.format('1.0 MiB', '2.0 MiB', '1.0 MiB')}",
        f" 2 holds 2.5 MiB of a divided model beside activations: 0.5 MiB {one.format('0.5 MiB', '1.0 MiB', '0.5 MiB')}",
    ]
