"""Lightning's own Trainer on smddp's ranks: who they are, and a stop in mid-epoch that goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("lightning", reason="no Lightning: pip install smddp[loops]")

import lightning

from smddp.cluster import Cluster
from smddp.errors import DistributedError
from smddp.lightning import SmddpEnvironment, StopCallback
from smddp.process.preemption import Stopped, stop_signal

pytestmark = pytest.mark.loops

RANK_3 = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host1",
    "MASTER_PORT": "29500",
}

SCRIPT = """
import torch, lightning
from torch import nn
import smddp
from smddp.lightning import SmddpEnvironment, StopCallback, VerifiedCheckpointIO

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
    def training_step(self, batch, number):
        if self.global_rank == 0:
            print("step", self.global_step, flush=True)
        return (self.net(batch[0]) - batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def main(job: smddp.Job) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(160_000, 4))
    stop = StopCallback(job)
    trainer = lightning.Trainer(
        max_steps={steps}, accelerator="cpu", devices=job.cluster.local_world_size,
        plugins=[SmddpEnvironment(job.cluster), VerifiedCheckpointIO()], callbacks=[stop],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=stop.resume_from)
    print("done", trainer.global_step, flush=True)

smddp.run(main)
"""


def start(path: Path, *, steps: int, ranks: int) -> subprocess.Popen[str]:
    (path / "train.py").write_text(SCRIPT.replace("{steps}", str(steps)))
    return subprocess.Popen(
        [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", str(ranks), "--run-dir", "run", "train.py"],
        cwd=path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)  # three programs, each of which imports it
@pytest.mark.usefixtures("fork_python")
def test_a_stop_saves_on_all_ranks_and_the_next_attempt_goes_on(tmp_path):
    process = start(tmp_path, steps=10_000, ranks=2)
    assert process.stdout is not None
    while process.stdout.readline() != "step 20\n":
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 75, error
    stopped_at = max([20, *map(int, re.findall(r"step (\d+)", out))]) + 1
    assert "Received SIGTERM" not in error, "Lightning's handler broadcasts within it"

    out, error = start(tmp_path, steps=stopped_at + 5, ranks=1).communicate(timeout=120)
    assert [int(step) for step in re.findall(r"step (\d+)", out)] == list(range(stopped_at, stopped_at + 5)), error
    assert f"done {stopped_at + 5}" in out

    out, error = start(tmp_path, steps=stopped_at + 5, ranks=1).communicate(timeout=120)
    assert (re.findall(r"step \d+", out), f"done {stopped_at + 5}" in out) == ([], True), error


class Mean(lightning.LightningModule):
    """Moves its one weight to the mean of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return (self.weight - batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_stop_within_an_accumulation_window_comes_at_its_end(tmp_path):
    """The job is told to stop from the second batch on: of four of a window, or of the last two of the epoch."""
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    stop = StopCallback(SimpleNamespace(checkpoint_dir=tmp_path, stopping=True))
    options = {"max_epochs": 1, "accelerator": "cpu", "accumulate_grad_batches": 4, "logger": False}
    options |= {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    ends = []
    for batches in (4, 2):
        trainer = lightning.Trainer(callbacks=[stop], limit_train_batches=batches, **options)
        module = Mean()
        with stop_signal, pytest.raises(Stopped):
            trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=1))
        saved = torch.load(tmp_path / "stopped.ckpt", weights_only=False)
        progress = saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
        ends.append((saved["global_step"], progress["ready"], saved["state_dict"]["weight"].item()))
    assert ends == [(1, 4, pytest.approx(0.1 * 2 * (0 + 1 + 2 + 3) / 4)), (1, 2, pytest.approx(0.1 * 2 * (0 + 1) / 4))]


def test_lightning_is_told_of_the_ranks_that_the_cluster_has():
    environment = SmddpEnvironment(Cluster.detect(RANK_3))
    ranks = (environment.world_size(), environment.global_rank(), environment.local_rank(), environment.node_rank())
    assert ranks == (4, 3, 1, 1)
    assert environment.main_address == "host1"
    assert environment.creates_processes_externally


def test_another_number_of_devices_is_refused_with_what_to_give():
    environment = SmddpEnvironment(Cluster.detect(RANK_3))
    environment.validate_settings(num_devices=2, num_nodes=2)
    with pytest.raises(DistributedError, match="Lightning counts 4 devices a node, and the launcher has 2"):
        environment.validate_settings(num_devices=4, num_nodes=2)
