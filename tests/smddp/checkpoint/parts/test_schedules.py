"""Learning rate schedules after a resume: untouched where the script is the same, told where its options are others."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from smddp import warmup_cosine
from smddp.checkpoint.format.state_tree import flatten, unflatten
from smddp.checkpoint.parts.script_options import SCRIPT_OPTIONS, OnChange
from smddp.checkpoint.run_state import Checking
from smddp.training.training_parts import state_parts

Make = Callable[[torch.optim.Optimizer], Any]
Saved = dict[str, Any]


def decay(rate: float) -> Callable[[int], float]:
    return lambda step: rate**step


class Decay:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: float) -> float:
        return self.rate**step


def other(step: float) -> float:
    return 1 / (1 + step)


class OwnRates(LRScheduler):
    """As users write one: it keeps its rates itself, and counts what no other schedule counts."""

    def __init__(self, optimizer: torch.optim.Optimizer, height: float = 2.0, last_epoch: int = -1) -> None:
        self.height = height
        self.turns = 0
        super().__init__(optimizer, last_epoch)
        self.base_lrs = [0.5 + number for number, _ in enumerate(optimizer.param_groups)]

    def get_lr(self) -> list[float | torch.Tensor]:
        if not self._is_initial and self.last_epoch % 3 == 0:
            self.turns += 1
        return [rate * self.height / (1 + self.turns + self.last_epoch) for rate in self.base_lrs]


SCHEDULES: dict[type[LRScheduler], tuple[dict[str, Any], dict[str, Any]]] = {
    StepLR: ({"step_size": 3}, {"step_size": 2, "gamma": 0.5}),
    MultiStepLR: ({"milestones": [2, 5, 5]}, {"milestones": [2, 5], "gamma": 0.5}),
    ConstantLR: ({"factor": 0.5}, {"factor": 0.25, "total_iters": 3}),
    LinearLR: ({"start_factor": 0.1}, {"start_factor": 0.3, "end_factor": 0.8, "total_iters": 9}),
    ExponentialLR: ({"gamma": 0.9}, {"gamma": 0.8}),
    PolynomialLR: ({"total_iters": 9}, {"total_iters": 15, "power": 2.0}),
    CosineAnnealingLR: ({"T_max": 10}, {"T_max": 20, "eta_min": 0.01}),
    CosineAnnealingWarmRestarts: ({"T_0": 3}, {"T_0": 4, "T_mult": 2, "eta_min": 0.01}),
    LambdaLR: ({"lr_lambda": Decay(0.9)}, {"lr_lambda": Decay(0.8)}),
    MultiplicativeLR: ({"lr_lambda": Decay(0.99)}, {"lr_lambda": Decay(0.98)}),
    CyclicLR: (
        {"base_lr": 0.001, "max_lr": [0.05, 0.1], "step_size_up": 4, "mode": "exp_range", "gamma": 0.99},
        {
            "base_lr": 0.002,
            "max_lr": 0.04,
            "step_size_up": 5,
            "step_size_down": 2,
            "mode": "triangular2",
            "gamma": 0.98,
            "scale_fn": other,
            "scale_mode": "cycle",
            "cycle_momentum": False,
            "base_momentum": 0.7,
            "max_momentum": [0.85, 0.95],
        },
    ),
    OneCycleLR: (
        {"max_lr": 1.0, "epochs": 4, "steps_per_epoch": 5},
        {
            "max_lr": [1.0, 2.0],
            "total_steps": 18,
            "epochs": 3,
            "steps_per_epoch": 4,
            "pct_start": 0.4,
            "anneal_strategy": "linear",
            "cycle_momentum": False,
            "base_momentum": 0.8,
            "max_momentum": 0.97,
            "div_factor": 10.0,
            "final_div_factor": 100.0,
            "three_phase": True,
        },
    ),
    ReduceLROnPlateau: (
        {"patience": 2},
        {
            "mode": "max",
            "factor": 0.5,
            "patience": 1,
            "threshold": 0.1,
            "threshold_mode": "abs",
            "cooldown": 1,
            "min_lr": [0.01, 0.02],
            "eps": 1e-7,
        },
    ),
}
"""Each of PyTorch's schedules with options, and another value of each of its options."""

NESTED: dict[str, Make] = {
    "warm-up, then cycles": lambda optimizer: SequentialLR(
        optimizer,
        [LinearLR(optimizer), CyclicLR(optimizer, 0.001, 0.05, 4, cycle_momentum=False)],
        milestones=[4],
    ),
    "warm-up, then steps": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer), MultiStepLR(optimizer, [1, 2])], milestones=[3]
    ),
    "chained": lambda optimizer: ChainedScheduler([ExponentialLR(optimizer, 0.9), StepLR(optimizer, 2)]),
    "chained in a sequence": lambda optimizer: SequentialLR(
        optimizer,
        [ChainedScheduler([LinearLR(optimizer), StepLR(optimizer, 2)]), CosineAnnealingLR(optimizer, 9)],
        milestones=[4],
    ),
    "a sequence in a chain": lambda optimizer: ChainedScheduler(
        [
            SequentialLR(optimizer, [LinearLR(optimizer), CosineAnnealingLR(optimizer, 9)], milestones=[4]),
            MultiStepLR(optimizer, [5]),
        ]
    ),
    "of one's own": OwnRates,
    "of one's own in a sequence": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer), OwnRates(optimizer)], milestones=[2]
    ),
    "by a lambda": lambda optimizer: LambdaLR(optimizer, [decay(0.9), decay(0.8)]),
    "by partials": lambda optimizer: LambdaLR(optimizer, partial(pow, 0.9)),
    "warmup_cosine": lambda optimizer: warmup_cosine(optimizer, 2, 10),
    "cycles by an object": lambda optimizer: CyclicLR(optimizer, 0.001, 0.05, 4, scale_fn=Decay(0.9)),
}


def of(kind: type[LRScheduler], **changes: Any) -> Make:
    if "total_steps" in changes:
        changes |= {"epochs": None, "steps_per_epoch": None}
    # A copy: a schedule restores the attributes of an object that computes its rates.
    return lambda optimizer: kind(optimizer, **copy.deepcopy({**SCHEDULES[kind][0], **changes}))


ALL: dict[str, Make] = {kind.__name__: of(kind) for kind in SCHEDULES} | NESTED


class Script:
    """A script with a weight and a bias in groups of their own."""

    def __init__(
        self,
        make: Make | Sequence[Make],
        on_change: OnChange = "keep",
        *,
        rates: tuple[float, float] = (0.1, 0.3),
        decays: tuple[float, float] = (0.01, 0.0),
        reverse: bool = False,
    ) -> None:
        self.model = nn.Linear(1, 1)
        groups = [
            {"params": [self.model.weight], "lr": rates[0], "weight_decay": decays[0]},
            {"params": [self.model.bias], "lr": rates[1], "weight_decay": decays[1]},
        ]
        self.optimizer = torch.optim.SGD(groups[::-1] if reverse else groups, momentum=0.9)
        self.schedules = [each(self.optimizer) for each in ([make] if callable(make) else make)]
        self.parts = state_parts(
            self.model, [self.optimizer], self.schedules, None, {}, own={}, on_change=on_change, logs=True
        )

    def train(self, steps: int) -> list[list[dict[str, Any]]]:
        """Return what each step found in the groups, the weight's first."""
        found = []
        for _ in range(steps):
            found.append([self.of(self.model.weight), self.of(self.model.bias)])
            self.optimizer.step()
            for each in self.schedules:
                each.step(*[1.0] * isinstance(each, ReduceLROnPlateau))
        return found

    def of(self, weight: torch.Tensor) -> dict[str, Any]:
        """Return the options of a parameter."""
        group = next(group for group in self.optimizer.param_groups if group["params"][0] is weight)
        return {name: value for name, value in group.items() if name != "params"}

    def save(self) -> Saved:
        """Return what a checkpoint holds."""
        found = {}
        for name, part in self.parts.items():
            skeleton, tensors = flatten(part.state_dict(), path=name)
            found[name] = unflatten(json.loads(json.dumps(skeleton)), tensors)
        return found

    def resume(self, saved: Saved) -> Script:
        """Check, then load, as a resume does."""
        for name, part in self.parts.items():
            if isinstance(part, Checking):
                part.check_state_dict(saved[name])
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        return self


def without_script(state: Any) -> Any:
    """Return a state as older versions saved it."""
    if isinstance(state, dict):
        return {name: without_script(each) for name, each in state.items() if name != SCRIPT_OPTIONS}
    return state


def saved_after(steps: int, make: Make | Sequence[Make], **options: Any) -> Saved:
    script = Script(make, **options)
    script.train(steps)
    return script.save()


def test_the_table_has_all_of_pytorchs_schedules_and_options() -> None:
    of_schedules = {SequentialLR, ChainedScheduler, LRScheduler}
    there = {getattr(lr_scheduler, name) for name in lr_scheduler.__all__} - of_schedules
    assert there == set(SCHEDULES)
    for kind, (_, changes) in SCHEDULES.items():
        options = set(inspect.signature(kind).parameters) - {"optimizer", "last_epoch"}
        assert options == set(changes), kind


@pytest.mark.parametrize("rates", [(0.1, 0.3), (0.0, 0.1)])
@pytest.mark.parametrize("name", ALL)
def test_the_same_script_goes_on_to_the_bit(name: str, rates: Any, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = Script(ALL[name], rates=rates).train(14)
    policies: tuple[OnChange, ...] = ("keep", "take", "refuse")
    for at in (0, 1, 3, 4, 7):
        saved = saved_after(at, ALL[name], rates=rates)
        for on_change in policies:
            resumed = Script(ALL[name], on_change, rates=rates).resume(saved)
            assert resumed.train(14 - at) == undisturbed[at:], (at, on_change)
    assert "resumes with" not in caplog.text


@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_of_an_older_version_goes_on_to_the_bit(name: str, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = Script(ALL[name]).train(14)
    policies: tuple[OnChange, ...] = ("keep", "take")
    for on_change in policies[: 1 if name == "ReduceLROnPlateau" else 2]:  # whose rates it cannot tell from a script's
        saved = without_script(saved_after(5, ALL[name]))
        assert Script(ALL[name], on_change).resume(saved).train(9) == undisturbed[5:], on_change
    if name != "ReduceLROnPlateau":
        assert "resumes with" not in caplog.text
    assert ("does not say whether the script has changed turns of" in caplog.text) is ("one's own" in name)


CHANGES = [(kind, name) for kind, (_, changes) in SCHEDULES.items() for name in changes]


def before_and_after(kind: type[LRScheduler], name: str) -> tuple[Make, Make]:
    """Two schedules that differ in one option."""
    base = {"scale_fn": Decay(0.9), "scale_mode": "iterations"} if name == "scale_mode" else {}
    return of(kind, **base), of(kind, **{**base, name: SCHEDULES[kind][1][name]})


@pytest.mark.parametrize(("kind", "name"), CHANGES)
def test_a_changed_option_is_told_and_kept(
    kind: type[LRScheduler], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = before_and_after(kind, name)
    resumed = Script(after).resume(saved_after(5, before))
    assert "resumes with the checkpoint's options: " in caplog.text or "this script's functions" in caplog.text
    if name == "scale_fn":
        assert "scale_fn_custom of CyclicLR was None in the checkpoint's script and is other in this one" in caplog.text
    else:
        assert resumed.train(5) == Script(before).train(10)[5:]
    caplog.clear()
    if name != "scale_fn":
        Script(before, "refuse").resume(resumed.save())  # the next checkpoint has the options that held
        assert "resumes with" not in caplog.text


@pytest.mark.parametrize(("kind", "name"), CHANGES)
def test_a_changed_option_is_refused(kind: type[LRScheduler], name: str) -> None:
    before, after = before_and_after(kind, name)
    with pytest.raises(ValueError, match=r"was .* in the checkpoint's script and is .*on_change='refuse' allows no"):
        Script(after, "refuse").resume(saved_after(5, before))


@pytest.mark.parametrize(("kind", "name"), [each for each in CHANGES if each[0] is not ReduceLROnPlateau])
def test_a_changed_option_is_taken_as_if_it_had_been_there_from_the_start(
    kind: type[LRScheduler], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = before_and_after(kind, name)
    resumed = Script(after, "take").resume(saved_after(5, before))
    assert "resumes with this script's options: " in caplog.text
    assert resumed.train(6) == Script(after).train(11)[5:]
    caplog.clear()
    Script(after, "refuse").resume(resumed.save())
    assert "resumes with" not in caplog.text


@pytest.mark.parametrize("name", [name for name in ALL if name != "ReduceLROnPlateau"])
def test_another_learning_rate_is_taken_as_if_it_had_been_there_from_the_start(name: str) -> None:
    saved = saved_after(5, ALL[name])
    resumed = Script(ALL[name], "take", rates=(0.2, 0.3)).resume(saved)
    assert resumed.train(6) == Script(ALL[name], rates=(0.2, 0.3)).train(11)[5:]
    old = Script(ALL[name], "take", rates=(0.2, 0.3)).resume(without_script(saved))
    assert old.train(6) == Script(ALL[name], rates=(0.2, 0.3)).train(11)[5:]


def test_functions_that_a_checkpoint_has_not_are_told_by_what_they_were_made_with(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def by(rate: float) -> Make:
        return lambda optimizer: LambdaLR(optimizer, decay(rate))

    resumed = Script(by(0.8)).resume(saved_after(5, by(0.9)))
    told = (
        "this script's functions, as a checkpoint has none: rate of <lambda> was 0.9 in the checkpoint's script and is"
    )
    assert told in caplog.text
    resumed.train(1)
    assert resumed.train(1) == Script(by(0.8)).train(7)[6:]  # from its next step on
    with pytest.raises(ValueError, match=r"rate of <lambda> was 0\.9"):
        Script(by(0.8), "refuse").resume(saved_after(5, by(0.9)))
    assert Script(by(0.8), "take").resume(saved_after(5, by(0.9))).train(5) == Script(by(0.8)).train(10)[5:]
    with pytest.raises(
        ValueError, match=r"lr_lambdas of LambdaLR was <lambda> in the checkpoint's script and is other"
    ):
        Script(lambda optimizer: LambdaLR(optimizer, partial(other)), "refuse").resume(saved_after(5, by(0.9)))


def test_a_function_that_begins_at_another_rate_is_told_by_that(caplog: pytest.LogCaptureFixture) -> None:
    saved = saved_after(5, lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)))
    Script(lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (2 + step))).resume(saved)
    assert (
        "last_lr of LambdaLR was [0.1, 0.3] in the checkpoint's script and is [0.05, 0.15] in this one" in caplog.text
    )


def test_warmup_cosine_has_options(caplog: pytest.LogCaptureFixture) -> None:
    saved = saved_after(5, lambda optimizer: warmup_cosine(optimizer, 2, 10))

    def longer(optimizer: torch.optim.Optimizer) -> LambdaLR:
        return warmup_cosine(optimizer, 2, 20)

    assert Script(longer).resume(saved).train(5) == Script(ALL["warmup_cosine"]).train(10)[5:]
    assert "total_steps of WarmupCosine was 10 in the checkpoint's script and is 20 in this one" in caplog.text
    assert Script(longer, "take").resume(saved).train(15) == Script(longer).train(20)[5:]
    old = without_script(saved)
    old["scheduler"]["lr_lambdas"] = [None, None]  # it was a function
    assert Script(longer).resume(old).train(15)[1:] == Script(longer).train(20)[6:]


def test_a_change_in_a_nested_schedule_names_it(caplog: pytest.LogCaptureFixture) -> None:
    def warmed_up(length: int) -> Make:
        return lambda optimizer: SequentialLR(
            optimizer, [LinearLR(optimizer), CosineAnnealingLR(optimizer, length)], milestones=[length // 2]
        )

    resumed = Script(warmed_up(20), "take").resume(saved_after(7, warmed_up(10)))
    assert resumed.train(15) == Script(warmed_up(20)).train(22)[7:]
    assert "milestones of SequentialLR was [5] in the checkpoint's script and is [10] in this one" in caplog.text
    assert "the schedule resumes with this script's options: milestones of SequentialLR" in caplog.text
    assert "T_max of CosineAnnealingLR in SequentialLR was 10 in" in caplog.text


@pytest.mark.parametrize(
    ("saved", "own", "told"),
    [
        ("StepLR", "ExponentialLR", "it is the state of a StepLR, and this script has a ExponentialLR"),
        (
            "warm-up, then steps",
            "warm-up, then cycles",
            "SequentialLR of ConstantLR, MultiStepLR, and this script has a",
        ),
        ("StepLR", "chained", "its ChainedScheduler has 0 inner schedules, and this script's has 2"),
    ],
)
@pytest.mark.parametrize("on_change", ["keep", "take", "refuse"])
def test_another_kind_of_schedule_is_refused(saved: str, own: str, told: str, on_change: OnChange) -> None:
    with pytest.raises(ValueError, match=told):
        Script(ALL[own], on_change).resume(saved_after(3, ALL[saved]))


def test_another_kind_of_schedule_is_refused_in_a_checkpoint_of_an_older_version() -> None:
    with pytest.raises(
        ValueError, match="it is the state of a schedule with gamma, step_size, and this script has a Cosine"
    ):
        Script(ALL["CosineAnnealingLR"]).resume(without_script(saved_after(3, ALL["StepLR"])))


@pytest.mark.parametrize("old", [False, True])
def test_an_older_checkpoint_tells_the_options_of_pytorchs_schedules(
    old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saved = saved_after(8, of(CosineAnnealingLR, T_max=10))
    saved = without_script(saved) if old else saved
    assert (
        Script(of(CosineAnnealingLR, T_max=20), "take").resume(saved).train(10)
        == (Script(of(CosineAnnealingLR, T_max=20)).train(18)[8:])
    )
    assert "T_max of CosineAnnealingLR was 10 in the checkpoint's script and is 20 in this one" in caplog.text


def test_a_one_cycle_that_would_end_before_the_script_does_is_not_kept() -> None:
    saved = saved_after(8, of(OneCycleLR, total_steps=10))
    longer = of(OneCycleLR, total_steps=20)
    with pytest.raises(ValueError, match=r"ends at total_steps=10, and this script's at 20: if kept, it fails"):
        Script(longer).resume(saved)
    assert Script(longer, "take").resume(saved).train(12) == Script(longer).train(20)[8:]


def test_a_schedule_that_cannot_go_as_far_is_refused_before_anything_is_loaded() -> None:
    script = Script(of(OneCycleLR, total_steps=6), "take")
    before = script.save()
    told = "OneCycleLR cannot take step 7 of the 8 that the checkpoint's took.*Tried to step 7 times.*on_change='keep'"
    with pytest.raises(ValueError, match=told):
        script.resume(saved_after(8, of(OneCycleLR, total_steps=10)))
    assert script.save() == before


def test_a_schedule_by_a_metric_takes_options_that_its_progress_does_not_depend_on() -> None:
    saved = saved_after(5, of(ReduceLROnPlateau, patience=2))
    taken = Script(of(ReduceLROnPlateau, patience=0, factor=0.5), "take").resume(saved)
    assert [each[0]["lr"] for each in taken.train(3)] == pytest.approx([0.01, 0.005, 0.0025])
    told = "mode of ReduceLROnPlateau was min .*: best was found with the saved options"
    with pytest.raises(ValueError, match=told):
        Script(of(ReduceLROnPlateau, mode="max"), "take").resume(saved)


def test_a_rate_that_a_metric_has_lowered_is_no_change() -> None:
    saved = saved_after(5, ALL["ReduceLROnPlateau"])
    assert saved["optimizer"]["param_groups"][0]["lr"] < 0.1
    taken = Script(ALL["ReduceLROnPlateau"], "take", rates=(0.1, 0.7)).resume(saved)
    assert taken.of(taken.model.weight)["lr"] == saved["optimizer"]["param_groups"][0]["lr"]
    assert taken.of(taken.model.bias)["lr"] == 0.7


def test_several_schedules_of_an_optimizer_are_taken_together() -> None:
    both = [of(CosineAnnealingLR, T_max=20), of(StepLR)]
    saved = saved_after(5, [of(CosineAnnealingLR), of(StepLR)])
    assert Script(both, "take").resume(saved).train(5) == Script(both).train(10)[5:]
    with pytest.raises(ValueError, match="by this script's options are unknown"):
        Script([*both, of(ReduceLROnPlateau)], "take").resume(
            saved_after(5, [of(CosineAnnealingLR), of(StepLR), of(ReduceLROnPlateau)])
        )


def test_only_the_rates_of_a_group_that_has_changed_are_taken() -> None:
    script = Script(of(CosineAnnealingLR))
    script.optimizer.param_groups[1]["lr"] = 0.123  # in the loop, by hand
    taken = Script(of(CosineAnnealingLR), "take", rates=(0.2, 0.3), decays=(0.01, 0.5)).resume(script.save())
    assert taken.of(taken.model.weight)["lr"] == 0.2
    assert taken.of(taken.model.bias)["lr"] == 0.123
    assert taken.of(taken.model.bias)["weight_decay"] == 0.5


def in_order(kind: type[LRScheduler]) -> Make:
    """Options for each group, in the order of the groups."""

    def make(optimizer: torch.optim.Optimizer) -> LRScheduler:
        options: dict[str, Any] = {**SCHEDULES[kind][0]}
        lists = {
            LambdaLR: {"lr_lambda": [Decay(0.9), decay(0.8)]},
            MultiplicativeLR: {"lr_lambda": [other, decay(0.8)]},
        }
        lists |= {CyclicLR: {"max_lr": [0.05, 0.1]}, OneCycleLR: {"max_lr": [1.0, 2.0], "base_momentum": [0.8, 0.9]}}
        options |= {ReduceLROnPlateau: {"min_lr": [0.05, 0.01]}, **lists}.get(kind, {})
        begins_with_bias = optimizer.param_groups[0]["params"][0].dim() == 1
        turned = {name: value[::-1] for name, value in options.items() if type(value) is list and len(value) == 2}
        return kind(optimizer, **(options | turned if begins_with_bias else options))

    return make


IN_ORDER = {kind.__name__: in_order(kind) for kind in SCHEDULES} | {
    name: make for name, make in NESTED.items() if "own" not in name and name != "by a lambda"
}


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("on_change", ["keep", "take", "refuse"])
def test_groups_in_another_order_keep_their_own_rates(
    name: str, on_change: OnChange, caplog: pytest.LogCaptureFixture
) -> None:
    make = IN_ORDER[name]
    resumed = Script(make, on_change, reverse=True).resume(saved_after(5, make))
    assert resumed.train(7) == Script(make).train(12)[5:]
    assert "resumes with" not in caplog.text


def test_what_a_schedule_of_ones_own_has_for_each_group_is_not_guessed() -> None:
    class Scaled(OwnRates):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.scales = [1.0, 2.0]
            super().__init__(optimizer)

    with pytest.raises(
        ValueError, match="scales of Scaled may be in the checkpoint's order: give the groups as they were"
    ):
        Script(Scaled, reverse=True).resume(saved_after(2, Scaled))
