"""A checkpoint of a fine-tuned model leaves out the frozen weights, and no other; a resume needs the same ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from smddp.checkpoint import Checkpointer, WeightsError, export, list_checkpoints, load_weights
from smddp.checkpoint.format.frozen import LeftOut
from smddp.checkpoint.restore.reader import read_checkpoint
from smddp.checkpoint.stores.opening import open_store
from smddp.errors import CheckpointError


def fine_tuned(seed: int = 0) -> nn.Sequential:
    """A frozen base, with BatchNorm, under a head that is trained."""
    torch.manual_seed(seed)
    base = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    base.requires_grad_(False)
    return nn.Sequential(base, nn.Linear(8, 2))


def checkpointer(directory: Path, model: nn.Module, *, save_frozen: bool = False, **more: Any) -> Checkpointer:
    return Checkpointer(directory, {"model": model, **more}, save_frozen=save_frozen)


def saved(directory: Path, model: nn.Module, step: int = 1, **options: Any) -> None:
    with checkpointer(directory, model, **options) as run:
        run.open()
        run.save(step)


def left_out(directory: Path, step: int = 1, part: str = "model") -> set[str]:
    state = read_checkpoint(open_store(directory), step).unflatten(part)
    return {name for name, value in state.items() if isinstance(value, LeftOut)}


BASE = {"0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"}


def train(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(1)
    model(torch.randn(5, 4))  # BatchNorm's statistics change


def test_frozen_weights_are_left_out_and_buffers_are_not(tmp_path: Path) -> None:
    model = fine_tuned()
    with checkpointer(tmp_path, model) as run:
        run.load()
        train(model)
        run.save(1)
    assert left_out(tmp_path) == BASE
    again = fine_tuned()
    with checkpointer(tmp_path, again) as run:
        assert run.load() is not None
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_without_a_word_all_is_saved(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, {"model": fine_tuned()}) as run:
        run.save(1)
    assert left_out(tmp_path) == set()


def thaw_and_train(model: nn.Module) -> None:
    model[0][0].requires_grad_(True)  # type: ignore[index]
    train(model)


def thaw_train_and_freeze(model: nn.Module) -> None:
    thaw_and_train(model)
    model[0][0].requires_grad_(False)  # type: ignore[index]


def write_past_autograd(model: nn.Module) -> None:
    for weight in model[0][0].parameters():  # type: ignore[index]
        weight.data.mul_(1.5)
    model[0][0].bias.data[0] += 1  # type: ignore[index]


def exchange(model: nn.Module) -> None:
    model[0][0] = nn.Linear(4, 8).requires_grad_(False)  # type: ignore[index, operator]


@pytest.mark.parametrize("change", [thaw_and_train, thaw_train_and_freeze, write_past_autograd, exchange])
def test_a_weight_that_is_trained_or_changed_is_saved(tmp_path: Path, change: Callable[[nn.Module], None]) -> None:
    model = fine_tuned()
    with checkpointer(tmp_path, model) as run:
        run.open()
        run.save(1)
        run.wait()
        change(model)
        run.save(2)
    assert (left_out(tmp_path, 1), left_out(tmp_path, 2)) == (BASE, {"0.1.weight", "0.1.bias"})
    again = fine_tuned()
    with checkpointer(tmp_path, again) as run:
        run.load()
        run.save(3)  # what was loaded is not the script's own weight, so it is saved again
    assert left_out(tmp_path, 3) == {"0.1.weight", "0.1.bias"}
    for name, value in again.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def shuffle_rows(model: nn.Module) -> None:
    model[0].weight.data.copy_(model[0].weight.detach().roll(8, dims=0))  # type: ignore[index, union-attr]


@pytest.mark.parametrize("weight", [torch.eye(1024), torch.eye(512).double(), torch.ones(64, 64).tril()])
def test_an_exchange_of_rows_is_a_change(tmp_path: Path, weight: torch.Tensor) -> None:
    def model() -> nn.Sequential:
        table = nn.Embedding.from_pretrained(weight.clone(), freeze=True)
        return nn.Sequential(table, nn.Linear(2, 2))

    trained = model()
    with checkpointer(tmp_path, trained) as run:
        run.open()
        shuffle_rows(trained)
        run.save(1)
    assert left_out(tmp_path) == set()


def test_a_log_tells_what_is_left_out_and_what_no_longer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = fine_tuned()
    with caplog.at_level(logging.INFO, "smddp.checkpoint.parts.modules"), checkpointer(tmp_path, model) as run:
        run.open()
        for step in (1, 2):
            run.save(step)
            run.wait()
        thaw_and_train(model)
        for step in (3, 4):
            run.save(step)
            run.wait()
    assert caplog.messages == [
        "checkpoints leave out 4 frozen weights of model (224 B): each start must load the same ones",
        "2 frozen weights of model have changed or are trained, and are saved from now on: 0.0.weight, 0.0.bias",
    ]


def test_a_log_tells_that_nothing_is_frozen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "smddp.checkpoint.parts.modules"):
        saved(tmp_path, nn.Linear(2, 2), average=AveragedModel(nn.Linear(2, 2)).requires_grad_(False))
    assert caplog.messages == ["save_frozen=False leaves nothing out: no weight of model is frozen"]


def test_a_run_that_has_changed_them_can_not_go_back(tmp_path: Path) -> None:
    model = fine_tuned()
    with checkpointer(tmp_path, model) as run:
        run.open()
        run.save(1)
        run.wait()
        thaw_and_train(model)
        changed = (
            r"0\.0\.weight, 0\.0\.bias; this run has changed them since, and only a new start of the job loads them"
        )
        with pytest.raises(CheckpointError, match=changed):
            run.load()
    with checkpointer(tmp_path, fine_tuned()) as run:
        assert run.load() is not None


def test_a_first_save_without_a_load_before_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"call load\(\) or open\(\) before training"):
        checkpointer(tmp_path, fine_tuned()).save(1)
    with pytest.raises(ValueError, match="save_frozen is 'no': give True or False"):
        checkpointer(tmp_path, fine_tuned(), save_frozen="no")  # type: ignore[arg-type]


class Converting(nn.Linear):
    """A layer whose older version had its weight negated."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2 and f"{prefix}weight" in state:
            state[f"{prefix}weight"] = -state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_a_base_is_not_converted_by_the_layer_s_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(Converting(3, 3).requires_grad_(False), nn.Linear(3, 1))

    with monkeypatch.context() as older:
        older.setattr(Converting, "_version", 1)
        saved(tmp_path, model())
    again = model()
    with checkpointer(tmp_path, again) as run:
        run.load()
    assert torch.equal(again[0].weight, model()[0].weight)


class Plain(nn.Module):
    """A module whose `state_dict` takes no arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = fine_tuned()

    def state_dict(self) -> Any:  # type: ignore[override]
        return self.inner.state_dict()

    def load_state_dict(self, state: Any, strict: bool = True) -> Any:  # type: ignore[override]
        return self.inner.load_state_dict(state, strict=strict)


@pytest.mark.parametrize("save_frozen", [True, False])
def test_a_state_of_other_names_than_the_parameters_is_saved_whole(tmp_path: Path, save_frozen: bool) -> None:
    saved(tmp_path, Plain(), save_frozen=save_frozen)
    assert left_out(tmp_path) == set()
    with checkpointer(tmp_path, Plain(), save_frozen=save_frozen) as run:
        assert run.load() is not None


def test_values_that_a_hook_changes_are_saved(tmp_path: Path) -> None:
    def model() -> nn.Module:
        def double(_module: nn.Module, state: Any, *_rest: Any) -> None:
            state["0.0.weight"] = 2 * state["0.0.weight"]

        made = fine_tuned()
        made.register_state_dict_post_hook(double)
        return made

    saved(tmp_path, model())
    assert left_out(tmp_path) == BASE - {"0.0.weight"}
    with checkpointer(tmp_path, model()) as run:
        assert run.load() is not None


def strided() -> torch.Tensor:
    return torch.randn(6, 4)[:, 0]


@pytest.mark.parametrize("make", [strided, lambda: torch.ones(1).expand(5), lambda: torch.empty(0, 3)])
def test_a_weight_of_any_strides_is_left_out(tmp_path: Path, make: Callable[[], torch.Tensor]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.codes = nn.Parameter(make(), requires_grad=False)
            self.head = nn.Linear(2, 2)

    saved(tmp_path, Model())
    assert left_out(tmp_path) == {"codes"}
    with checkpointer(tmp_path, Model()) as run:
        assert run.load() is not None


@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta"])
def test_what_can_not_be_saved_is_told_as_ever(tmp_path: Path, kind: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    weight = torch.ones(2, 2)
    weight = {
        "sparse": weight.to_sparse,
        "quantized": lambda: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
        "meta": lambda: weight.to("meta"),
    }[kind]()
    model.codes = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(CheckpointError, match=r"model\.codes is a "):
        saved(tmp_path, model)


def test_only_a_model_may_leave_something_out(tmp_path: Path) -> None:
    class Forged:
        def state_dict(self) -> Any:
            return {"lr": LeftOut("float32", (), "0" * 16)}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError(state)

    with Checkpointer(tmp_path, {"part": Forged()}) as run:
        run.save(1)
    with pytest.raises(CheckpointError, match="leaves out values of part: only a model's may be left out"):
        Checkpointer(tmp_path, {"part": Forged()}).load()


def test_another_base_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    saved(tmp_path, fine_tuned())
    model = fine_tuned()
    with torch.no_grad():
        model[0][0].weight[0, 0] += 1e-6
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(
        CheckpointError,
        match=r"step 1 does not fit this run's model: 1 of 4 frozen weights, which it leaves out, have other values "
        r"here: 0\.0\.weight; load the same base model, in the same precision, before training begins\. Nothing was",
    ):
        checkpointer(tmp_path, model).load()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_same_base_in_another_precision_is_another(tmp_path: Path) -> None:
    saved(tmp_path, fine_tuned())
    with pytest.raises(CheckpointError, match="4 of 4 frozen weights"):
        checkpointer(tmp_path, fine_tuned().bfloat16()).load()


def test_a_model_of_other_layers_is_told_as_ever(tmp_path: Path) -> None:
    saved(tmp_path, fine_tuned())
    other = nn.Sequential(nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9)), nn.Linear(9, 2))
    with pytest.raises(CheckpointError, match=r"it is of another model: 7 misshapen: 0\.0\.weight \(\[8, 4\] instead"):
        checkpointer(tmp_path, other).load()


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False)])
def test_a_resume_may_save_more_or_less_than_before(tmp_path: Path, before: bool, after: bool) -> None:
    model = fine_tuned()
    train(model)
    saved(tmp_path, model, save_frozen=before)
    again = fine_tuned()
    with checkpointer(tmp_path, again, save_frozen=after) as run:
        run.load()
        run.save(2)
    assert torch.equal(again[1].weight, model[1].weight)
    assert left_out(tmp_path, 2) == (set() if after else BASE)


@pytest.mark.parametrize("save_frozen", [True, False])
def test_a_log_tells_that_frozen_weights_are_saved_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, save_frozen: bool
) -> None:
    saved(tmp_path, fine_tuned())
    with checkpointer(tmp_path, fine_tuned(), save_frozen=save_frozen) as run:
        with caplog.at_level(logging.INFO, "smddp.checkpoint.parts.modules"):
            assert run.load() is not None
        told = "the checkpoint leaves out 4 frozen weights of model, and this run saves them: save_frozen is True"
        assert caplog.messages == [told] * save_frozen


def test_a_module_with_nothing_to_train_is_saved_whole(tmp_path: Path) -> None:
    model, teacher = fine_tuned(), fine_tuned(seed=1).requires_grad_(False)
    average = AveragedModel(model).requires_grad_(False)
    with checkpointer(tmp_path, model, average=average, teacher=teacher) as run:
        run.open()
        run.save(1)
    assert (left_out(tmp_path), left_out(tmp_path, part="average"), left_out(tmp_path, part="teacher")) == (
        BASE,
        set(),
        set(),
    )
    other = fine_tuned(seed=2).requires_grad_(False)
    with checkpointer(tmp_path, fine_tuned(), average=AveragedModel(fine_tuned()), teacher=other) as run:
        run.load()
    assert torch.equal(other[0][0].weight, teacher[0][0].weight)


def test_compiled_layers_and_tied_weights_are_left_out_by_plain_names(tmp_path: Path) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        table = nn.Embedding(6, 4).requires_grad_(False)
        head = nn.Linear(4, 6, bias=False)
        head.weight = table.weight
        return nn.Sequential(torch.compile(table), nn.Linear(4, 4), head)  # type: ignore[arg-type]

    saved(tmp_path, model())
    assert left_out(tmp_path) == {"0.weight", "2.weight"}
    with checkpointer(tmp_path, model()) as run:
        assert run.load() is not None


def test_the_files_have_only_what_is_trained(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(500, 1000).requires_grad_(False), nn.Linear(1000, 3))
    saved(tmp_path / "all", model, save_frozen=True)
    saved(tmp_path / "trained", model)
    sizes = [(each / "step-000000000001") for each in (tmp_path / "all", tmp_path / "trained")]
    whole, trained = (sum(file.stat().st_size for file in size.rglob("model*.safetensors")) for size in sizes)
    assert whole > 2_000_000 > 20_000 > trained
    assert all(info.valid for info in list_checkpoints(tmp_path / "trained"))


def test_its_weights_load_into_the_same_base_and_no_other(tmp_path: Path) -> None:
    model = fine_tuned()
    train(model)
    saved(tmp_path, model)
    same = fine_tuned()
    assert load_weights(same, tmp_path).complete
    assert torch.equal(same[1].weight, model[1].weight)
    another = fine_tuned(seed=3)
    before = another[1].weight.detach().clone()
    for strict in (True, False):
        with pytest.raises(
            WeightsError, match=r"2 of 4 frozen weights, which the checkpoint leaves out, have other va"
        ):
            load_weights(another, tmp_path, strict=strict)
    assert torch.equal(another[1].weight, before)
    assert load_weights(another[1], tmp_path, prefix="1.").complete


def test_an_export_has_what_the_checkpoint_has_and_tells_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path / "run", fine_tuned())
    for name in ("model", "model.safetensors", "model.pt", "dcp"):
        with caplog.at_level(logging.WARNING):
            export(tmp_path / "run", tmp_path / name, format="dcp" if name == "dcp" else None)
        assert "the export of model is without its 4 frozen weights, such as 0.0.weight" in caplog.text
        caplog.clear()
    exported = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {*exported} == {"1.weight", "1.bias", "0.1.running_mean", "0.1.running_var", "0.1.num_batches_tracked"}


DIVIDED = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from smddp.checkpoint import Checkpointer
from smddp.dtensor import local_values

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 2))
for layer in model:
    fully_shard(layer)
fully_shard(model)
with Checkpointer(DIRECTORY, {"model": model}, save_frozen=False) as run:
    run.load()
    run.save(1)
    run.wait()
    if dist.get_rank() == 1:  # its piece alone changes
        local_values(model[0].weight.data)[0, 0] += 1
    run.save(2)
    run.wait()
"""


def test_a_weight_is_left_out_only_if_no_rank_has_changed_its_piece(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    ended = run_ranks(DIVIDED.replace("DIRECTORY", repr(str(tmp_path / "run"))), [{}] * 3)
    assert [each.code for each in ended] == [0] * 3, ended
    base = {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert (left_out(tmp_path / "run", 1), left_out(tmp_path / "run", 2)) == (base, base - {"0.weight"})
    torch.manual_seed(0)
    frozen = [nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 8).requires_grad_(False)]
    model = nn.Sequential(*frozen, nn.Linear(8, 2))
    before = model[0].weight.detach().clone()
    with checkpointer(tmp_path / "run", model) as run:
        run.load()
    changed = (model[0].weight - before).nonzero().tolist()
    assert changed == [[3, 0]]


def test_an_expanded_buffer_is_refused_at_the_save_and_not_at_the_resume(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("scale", torch.ones(1).expand(4))
    with pytest.raises(CheckpointError, match=r"scale of model is expanded: .* by \.clone\(\)"):
        saved(tmp_path, model)
    model.scale = model.scale.clone()
    saved(tmp_path, model)
