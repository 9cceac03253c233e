"""A script that changed between two runs: what holds is said, and nothing is given to the wrong parameter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from smddp import Checkpointer, CheckpointPolicy, Trainer
from smddp.checkpoint.parts.optimizers import NamedOptimizer
from smddp.distributed import leave
from smddp.errors import CheckpointError
from smddp.job import Job


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    leave()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})


def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"first": nn.Linear(3, 3, bias=False), "second": nn.Linear(3, 3, bias=False)})


def trained(job: Job, optimizer: torch.optim.Optimizer, module: nn.ModuleDict, **options: Any) -> None:
    trainer = Trainer(job, module, optimizer, **options)
    for _ in range(2):
        trainer.step(module["first"](torch.ones(1, 3)).sum() + 10 * module["second"](torch.ones(1, 3)).sum())
    trainer.save(wait=True)


def resumed(job: Job, optimizer: torch.optim.Optimizer, module: nn.ModuleDict, **options: Any) -> None:
    on_change = options.pop("on_change", "keep")
    Trainer(job, module, optimizer, checkpoints=CheckpointPolicy(on_change=on_change), **options).resume()


def test_parameters_in_another_order_get_their_own_moments(job: Job) -> None:
    module = model()
    trained(job, torch.optim.SGD([module["first"].weight, module["second"].weight], lr=0.1, momentum=0.9), module)
    again = model()
    optimizer = torch.optim.SGD([again["second"].weight, again["first"].weight], lr=0.1, momentum=0.9)
    resumed(job, optimizer, again)
    assert optimizer.state[again["second"].weight]["momentum_buffer"].mean() == pytest.approx(19.0)
    assert optimizer.state[again["first"].weight]["momentum_buffer"].mean() == pytest.approx(1.9)
    assert "param_names" not in optimizer.param_groups[0]


@pytest.mark.parametrize(
    ("on_change", "holds", "told"),
    [("keep", 0.1, "the checkpoint's options"), ("take", 0.001, "this script's options")],
)
def test_another_learning_rate_is_told_with_what_holds(
    job: Job, caplog: pytest.LogCaptureFixture, on_change: str, holds: float, told: str
) -> None:
    module = model()
    trained(job, torch.optim.SGD(module.parameters(), lr=0.1), module)
    again = model()
    optimizer = torch.optim.SGD(again.parameters(), lr=0.001)
    resumed(job, optimizer, again, on_change=on_change)
    assert optimizer.param_groups[0]["lr"] == holds
    assert ('(on_change="take") takes this script\'s' in caplog.text) == (on_change == "keep")
    assert (
        f"the optimizer resumes with {told}: lr was 0.1 in the checkpoint's script and is 0.001 in this one"
        in caplog.text
    )


def test_under_a_schedule_it_is_the_rate_that_the_schedule_began_with(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    def parts(lr: float) -> tuple[nn.ModuleDict, torch.optim.Optimizer, CosineAnnealingLR]:
        module = model()
        optimizer = torch.optim.SGD(module.parameters(), lr=lr)
        return module, optimizer, CosineAnnealingLR(optimizer, T_max=10)

    module, optimizer, scheduler = parts(0.1)
    trained(job, optimizer, module, scheduler=scheduler)
    saved = optimizer.param_groups[0]["lr"]
    assert saved < 0.1

    module, optimizer, scheduler = parts(0.1)
    resumed(job, optimizer, module, scheduler=scheduler, on_change="refuse")  # nothing changed
    assert optimizer.param_groups[0]["lr"] == saved
    assert "resumes with" not in caplog.text

    module, optimizer, scheduler = parts(0.2)
    leave()
    resumed(job, optimizer, module, scheduler=scheduler, on_change="take")
    assert optimizer.param_groups[0]["lr"] == 2 * saved
    assert scheduler.last_epoch == 2
    scheduler.step()
    _module, _, whole = parts(0.2)
    for _ in range(3):
        whole.optimizer.step()
        whole.step()
    assert scheduler.get_last_lr() == whole.get_last_lr()


def test_a_momentum_under_a_schedule_that_leaves_it_alone_is_an_option(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    def parts(momentum: float) -> tuple[nn.ModuleDict, torch.optim.Optimizer, CosineAnnealingLR]:
        module = model()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum)
        return module, optimizer, CosineAnnealingLR(optimizer, T_max=10)

    module, optimizer, scheduler = parts(0.9)
    trained(job, optimizer, module, scheduler=scheduler)
    module, optimizer, scheduler = parts(0.8)
    leave()
    resumed(job, optimizer, module, scheduler=scheduler, on_change="take")
    assert optimizer.param_groups[0]["momentum"] == 0.8
    assert "momentum was 0.9 in the checkpoint's script and is 0.8 in this one" in caplog.text


def groups(module: nn.ModuleDict, *layouts: tuple[tuple[str, ...], float, float]) -> torch.optim.SGD:
    """Groups of layers, each with its learning rate and weight decay."""
    return torch.optim.SGD(
        [
            {"params": [module[name].weight for name in names], "lr": lr, "weight_decay": decay}
            for names, lr, decay in layouts
        ]
    )


@pytest.mark.parametrize("on_change", ["keep", "take", "refuse"])
def test_groups_in_another_order_keep_their_own_options(
    job: Job, caplog: pytest.LogCaptureFixture, on_change: str
) -> None:
    module, again = model(), model()
    trained(job, groups(module, (("first",), 0.1, 0.5), (("second",), 0.2, 0.0)), module)
    optimizer = groups(again, (("second",), 0.2, 0.0), (("first",), 0.1, 0.5))
    resumed(job, optimizer, again, on_change=on_change)
    found = [
        (group["params"][0] is again["first"].weight, group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
    ]
    assert found == [(False, 0.2, 0.0), (True, 0.1, 0.5)]
    assert "resumes with" not in caplog.text


def test_a_changed_group_is_told_by_a_parameter_of_it(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    module, again = model(), model()
    trained(job, groups(module, (("first",), 0.1, 0.5), (("second",), 0.2, 0.0)), module)
    optimizer = groups(again, (("second",), 0.3, 0.0), (("first",), 0.1, 0.5))
    resumed(job, optimizer, again)
    told = "lr of the group of second.weight was 0.2 in the checkpoint's script and is 0.3 in this one"
    assert f"resumes with the checkpoint's options: {told}; checkpoints=Checkpoint" in caplog.text
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.1]


@pytest.mark.parametrize("on_change", ["keep", "take", "refuse"])
def test_a_group_made_of_unlike_groups_is_refused_or_has_the_scripts_options(
    job: Job, caplog: pytest.LogCaptureFixture, on_change: str
) -> None:
    def layers() -> nn.ModuleDict:
        return nn.ModuleDict({**model(), "third": nn.Linear(3, 3, bias=False)})

    module, again = layers(), layers()
    trained(job, groups(module, (("first",), 0.1, 0.5), (("second", "third"), 0.2, 0.0)), module)
    optimizer = groups(again, (("first", "second"), 0.1, 0.5), (("third",), 0.2, 0.0))
    told = (
        "of the group of first.weight come from 2 groups of the checkpoint's script, which differ in lr, weight_decay"
    )
    if on_change == "take":
        resumed(job, optimizer, again, on_change=on_change)
        assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.1, 0.5), (0.2, 0.0)]
        assert told in caplog.text
    else:
        reason = {"keep": "one group cannot keep the options", "refuse": "allows no change"}[on_change]
        with pytest.raises(CheckpointError, match=f"{told}.*{reason}.*Nothing was loaded"):
            resumed(job, optimizer, again, on_change=on_change)


def test_groups_that_were_alike_can_be_cut_otherwise(job: Job) -> None:
    def layers() -> nn.ModuleDict:
        return nn.ModuleDict({**model(), "third": nn.Linear(3, 3, bias=False)})

    module, again = layers(), layers()
    trained(job, groups(module, (("first",), 0.1, 0.5), (("second", "third"), 0.1, 0.5)), module)
    optimizer = groups(again, (("first", "second"), 0.1, 0.5), (("third",), 0.1, 0.5))
    resumed(job, optimizer, again, on_change="refuse")


def test_layers_that_came_later_have_names(job: Job) -> None:
    module = model()
    optimizer = torch.optim.SGD(module["first"].parameters(), lr=0.1, momentum=0.9)
    part = NamedOptimizer(optimizer, module, on_change="keep", logs=True)
    module["third"] = nn.Linear(3, 3, bias=False)
    optimizer.add_param_group({"params": module["third"].parameters(), "lr": 0.3})
    sum(weight.sum() for weight in module.parameters()).backward()
    optimizer.step()
    state = part.state_dict()
    assert [group["param_names"] for group in state["param_groups"]] == [["first.weight"], ["third.weight"]]

    again = nn.ModuleDict({**model(), "third": nn.Linear(3, 3, bias=False)})
    other = torch.optim.SGD(again["third"].parameters(), lr=0.3, momentum=0.9)
    other.add_param_group({"params": again["first"].parameters(), "lr": 0.1})
    resumed_part = NamedOptimizer(other, again, on_change="refuse", logs=True)
    resumed_part.check_state_dict(state)
    resumed_part.load_state_dict(state)
    assert other.state[again["third"].weight]["momentum_buffer"].mean() == 1.0

    unnamed = {**state, "param_groups": [dict(group) for group in state["param_groups"]]}
    unnamed["param_groups"][1]["param_names"] = ["#0"]  # as an older version had it
    NamedOptimizer(optimizer, module, on_change="refuse", logs=True).check_state_dict(unnamed)
    with pytest.raises(ValueError, match=r"not in both: third\.weight, #0"):
        NamedOptimizer(other, again, on_change="keep", logs=True).check_state_dict(unnamed)


def test_a_change_that_is_not_allowed_changes_nothing(job: Job) -> None:
    module = model()
    trained(job, torch.optim.SGD(module.parameters(), lr=0.1), module)
    again = model()
    before = again["first"].weight.detach().clone()
    with pytest.raises(CheckpointError, match=r"on_change='refuse'.*Nothing was loaded"):
        resumed(job, torch.optim.SGD(again.parameters(), lr=0.2), again, on_change="refuse")
    assert torch.equal(again["first"].weight, before)


@pytest.mark.parametrize(
    "direction",
    [
        (torch.optim.SGD, torch.optim.Adam),
        (torch.optim.Adam, torch.optim.SGD),
        (torch.optim.Adam, torch.optim.AdamW),
        (torch.optim.Adam, partial(torch.optim.Adam, amsgrad=True)),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_another_kind_of_optimizer_is_refused_before_anything_is_touched(
    job: Job, direction: tuple[Any, Any], plain: bool
) -> None:
    saved, present = direction
    module, again = model(), model()
    nn.init.zeros_(again["first"].weight)
    with pytest.raises(
        CheckpointError, match=r"(not of|optimizer than) this run's (Adam|SGD|AdamW).*Nothing was loaded"
    ):
        if plain:
            with Checkpointer(
                job.checkpoint_dir, {"model": module, "optimizer": saved(module.parameters(), lr=0.1)}
            ) as checkpointer:
                checkpointer.save(1)
            Checkpointer(job.checkpoint_dir, {"model": again, "optimizer": present(again.parameters(), lr=0.1)}).load()
        else:
            trained(job, saved(module.parameters(), lr=0.1), module)
            resumed(job, present(again.parameters(), lr=0.1), again)
    assert torch.equal(again["first"].weight, torch.zeros(3, 3))


def test_other_parameters_are_refused_by_name(job: Job) -> None:
    module = model()
    trained(job, torch.optim.SGD(module.parameters(), lr=0.1), module)
    again = model()
    with pytest.raises(CheckpointError, match=r"not in both: second\.weight"):
        resumed(job, torch.optim.SGD(again["first"].parameters(), lr=0.1), again)


def test_moments_of_another_shape_are_refused_without_names(tmp_path: Path) -> None:
    layer, other = nn.Linear(2, 3, bias=False), nn.Linear(2, 4, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with Checkpointer(tmp_path, {"optimizer": optimizer}) as checkpointer:
        checkpointer.save(1)
    with pytest.raises(CheckpointError, match=r"momentum_buffer of shape \[3, 2\]"):
        Checkpointer(tmp_path, {"optimizer": torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)}).load()


def test_a_cast_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Checkpointer(tmp_path, {"model": nn.Linear(2, 2)}) as checkpointer:
        checkpointer.save(1)
    Checkpointer(tmp_path, {"model": nn.Linear(2, 2).bfloat16()}).load()
    assert "values of model are cast from float32 to bfloat16" in caplog.text


def test_a_part_that_fails_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    class Fails:
        def state_dict(self) -> dict[str, int]:
            return {"a": 1}

        def load_state_dict(self, state: Any) -> None:
            raise RuntimeError("no")

    module, again = model(), model()
    nn.init.zeros_(again["first"].weight)
    with Checkpointer(tmp_path, {"model": module, "other": Fails()}) as checkpointer:
        checkpointer.save(1)
    with pytest.raises(CheckpointError, match="this run's other"):
        Checkpointer(tmp_path, {"model": again, "other": Fails()}).load()
    assert torch.equal(again["first"].weight, torch.zeros(3, 3))


def test_parameters_without_a_name_are_not_exchanged(job: Job) -> None:
    def groups(module: nn.ModuleDict, beside: nn.ParameterList) -> list[dict[str, Any]]:
        return [
            {"params": [module["first"].weight, beside[0]], "weight_decay": 0.1},
            {"params": [module["second"].weight, beside[1]], "weight_decay": 0.0},
        ]

    module, beside = model(), nn.ParameterList([torch.ones(1), torch.ones(1)])
    kept = {"beside": beside}  # in each checkpoint, but not by the names of the model's parameters
    trained(job, torch.optim.SGD(groups(module, beside), lr=0.1, momentum=0.9), module, state=kept)
    again = model()
    resumed(job, torch.optim.SGD(groups(again, beside), lr=0.1, momentum=0.9), again, on_change="refuse", state=kept)
    other = model()
    with pytest.raises(
        CheckpointError, match="have no names, and this script gives its optimizer the parameters in another"
    ):
        optimizer = torch.optim.SGD(groups(other, beside)[::-1], lr=0.1, momentum=0.9)
        resumed(job, optimizer, other, on_change="take", state=kept)


def test_the_options_of_a_group_that_is_added_while_a_schedule_runs_are_those_that_the_script_gave_it(job: Job) -> None:
    def optimizers(module: nn.ModuleDict) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.SGD(module["first"].parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def add(optimizer: torch.optim.Optimizer, module: nn.ModuleDict) -> None:
        optimizer.add_param_group({"params": module["second"].parameters(), "lr": 0.1, "initial_lr": 0.1})

    module = model()
    optimizer, schedule = optimizers(module)
    trainer = Trainer(job, module, optimizer, scheduler=schedule)
    add(optimizer, module)
    for _ in range(3):
        trainer.step(module["first"](torch.ones(1, 3)).sum() + module["second"](torch.ones(1, 3)).sum())
    trainer.save(wait=True)
    leave()
    again = model()
    optimizer, schedule = optimizers(again)
    add(optimizer, again)
    trainer = Trainer(job, again, optimizer, scheduler=schedule, checkpoints=CheckpointPolicy(on_change="refuse"))
    assert trainer.resume()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.0729)


def test_the_state_of_an_optimizer_keeps_its_dtypes(job: Job) -> None:
    def bfloat16() -> nn.ModuleDict:
        return model().bfloat16()

    module = bfloat16()
    optimizer = torch.optim.NAdam(module.parameters(), lr=0.1)
    trainer = Trainer(job, module, optimizer, precision="fp32")
    for _ in range(3):
        inputs = torch.ones(1, 3, dtype=torch.bfloat16)
        trainer.step(module["first"](inputs).sum() + module["second"](inputs).sum())
    trainer.save(wait=True)
    del trainer
    leave()
    again = bfloat16()
    weights = [again["second"].weight, again["first"].weight]
    other = torch.optim.NAdam(weights, lr=0.1)
    Trainer(job, again, other, precision="fp32").resume()
    for name, value in optimizer.state[module["first"].weight].items():
        taken = other.state[again["first"].weight][name]
        assert taken.dtype == value.dtype, name
        assert torch.equal(taken, value), name
    assert "param_dtypes" not in other.param_groups[0]


def weights_after(optimizer: torch.optim.Optimizer, weight: nn.Parameter, steps: int) -> torch.Tensor:
    for step in range(steps):
        weight.grad = torch.empty_like(weight).copy_((torch.arange(24.0) * (step - 3)).view(weight.shape))
        optimizer.step()
    return weight.detach().clone()


@pytest.mark.parametrize(
    "values",
    [torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last), torch.ones(4, 6).t(), torch.ones(2, 3, 4)],
    ids=["channels_last", "transposed", "row-major"],
)
@pytest.mark.parametrize("by_hand", [False, True])
def test_fused_moments_resume_in_the_strides_of_their_weight(
    tmp_path: Path, values: torch.Tensor, by_hand: bool
) -> None:
    def parts() -> tuple[nn.Parameter, torch.optim.Optimizer, Checkpointer]:
        module = nn.Module()
        module.weight = nn.Parameter(values.clone())
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01, fused=True)
        part = optimizer if by_hand else NamedOptimizer(optimizer, module, on_change="keep", logs=False)
        return module.weight, optimizer, Checkpointer(tmp_path, state={"model": module, "optimizer": part})

    weight, optimizer, checkpointer = parts()
    weights_after(optimizer, weight, 3)
    checkpointer.save(3)
    checkpointer.wait()
    checkpointer.close()
    expected = weights_after(optimizer, weight, 3)
    again, resumed_optimizer, checkpointer = parts()
    checkpointer.load()
    checkpointer.close()
    for moment in ("exp_avg", "exp_avg_sq"):
        assert resumed_optimizer.state[again][moment].stride() == again.stride() == weight.stride()
    assert torch.equal(weights_after(resumed_optimizer, again, 3), expected)


class CountingOptimizer(torch.optim.Optimizer):
    """It has a state beside those of its parameters, and tensors within lists and dicts in theirs."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                own, everywhere = self.state[weight], self.state["all"]
                everywhere["steps"] = everywhere.get("steps", 0) + 1
                own.setdefault("sums", [torch.zeros_like(weight, dtype=torch.float64)])[0] += weight.grad.double() / 3
                own["more"] = {"count": torch.tensor(2**40 + 1), "pair": (torch.tensor([True]), own["sums"][0] / 3)}
                own["bits"] = torch.tensor([2**31 - 1])


@pytest.mark.parametrize("order", [["first", "second"], ["second", "first"]])
def test_all_of_an_optimizers_state_resumes_bit_by_bit(job: Job, order: list[str]) -> None:
    module = model()
    optimizer = CountingOptimizer(module.parameters())
    trained(job, optimizer, module)
    leave()
    again = model()
    other = CountingOptimizer([again[name].weight for name in order])
    resumed(job, other, again)
    assert other.state["all"] == {"steps": 4}
    for name in order:
        saved, taken = optimizer.state[module[name].weight], other.state[again[name].weight]
        pairs = [
            (saved["sums"][0], taken["sums"][0]),
            (saved["more"]["count"], taken["more"]["count"]),
            *zip(saved["more"]["pair"], taken["more"]["pair"], strict=True),
            (saved["bits"], taken["bits"]),
        ]
        for one, two in pairs:
            assert one.dtype == two.dtype
            assert torch.equal(one, two)


@pytest.mark.parametrize("kind", [torch.optim.RAdam, torch.optim.Adamax])
def test_another_kind_of_optimizer_whose_options_are_all_there_is_refused(
    job: Job, kind: type[torch.optim.Optimizer]
) -> None:
    module = model()
    trained(job, torch.optim.Adam(module.parameters()), module)
    again = model()
    with pytest.raises(CheckpointError, match=f"the state of Adam, not of this run's {kind.__name__}"):
        resumed(job, kind(again.parameters()), again)
