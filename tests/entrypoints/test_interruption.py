"""A job of two processes that is told to stop in mid-epoch, and goes on: the model is the same to the last bit."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.ports import free_port

# The rank stops itself. A signal from outside passes two processes before it reaches the rank, and an epoch of some
# milliseconds a step may end meanwhile.
STOPS_ITSELF = """
import runpy, signal, sys
import smddp

take_step = smddp.Trainer.step

def step_and_stop(trainer, *arguments, **options):
    is_done = take_step(trainer, *arguments, **options)
    if trainer.steps == 20:
        signal.raise_signal(signal.SIGTERM)
    return is_done

smddp.Trainer.step = step_and_stop
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class TwoRanks:
    """The entry point on two processes of this machine, with what rank 0 logs."""

    def __init__(self, script: Path, channel: Path, run_dir: Path, *, stops_itself: int | None = None) -> None:
        port = free_port()
        self.log: list[str] = []
        self.ranks = []
        for rank in range(2):
            place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2}
            where = {"SMDDP_RUN_DIR": run_dir, "SM_CHANNEL_TRAINING": channel}
            master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            environ = {name: str(value) for name, value in {**place, **where, **master}.items()}
            arguments = ["--epochs", "2", "--batch-size", "16", "--log-every", "1"]
            program = ["-c", STOPS_ITSELF] if rank == stops_itself else []
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, *program, str(script), *arguments],
                    env={**os.environ, **environ},
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        self._readers = [threading.Thread(target=self._read, args=(rank,)) for rank in self.ranks]
        for reader in self._readers:
            reader.start()

    def codes(self) -> list[int]:
        try:
            return [rank.wait(timeout=120) for rank in self.ranks]
        finally:
            for rank in self.ranks:
                rank.kill()
            for reader in self._readers:
                reader.join()

    def _read(self, rank: "subprocess.Popen[str]") -> None:
        assert rank.stderr is not None
        self.log.extend(rank.stderr)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stop_in_mid_epoch_is_resumed_to_the_same_bits(script: Path, digits: Path, tmp_path: Path) -> None:
    undisturbed = TwoRanks(script, digits, tmp_path / "undisturbed")
    assert undisturbed.codes() == [0, 0], undisturbed.log

    stopped = TwoRanks(script, digits, tmp_path / "disturbed", stops_itself=1)  # one rank hears it, both stop
    assert stopped.codes() == [75, 75], stopped.log
    assert any("stopped at step" in line and "in epoch 1" in line for line in stopped.log), stopped.log
    assert not (tmp_path / "disturbed" / "model" / "model.safetensors").exists()

    resumed = TwoRanks(script, digits, tmp_path / "disturbed")
    assert resumed.codes() == [0, 0], resumed.log
    assert any("resumed at step" in line for line in resumed.log), resumed.log

    models = [
        safetensors.torch.load_file(tmp_path / name / "model" / "model.safetensors")
        for name in ("undisturbed", "disturbed")
    ]
    assert models[0].keys() == models[1].keys()
    for name, weight in models[0].items():
        assert torch.equal(weight, models[1][name]), name
    accuracy = [line for line in resumed.log if "accuracy=" in line][-1]
    assert float(accuracy.rpartition("=")[2]) >= 0.97
