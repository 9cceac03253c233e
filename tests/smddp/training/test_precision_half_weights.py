"""O2: the forward pass has half weights, everything else float32 ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from smddp import Trainer
from smddp.job import Job
from smddp.training.precision import HalfWeightsModel


class Network(nn.Module):
    """Convolution, norms, a float buffer that the forward pass changes, weights that are one, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 4, 3)
        self.batch_norm = nn.BatchNorm2d(4)
        self.layer_norm = nn.LayerNorm(4)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(4, 2)
        self.frozen.requires_grad_(False)
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.types: dict[str, tuple[torch.dtype, torch.dtype]] = {}
        for name, part in self.named_children():
            part.register_forward_hook(
                lambda part, inputs, output, name=name: self.types.update({name: (inputs[0].dtype, output.dtype)})
            )

    def forward(self, images: Tensor, *, options: dict[str, Tensor] | None = None) -> Tensor:
        self.calls += 1
        hidden = self.batch_norm(self.convolution(images)).relu().mean(dim=(2, 3))
        if options is not None:
            hidden = hidden + options["shift"]
        self.largest.copy_(hidden.detach().max())
        return self.frozen(self.second(self.layer_norm(self.first(hidden))))


def images() -> Tensor:
    return torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def test_layers_compute_in_half_and_norms_in_float32() -> None:
    network = Network()
    output = HalfWeightsModel(network)(images(), options={"shift": torch.ones(4)})
    half, full = torch.float16, torch.float32
    assert network.types.pop("batch_norm") == network.types.pop("layer_norm") == (full, full)
    assert set(network.types.values()) == {(half, half)}
    assert output.dtype == full


def test_the_gradients_reach_the_float32_weights_and_are_nearly_those_of_float32() -> None:
    network, exact = Network(), Network()
    HalfWeightsModel(network)(images()).square().mean().backward()
    exact(images()).square().mean().backward()
    for (name, weight), expected in zip(network.named_parameters(), exact.parameters(), strict=True):
        assert weight.dtype == torch.float32
        assert (weight.grad is None) == (expected.grad is None) == name.startswith("frozen")
        if weight.grad is not None and expected.grad is not None:
            assert weight.grad.dtype == torch.float32
            assert torch.allclose(weight.grad, expected.grad, rtol=0.05, atol=0.01), name
    assert network.first.weight.grad is not None
    assert torch.equal(network.first.weight.half().float(), network.first.weight) is False  # a master, not a copy


def test_buffers_keep_their_type_and_what_the_forward_pass_made_of_them() -> None:
    network, exact = Network(), Network()
    HalfWeightsModel(network)(images())
    exact(images())
    for (name, value), expected in zip(network.named_buffers(), exact.buffers(), strict=True):
        assert value.dtype == expected.dtype
        assert torch.allclose(value, expected, rtol=0.01, atol=1e-3), name
    assert network.calls == 1
    assert network.largest > 0


def test_a_call_of_the_module_itself_is_a_float32_one() -> None:
    network, untouched = Network(), Network()
    HalfWeightsModel(network)
    assert torch.equal(network(images()), untouched(images()))


@pytest.mark.slow
def test_what_torch_compile_made_is_refused() -> None:
    with pytest.raises(ValueError, match=r"which torch.compile does not see: give the model that is not compiled, or"):
        HalfWeightsModel(torch.compile(nn.Linear(2, 2)))  # type: ignore[arg-type]


def train(job: Job, precision: str, *, epochs: int) -> Network:
    network = Network()
    optimizer = torch.optim.SGD([each for each in network.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    trainer = Trainer(job, network, optimizer, precision=precision, clip_norm=1.0)  # type: ignore[arg-type]
    loader = trainer.loader(TensorDataset(images()), batch_size=4)
    for _ in trainer.epochs(epochs):
        for (batch,) in trainer.batches(loader):
            trainer.step(nn.functional.mse_loss(trainer.model(batch), torch.ones(4, 2)))
    trainer.save_model()
    saved = torch.load(job.model_dir / "model.pt", weights_only=True)
    low = torch.float16 if precision == "O3" else torch.float32
    assert {value.dtype for value in saved.values() if value.is_floating_point()} == {low}
    return network


@pytest.mark.parametrize("precision", ["O2", "O3"])
@pytest.mark.slow
def test_a_training_in_it_learns_and_resumes_exactly(tmp_path: Path, precision: str) -> None:
    undisturbed = train(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), precision, epochs=12)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    train(job, precision, epochs=7)
    resumed = train(job, precision, epochs=12)
    for (name, value), expected in zip(resumed.state_dict().items(), undisturbed.state_dict().values(), strict=True):
        assert torch.equal(value, expected), name
    begun = Network().train()

    def loss(network: Network) -> float:
        with torch.no_grad():
            return nn.functional.mse_loss(network.float()(images()), torch.ones(8, 2)).item()

    assert loss(undisturbed) < 0.8 * loss(begun)


class InFloat32(nn.Module):
    """A norm layer between layers of half weights, as one writes it by hand."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden.float()).half()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))


def batches() -> list[Tensor]:
    return [0.1 * torch.randn(4, 4, generator=torch.Generator().manual_seed(number)) for number in range(6)]


def trained(job: Job, precision: str) -> list[Tensor]:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = Trainer(job, model, optimizer, precision=precision, clip_norm=0.1)  # type: ignore[arg-type]
    for _ in trainer.epochs(1):
        for batch in trainer.batches(batches()):
            trainer.step(trainer.model(batch).square().mean())
    assert trainer.steps == len(batches())
    return list(model.parameters())


def test_o2_has_the_bits_of_half_weights_with_masters_by_hand(job: Job) -> None:
    masters = list(small().parameters())
    optimizer = torch.optim.SGD(masters, lr=0.5, momentum=0.9)
    half = copy.deepcopy(small()).half()
    half[1] = InFloat32(half[1].float())
    scaler = torch.amp.GradScaler("cpu")
    for batch in batches():
        half.zero_grad()
        scaler.scale(half(batch.half()).float().square().mean()).backward()
        for master, weight in zip(masters, half.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(masters, 0.1)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for master, weight in zip(masters, half.parameters(), strict=True):
                weight.copy_(master)
    assert not torch.equal(masters[0], small()[0].weight)
    for ours, master in zip(trained(job, "O2"), masters, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, master)


def test_o3_has_the_bits_of_a_half_model_by_hand(job: Job) -> None:
    half = small().half()
    optimizer = torch.optim.SGD(half.parameters(), lr=0.5, momentum=0.9)
    for batch in batches():
        optimizer.zero_grad()
        half(batch.half()).float().square().mean().backward()
        nn.utils.clip_grad_norm_(half.parameters(), 0.1)
        optimizer.step()
    assert not torch.equal(half[0].weight, small().half()[0].weight)
    for ours, weight in zip(trained(job, "O3"), half.parameters(), strict=True):
        assert ours.dtype == torch.float16
        assert torch.equal(ours, weight)


PROGRAM = """
import torch
from torch import nn
import smddp

def main(job):
    for precision in ["O2", "O3"]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        trainer = smddp.Trainer(job, model, optimizer, precision=precision, accumulate=2, name=precision)
        torch.manual_seed(job.cluster.rank)
        for epoch in trainer.epochs(2):
            for _ in range(4):
                trainer.step(trainer.model(torch.randn(4, 4)).square().mean())
        print(precision, *(value.double().sum().item() for value in model.state_dict().values()))

smddp.run(main)
"""


@pytest.mark.slow
def test_two_ranks_keep_the_same_weights(run_ranks: Callable[..., list[Any]], tmp_path: Path) -> None:
    one, other = run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert (one.code, other.code) == (0, 0), (one, other)
    assert [line.split()[0] for line in one.printed.splitlines()] == ["O2", "O3"]
    assert one.printed == other.printed
    assert "nan" not in one.printed
