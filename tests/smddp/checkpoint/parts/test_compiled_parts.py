"""A model of which a part is compiled: what is saved of it, and who can go on from that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smddp.checkpoint import Checkpointer
from smddp.checkpoint.convert.saved_model import write_weights
from smddp.checkpoint.format.plain_names import plain_name
from smddp.checkpoint.parts.optimizers import NamedOptimizer

NAMES = ["encoder.0.bias", "encoder.0.weight", "encoder.1.bias", "encoder.1.num_batches_tracked"]
NAMES += ["encoder.1.running_mean", "encoder.1.running_var", "encoder.1.weight", "head.bias", "head.weight"]


class Saved:
    """A part that was saved as it is, as an older smddp did."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> Mapping[str, Any]:
        return self.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = state


class Model(nn.Module):
    def __init__(self, *, is_compiled: bool) -> None:
        super().__init__()
        encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.encoder = torch.compile(encoder, backend="eager") if is_compiled else encoder
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def make(*, is_compiled: bool, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    torch.manual_seed(seed)
    model = Model(is_compiled=is_compiled)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    named = NamedOptimizer(optimizer, model, on_change="keep", logs=False)
    return model, optimizer, {"model": model, "optimizer": named}


def old(model: nn.Module, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint had before the names in it were plain."""
    state = parts["optimizer"].state_dict()
    state["param_groups"][0]["param_names"] = [name for name, _ in model.named_parameters()]
    return {"model": Saved(model.state_dict()), "optimizer": Saved(state)}


def save(path: Path, parts: dict[str, Any]) -> None:
    with Checkpointer(path, parts) as checkpointer:
        checkpointer.save(1)
        checkpointer.wait()


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(("was_compiled", "is_compiled"), [(True, False), (False, True), (True, True)])
def test_a_run_goes_on_whether_parts_are_compiled_or_not(
    was_compiled: bool, is_compiled: bool, is_old: bool, tmp_path: Path
) -> None:
    model, optimizer, parts = make(is_compiled=was_compiled, seed=0)
    save(tmp_path, old(model, parts) if is_old else parts)
    other, other_optimizer, other_parts = make(is_compiled=is_compiled, seed=1)
    with Checkpointer(tmp_path, other_parts) as checkpointer:
        assert checkpointer.load() is not None
    for (name, value), (other_name, loaded) in zip(model.state_dict().items(), other.state_dict().items(), strict=True):
        assert plain_name(name) == plain_name(other_name)
        assert torch.equal(value, loaded), name
    for weight, own in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[weight]["exp_avg"], other_optimizer.state[own]["exp_avg"])


def test_what_is_saved_of_a_compiled_part_has_its_plain_names(tmp_path: Path) -> None:
    model, _, parts = make(is_compiled=True, seed=0)
    save(tmp_path / "checkpoints", parts)
    loaded = Saved({})
    with Checkpointer(tmp_path / "checkpoints", {"model": loaded}) as checkpointer:
        checkpointer.load()
    assert sorted(loaded.state) == NAMES
    write_weights(model.state_dict(), tmp_path)
    written = torch.load(tmp_path / "model.pt", weights_only=True)
    assert sorted(written) == NAMES
    plain = Model(is_compiled=False)
    plain.load_state_dict(written)
    assert written._metadata == plain.state_dict()._metadata, "the version of BatchNorm's layer is that of its own"
    from safetensors.torch import load_file

    assert sorted(load_file(tmp_path / "model.safetensors")) == NAMES
