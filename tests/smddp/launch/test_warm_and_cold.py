"""What the same script prints and writes in ranks of a warm parent and in ranks that start cold: equal bit by bit."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.entrypoints.channels import ENTRYPOINTS, write_fashion_mnist, write_text

SCRIPTS = Path(__file__).parents[2] / "end_to_end" / "scripts"

TRAINER = """
import torch
from torch import nn
import smddp

def main(job):
    smddp.seed_everything(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    trainer = smddp.Trainer(job, model, torch.optim.AdamW(model.parameters()), precision="bf16", ema=0.9, log_every=1)
    data = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(0, 4, (256,)))
    loader = trainer.loader(data, batch_size=32, num_workers=1)
    for epoch in trainer.epochs(2):
        for inputs, labels in trainer.batches(loader):
            trainer.step(nn.functional.cross_entropy(trainer.model(inputs), labels))
    trainer.save_model()

if __name__ == "__main__":
    smddp.run(main)
"""

# A loop by hand: its seeds, DDP, augmentation in workers, a process that it spawns, and what it writes with torch.save.
BY_HAND = """
import multiprocessing, os, random
import numpy, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Noisy(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.rand(8) + random.random() + float(numpy.random.rand()), index % 4

def told(queue):
    queue.put((__name__, torch.initial_seed() == torch.default_generator.seed(), torch.get_num_threads()))

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1); random.seed(2); numpy.random.seed(3)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4)))
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = DistributedSampler(Noisy(), seed=4)
    loader = DataLoader(Noisy(), batch_size=8, sampler=sampler, num_workers=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs.float()), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(f"rank {rank} loss={loss.item().hex()}", flush=True)
    queue = multiprocessing.get_context("spawn").Queue()
    process = multiprocessing.get_context("spawn").Process(target=told, args=(queue,))
    process.start()
    print(f"rank {rank} spawned {queue.get(timeout=100)}", torch.get_num_threads(), sorted({1, 2}), flush=True)
    process.join()
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "trained.pt")
    dist.destroy_process_group()
"""

HYDRA = """
import torch
import smddp, smddp.hydra

@smddp.hydra.main(config_path="conf", config_name="config")
def main(config, job):
    smddp.seed_everything(config.seed)
    model = torch.nn.Linear(4, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=config.lr), log_every=1)
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8)
    for _ in trainer.epochs(1):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
    trainer.save_model()

main()
"""

TEXT = ["--steps", "4", "--layers", "1", "--width", "16", "--context", "16", "--batch-size", "4"]
BERT = ["--output_dir", "trainer", "--max_steps", "4", "--use_cpu", "True", "--save_strategy", "no"]
KINDS: dict[str, tuple[str | Path, Sequence[str]]] = {
    "trainer": (TRAINER, []),
    "by hand": (BY_HAND, []),
    "hydra": (HYDRA, ["lr=0.2"]),
    "accelerate": (SCRIPTS / "accelerate_loop.py", ["--epochs", "2"]),
    "transformers": (SCRIPTS / "transformers_trainer.py", [*BERT, "--report_to", "none"]),
    "sharded": (ENTRYPOINTS / "language_model.py", [*TEXT, "--sample-bytes", "9"]),
    "images": (ENTRYPOINTS / "image_classification.py", ["--epochs", "1", "--batch-size", "8"]),
}
IS_WARM = """
import sys
if __name__ == "__main__":
    print("is warm:", "smddp.process.warm_program" in sys.modules, flush=True)
"""
_TIMES = re.compile(r"\b\d\d:\d\d:\d\d\b|\b(\w*seconds?|goodput\w*|train_runtime)\b(=|': )\S*")
_SAVE = re.compile(r"/[0-9a-f]{12}-\d{4}/")  # the name that each save draws for its directory
_SEEDED = {"trainer", "hydra"}


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The channel of each entry point, by its kind."""
    directory = tmp_path_factory.mktemp("channels")
    write_text(directory / "text")
    write_fashion_mnist(directory / "fashion", train=16, test=6)
    return {"sharded": str(directory / "text"), "images": str(directory / "fashion")}


def outcome(directory: Path, kind: str, warm: str, channels: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Run a script on two ranks; return its lines, sorted and without times, and the SHA-256 of its tensors."""
    script, arguments = KINDS[kind]
    (directory / "conf").mkdir(parents=True)
    (directory / "conf" / "config.yaml").write_text("lr: 0.1\nseed: 7\n")
    text = script if isinstance(script, str) else script.read_text()
    begun = max(text.rfind("\nif __name__"), text.rfind("\nmain()"))  # smddp.run ends the process
    (directory / "train.py").write_text(f"{text[:begun]}{IS_WARM}{text[begun:]}" if begun >= 0 else text + IS_WARM)
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run", "train.py"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=directory,
        env={**os.environ, "SMDDP_WARM": warm, "SM_CHANNEL_TRAINING": channels.get(kind, ""), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = [line for line in lines if line.startswith("is warm:")]
    assert told == 2 * [f"is warm: {warm == '1'}"], done.stderr
    printed = [_TIMES.sub("", line) for line in lines if line not in told]
    printed += [_TIMES.sub("", line) for line in done.stderr.splitlines() if "loss=" in line]
    kept = [each for ending in ("safetensors", "pt") for each in directory.rglob(f"*.{ending}")]
    return sorted(printed), {
        _SAVE.sub("/", str(each.relative_to(directory))): hashlib.sha256(each.read_bytes()).hexdigest()
        for each in kept
        # The generators of Python and NumPy begin with what the system gives, where the script seeds PyTorch's alone.
        if kind in _SEEDED or each.name != "ranks.safetensors"
    }


@pytest.mark.cold
@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.loops if kind in ("accelerate", "transformers") else ()) for kind in KINDS],
)
def test_a_warm_training_is_a_cold_one_bit_by_bit(kind: str, tmp_path: Path, channels: dict[str, str]) -> None:
    printed, files = outcome(tmp_path / "warm", kind, "1", channels)
    assert files
    assert (printed, files) == outcome(tmp_path / "cold", kind, "0", channels)
