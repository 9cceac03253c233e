"""One rank on an accelerator: the Trainer's steps are those of torch's own loop, and checkpoints hold their step."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import smddp
from smddp.accelerator import device_kind
from smddp.job import Job

KIND = device_kind() or "cuda"
DEVICE = torch.device(KIND, 0)
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = 12


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    precision, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32


def new_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def batches(count: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(32, 3, 16, 16, generator=generator), torch.randint(10, (32,), generator=generator))
        for _ in range(count)
    ]


def dataset() -> Dataset[Any]:
    images, labels = zip(*batches(), strict=True)
    return TensorDataset(torch.cat(images), torch.cat(labels))


def weights(model: nn.Module) -> list[Tensor]:
    return [each.detach().cpu().clone() for each in model.state_dict().values()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def train(trainer: smddp.Trainer, data: list[tuple[Tensor, Tensor]]) -> None:
    for inputs, labels in trainer.batches(data):
        trainer.step(cross_entropy(trainer.model(inputs), labels))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("tf32", marks=pytest.mark.only_on("cuda")), "bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_weights_are_those_of_torchs_own_loop_bit_by_bit(
    job: Job, precision: Any, accumulate: int, clip: float | None
) -> None:
    model = new_model().to(DEVICE)
    optimizer = new_optimizer(model)
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    low = LOW.get(precision)
    scaler = torch.amp.GradScaler(KIND, enabled=precision == "fp16")
    torch.manual_seed(5)
    for number, (inputs, labels) in enumerate(batches(), 1):
        with torch.autocast(KIND, low, enabled=low is not None):
            outputs = model(inputs.to(DEVICE))
        loss = cross_entropy(outputs.float(), labels.to(DEVICE))
        scaler.scale(loss / accumulate).backward()
        if number % accumulate == 0:
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    expected = weights(model)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False

    ours = new_model()
    trainer = smddp.Trainer(job, ours, new_optimizer(ours), precision=precision, accumulate=accumulate, clip_norm=clip)
    torch.manual_seed(5)
    train(trainer, batches())
    assert trainer.device == DEVICE
    assert same(weights(trainer.module), expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_resume_continues_bit_by_bit(tmp_path: Path, precision: Any) -> None:
    def run(directory: Path, max_steps: int | None, ema: float = 0.9) -> list[Tensor]:
        environ = {"SMDDP_RUN_DIR": str(directory)} | ({} if max_steps is None else {"SMDDP_MAX_STEPS": str(max_steps)})
        model = new_model()
        torch.manual_seed(3)  # of all devices: dropout draws there
        trainer = smddp.Trainer(
            Job.detect(environ),
            model,
            new_optimizer(model),
            precision=precision,
            ema=ema,
            checkpoints=smddp.CheckpointPolicy(every=4),
        )
        loader = trainer.loader(dataset(), 32, num_workers=0)
        with contextlib.suppress(smddp.Stopped):
            for _ in trainer.epochs(2):
                for inputs, labels in trainer.batches(loader):
                    assert inputs.device == DEVICE
                    trainer.step(cross_entropy(trainer.model(inputs), labels))
        assert trainer.ema is not None
        found = weights(trainer.module) + weights(trainer.ema)
        smddp.leave()
        return found

    whole = run(tmp_path / "whole", None)
    run(tmp_path / "parts", 7)
    torch.manual_seed(99)
    assert same(run(tmp_path / "parts", None), whole)


def test_a_checkpoint_holds_its_step_while_training_goes_on(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).to(DEVICE)
    with smddp.Checkpointer(tmp_path, {"model": model}, keep=smddp.Retention(last=100)) as checkpointer:
        for step in range(1, 11):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.fill_(step)
            checkpointer.save(step)
            with torch.no_grad():
                for weight in model.parameters():
                    weight.fill_(-step)
        checkpointer.wait()
    found = 0
    for directory in sorted(tmp_path.glob("**/step-*")):
        step = int(directory.name.removeprefix("step-"))
        for file in directory.glob("**/*.safetensors"):
            for tensor in load_file(file).values():
                if tensor.is_floating_point() and tensor.numel() >= 2048:
                    assert (tensor == step).all(), (step, file)
                    found += 1
    assert found >= 16


def test_each_of_500_checkpoints_is_a_copy_taken_with_everything_stopped(tmp_path: Path) -> None:
    """With accumulation, EMA, clipping, skipped steps, and buffers that forward changes right after the save."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    trainer = smddp.Trainer(
        Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}),
        model,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        precision="fp16",
        accumulate=2,
        ema=0.9,
        clip_norm=0.5,
        on_nonfinite="skip",
        checkpoints=smddp.CheckpointPolicy(every=1, keep=smddp.Retention(last=1000)),
    )
    assert trainer.ema is not None
    stopped: dict[int, list[Tensor]] = {}

    def data() -> Iterator[tuple[Tensor, Tensor]]:
        while trainer.steps < 500:
            yield torch.randn(16, 8), torch.randint(3, (16,))

    for number, (inputs, labels) in enumerate(trainer.batches(data())):
        loss = cross_entropy(trainer.model(inputs), labels)
        if trainer.step(loss * float("inf") if number % 27 == 0 else loss):
            torch.accelerator.synchronize()
            stopped[trainer.steps] = weights(trainer.module) + weights(trainer.ema)
    names = [*trainer.module.state_dict(), *(f"ema {name}" for name in trainer.ema.state_dict())]
    trainer.save(wait=True)
    smddp.leave()
    assert list(stopped) == list(range(1, 501))
    for step, expected in stopped.items():
        (model_file,) = tmp_path.glob(f"checkpoints/step-{step:012}/*/model.safetensors")
        saved = load_file(model_file)
        averaged = load_file(model_file.with_name("ema.safetensors"))
        saved |= {f"ema {name}": tensor for name, tensor in averaged.items()}
        assert [name for name, each in zip(names, expected, strict=True) if not torch.equal(saved[name], each)] == []


def test_a_checkpoint_of_a_gpu_continues_on_the_cpu(tmp_path: Path) -> None:
    model = new_model()
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "gpu")})
    trainer = smddp.Trainer(
        job, model, new_optimizer(model), precision="bf16", checkpoints=smddp.CheckpointPolicy(every=4)
    )
    train(trainer, batches())
    trainer.save(wait=True)  # else the last save may write and rename files while they are copied
    smddp.leave()
    copied = shutil.copytree(tmp_path / "gpu", tmp_path / "cpu")  # the first run still locks its own
    program = """
import sys, torch, smddp
from torch import nn
sys.path.insert(0, sys.argv[2])
from tests.accelerator.test_one_device import new_model, new_optimizer
from smddp.accelerator import device_kind
from smddp.job import Job
assert device_kind() is None
model = new_model(7)
job = Job.detect({"SMDDP_RUN_DIR": sys.argv[1], "SMDDP_MAX_STEPS": "14"})
trainer = smddp.Trainer(job, model, new_optimizer(model))
for inputs, labels in trainer.batches([(torch.randn(32, 3, 16, 16), torch.randint(10, (32,)))] * 9):
    print("resumed at", trainer.steps, trainer.device)
    trainer.step(nn.functional.cross_entropy(trainer.model(inputs), labels))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(copied), str(Path(__file__).parents[2])],
        env={**os.environ, "SMDDP_DEVICE": "cpu", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.stdout.partition("\n")[0] == "resumed at 12 cpu", ended.stdout + ended.stderr


def test_metric_lines_tell_the_use_of_the_gpu(job: Job, tmp_path: Path) -> None:
    size = 4096 if KIND == "cuda" else 128
    model = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 10))
    trainer = smddp.Trainer(job, model, new_optimizer(model), precision="bf16", timing=True, log_every=5)
    train(trainer, [(torch.randn(size, size), torch.randint(10, (size,))) for _ in range(20)])
    smddp.leave()
    (file,) = tmp_path.glob("run/**/metrics.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    last = lines[-1]
    shares = [value for name, value in last.items() if name.startswith("time_")]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert last["tflops"] > 0
    if KIND == "cuda":
        assert 0 < last["mfu"] < 1


@pytest.mark.only_on("cuda")
def test_a_profile_has_the_kernels(job: Job, tmp_path: Path) -> None:
    model = new_model()
    trainer = smddp.Trainer(job, model, new_optimizer(model), profile=smddp.Profile(first=3, last=6))
    train(trainer, batches())
    smddp.leave()
    traces = [each for each in tmp_path.glob("run/**/*") if "trace" in each.name]
    assert traces, list(tmp_path.glob("run/**/*"))
    events = json.loads(traces[0].read_bytes())["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"mode": "default"}, marks=pytest.mark.only_on("cuda")),
        pytest.param({"mode": "reduce-overhead"}, marks=pytest.mark.only_on("cuda")),
        {"backend": "aot_eager"},  # the late device has no code generator
    ],
    ids=str,
)
def test_a_compiled_model_trains_saves_and_resumes(tmp_path: Path, options: dict[str, str]) -> None:
    torch.use_deterministic_algorithms(False)
    steps = []
    for upto in ("6", "12"):
        model = new_model()
        compiled: Any = torch.compile(model, **options)
        trainer = smddp.Trainer(
            Job.detect({"SMDDP_RUN_DIR": str(tmp_path), "SMDDP_MAX_STEPS": upto}),
            compiled,
            new_optimizer(model),
            precision="bf16",
            checkpoints=smddp.CheckpointPolicy(every=3),
        )
        loader = trainer.loader(dataset(), 32)
        losses = []
        with contextlib.suppress(smddp.Stopped):
            for _ in trainer.epochs(1):
                for inputs, labels in trainer.batches(loader):
                    loss = cross_entropy(trainer.model(inputs), labels)
                    losses.append(loss.detach().clone())
                    trainer.step(loss)
        steps.append((trainer.steps, len(losses)))
        assert all(torch.isfinite(each) for each in losses)
        smddp.leave()
    assert steps == [(6, 6), (12, 6)]


def test_what_fp16_overflows_is_skipped(job: Job) -> None:
    model = new_model()
    trainer = smddp.Trainer(job, model, new_optimizer(model), precision="fp16", on_nonfinite="skip")
    train(trainer, batches())
    before = weights(trainer.module)
    inputs, labels = batches(1)[0]
    for images, targets in trainer.batches([(inputs, labels)]):
        trainer.step(cross_entropy(trainer.model(images), targets) * float("inf"))
    parameters = {name for name, _ in trainer.module.named_parameters()}
    names = list(trainer.module.state_dict())
    after = weights(trainer.module)
    assert same(
        [each for name, each in zip(names, before, strict=True) if name in parameters],
        [each for name, each in zip(names, after, strict=True) if name in parameters],
    )


def test_a_batch_from_a_loader_with_workers_is_pinned_and_moved(job: Job) -> None:
    model = new_model()
    trainer = smddp.Trainer(job, model, new_optimizer(model))
    loader = trainer.loader(dataset(), 32, num_workers=2)
    assert loader.pin_memory
    count = 0
    for _ in trainer.epochs(1):
        for inputs, labels in trainer.batches(loader):
            assert inputs.device == labels.device == DEVICE
            trainer.step(cross_entropy(trainer.model(inputs), labels))
            count += 1
    assert count == STEPS


def program_output(text: str, tmp_path: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "smddp.cli", "run", *arguments, "--run-dir", str(tmp_path / "run"), str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
    )


OUT_OF_MEMORY = """
import smddp, torch
from torch import nn
def main(job):
    model = nn.Linear(4, 4)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs in trainer.batches([torch.randn(2, 4)] * 3):
        torch.empty(10**12, dtype=torch.float32, device=trainer.device)
        trainer.step(trainer.model(inputs).sum())
smddp.run(main)
"""

KERNEL_FAULT = """
import smddp, torch
from torch import nn
def main(job):
    model = nn.Linear(4, 4)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for inputs in trainer.batches([torch.randn(2, 4)] * 30):
        loss = nn.functional.cross_entropy(trainer.model(inputs), torch.tensor([1, 99], device=trainer.device))
        trainer.step(loss)
smddp.run(main)
"""


@pytest.mark.usefixtures("forked_ranks")
def test_out_of_memory_is_the_reason(tmp_path: Path) -> None:
    ended = program_output(OUT_OF_MEMORY, tmp_path)
    assert ended.returncode not in (0, 75)
    failure = next(tmp_path.glob("run/**/failure")).read_text()
    assert re.search("OutOfMemoryError: (CUDA|late device) out of memory", failure)


@pytest.mark.only_on("cuda")
def test_an_assertion_of_a_kernel_is_the_reason(tmp_path: Path) -> None:
    ended = program_output(KERNEL_FAULT, tmp_path)
    assert ended.returncode not in (0, 75)
    failure = next(tmp_path.glob("run/**/failure")).read_text()
    assert "device-side assert" in failure


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path: Path) -> None:
    loops = ["by hand", "smddp"]
    ended = subprocess.run(
        [
            *(sys.executable, Path(__file__).parents[2] / "benchmarks" / "gpu.py", "--device", KIND, "--small"),
            *("--input", "synthetic", "--precision", "bf16", "--loop", *loops),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all(loop in ended.stdout for loop in loops)
    assert "held training up for" in ended.stdout
