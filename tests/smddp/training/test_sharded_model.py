"""A model whose weights are divided among the ranks trains as a replicated one does, and resumes as any other."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import smddp
from smddp import Sharded
from smddp.data import EvaluationSampler
from smddp.distributed import current_membership
from smddp.distributed.dividing import shard
from smddp.training.model_checks import check_model_parallel, check_sharded
from smddp.training.precision import Precision

PROGRAM = """
import os, sys
os.chdir(DIRECTORY)
import torch
from torch import nn
import smddp
from smddp import Sharded

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, inputs):
        return inputs + self.outer(torch.tanh(self.inner(self.norm(inputs))))

class Data(torch.utils.data.Dataset):
    def __init__(self, broken=None):
        self.values, self.seen = torch.randn(97, 5, generator=torch.Generator().manual_seed(3)), []
        if broken is not None:
            self.values[broken] = float("nan")

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        self.seen.append(index)
        return self.values[index]

def error(trainer, batch):
    return (trainer.model(batch)[:, 0] - batch.sum(dim=1)).square()

def trained(job, name, parallel, steps, broken=None, norm=nn.BatchNorm1d, **options):
    torch.manual_seed(job.cluster.rank)  # all ranks begin with the weights of rank 0
    model = nn.Sequential(norm(5), nn.Linear(5, 9), Block(9), Block(9), nn.Linear(9, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    trainer = smddp.Trainer(
        job, model, optimizer, scheduler=schedule, name=name, accumulate=2, parallel=parallel, **options
    )
    loader, test = trainer.loader(data := Data(broken), batch_size=24), trainer.evaluation_loader(Data(), batch_size=4)
    batches, errors = trainer.batches(loader), []
    for step in trainer.steps_to(steps):
        batch = next(batches)
        is_done = trainer.step(error(trainer, batch).mean())
        if is_done and trainer.steps % 3 == 0:
            model.eval()
            with torch.no_grad():
                of_rank = [float(error(trainer, each).sum()) for each in trainer.batches(test)]
            model.train()
            errors.append(round(float(trainer.sum(sum(of_rank))) / 97, 5))
            if trainer.ema is not None:
                with torch.no_grad():
                    errors.append(round(float(trainer.ema(torch.ones(2, 5)).sum()), 5))
            trainer.save()
    weights = {}
    for part in filter(None, (model, trainer.ema)):
        trainer.save_model(part)
        if trainer.is_main:
            saved = torch.load(job.part(name).model_dir / "model.pt")
            weights |= {f"{part is model} {key}": value for key, value in saved.items()}
    return weights, errors, sorted(int(each) for each in trainer.gather(torch.tensor(data.seen)))
"""

PARITY = """
def main(job):
    seen = []
    forward = Block.forward
    Block.forward = lambda self, inputs: seen.append((self.inner.weight.dtype, inputs.dtype)) or forward(self, inputs)
    for precision in ("bf16", "fp16"):
        options = {"precision": precision, "clip_norm": 0.3, "ema": 0.8}
        one = trained(job, f"{precision}-whole", smddp.DDPOptions(), 7, **options)
        seen.clear()
        two = trained(job, f"{precision}-gathered", Sharded(wrap=(Block,), gather_as=precision), 7, **options)
        expected = torch.bfloat16 if precision == "bf16" else torch.float16
        assert {dtype for dtype, _ in seen} == {expected}, set(seen)
        assert all(each.dtype == torch.float32 for each in two[0].values() if each.is_floating_point())
        assert torch.allclose(torch.tensor(one[1]), torch.tensor(two[1]), rtol=0.02, atol=0.02), (one[1], two[1])
    Block.forward = forward
    for norm in (nn.LayerNorm, nn.RMSNorm):  # the first layer gets float32
        model = nn.Sequential(nn.Embedding(9, 8), Block(8), Block(8), nn.Linear(8, 1))
        for layer in model[1:3]:
            layer.norm = norm(8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = Sharded(wrap=(Block,), gather_as="bf16")
        trainer = smddp.Trainer(job, model, optimizer, precision="bf16", parallel=parallel, name=norm.__name__)
        trainer.step(trainer.model(torch.arange(8)).square().mean())
        trainer.save_model(trainer.module[3])  # a part that has no layer of its own
    for precision in ("fp32", "bf16", "fp16"):
        skips = {"on_nonfinite": "skip", "broken": 8}
        for options in ({"clip_norm": 0.3}, {"clip_value": 0.01}, skips, {"timing": True, "ema": 0.8}):
            name, options = f"{precision}-{min(options)}", {**options, "precision": precision}
            one = trained(job, name + "-ddp", smddp.DDPOptions(), 7, **options)
            two = trained(job, name + "-sharded", Sharded(wrap=(Block,)), 7, **options)
            assert one[1:] == two[1:], (name, one[1:], two[1:])
            for key, weight in one[0].items():
                assert torch.allclose(weight, two[0][key], atol=1e-5), (name, key)
            if job.cluster.is_main:
                print(name)

smddp.run(main)
"""


def program(directory: Path, rest: str) -> str:
    return PROGRAM.replace("DIRECTORY", repr(str(directory))) + rest


@pytest.mark.slow
def test_it_trains_as_a_replicated_model_does(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    ended = run_ranks(program(tmp_path, PARITY))
    assert [each.code for each in ended] == [0, 0], ended
    options = ["clip_norm", "clip_value", "broken", "ema"]
    assert ended[0].printed.split() == [f"{name}-{each}" for name in ("fp32", "bf16", "fp16") for each in options]


CHAIN = """
def main(job):
    parallel = eval(os.environ["PARALLEL"])
    weights, errors, seen = trained(job, "chain", parallel, int(os.environ["STEPS"]), norm=nn.LayerNorm, ema=0.7)
    if job.cluster.is_main:
        print(errors, seen)

smddp.run(main)
"""


@pytest.mark.slow
def test_it_resumes_in_mid_epoch_on_other_ranks_in_another_layout(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    def run(
        directory: Path, chain: list[tuple[str, int, int]]
    ) -> tuple[list[float], list[int], dict[str, torch.Tensor]]:
        errors, seen = [], []
        for parallel, ranks, steps in chain:
            directory.mkdir(exist_ok=True)
            ended = run_ranks(program(directory, CHAIN), [{"PARALLEL": parallel, "STEPS": str(steps)}] * ranks)
            assert [each.code for each in ended] == [0] * ranks, "\n".join(each.printed for each in ended)
            of_part = eval("[" + ended[0].printed.strip().replace("] [", "], [") + "]")
            errors, seen = errors + of_part[0], seen + of_part[1]
        return errors, sorted(seen), torch.load(next(directory.rglob("model.pt")))

    whole = run(tmp_path / "whole", [("smddp.DDPOptions()", 1, 10)])
    layouts = [
        ("Sharded(wrap=(Block,))", 2, 3),
        ("Sharded(wrap=(Block,), shard=2, reshard_after_forward=False)", 4, 5),
        ("smddp.DDPOptions()", 2, 6),
        ("Sharded(wrap=(Block, nn.Linear))", 3, 9),
        ("Sharded(wrap=(Block,))", 1, 10),
    ]
    parts = run(tmp_path / "parts", layouts)
    assert parts[0] == pytest.approx(whole[0], abs=2e-5)
    assert parts[1] == whole[1], "each sample once"
    for name, weight in whole[2].items():
        torch.testing.assert_close(parts[2][name], weight, atol=1e-5, rtol=1e-4)


OTHERS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def main(job):
    # A script that shards its model itself.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 9), Block(9), nn.Linear(9, 2))
    fully_shard(model[1])
    fully_shard(model)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name="own")
    loader = trainer.loader(Data(), batch_size=24)
    for epoch in trainer.epochs(2):
        for batch in trainer.batches(loader):
            trainer.step(trainer.model(batch).square().mean())
        trainer.module(batch)  # leaves the weights gathered, before a save
        trainer.save(wait=True)
    # Weights are loaded into pieces, too.
    weight = model[1].outer.weight
    before = weight.full_tensor().clone()
    weight.detach().zero_()
    smddp.load_weights(model, job.part("own").checkpoint_location)
    assert before.any() and torch.equal(weight.full_tensor(), before)
    # A weight that is not finite is found on all ranks, whoever has it.
    with torch.no_grad():
        weight = model[0].weight.to_local()
        if job.cluster.rank == 1:
            weight[-1, -1] = float("nan")
    try:
        trainer.save_model()
    except smddp.errors.TrainingDivergedError as error:
        print(str(error)[:60])
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        smddp.Trainer(job, model, optimizer, name="twice", parallel=Sharded(wrap=(Block,)))
    except ValueError as error:
        print(error)
    # The last micro-batch of a loader that ends within a step.
    model = nn.Sequential(nn.Linear(5, 9), Block(9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = smddp.Trainer(job, model, optimizer, accumulate=2, name="ends", parallel=Sharded(wrap=(Block,)))
    try:
        for batch in trainer.batches([torch.ones(2, 5)] * 3):
            trainer.step(trainer.model(batch).square().mean())
    except ValueError as error:
        print(str(error)[:48])

smddp.run(main)
"""


@pytest.mark.slow
def test_a_model_that_the_script_sharded_and_what_is_refused_while_it_trains(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    ended = run_ranks(program(tmp_path, OTHERS))
    assert [each.code for each in ended] == [0, 0], ended
    told = [
        "at step 8 the model's 0.weight has values that are not finit",
        "the model is sharded by fully_shard already: leave parallel=smddp.Sharded(...) out",
        "the batches ended within an optimizer step, and ",
    ]
    assert [each.printed.splitlines() for each in ended] == [told, told]


EDGES = """
import functools
from torch.distributed.fsdp import fully_shard
from smddp.checkpoint import Checkpointer
from smddp.distributed import PeerFailedError

def told(action):
    try:
        action()
    except Exception as error:
        print(f"{type(error).__name__}: {error}"[:110])
    else:
        print("no error")

def net(last=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 9), Block(9), nn.Linear(9, last))

def trainer_of(job, model, name, parallel=Sharded(wrap=(Block,)), **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return smddp.Trainer(job, model, optimizer, name=name, parallel=parallel, **options)

def step(trainer, batch=torch.ones(2, 5)):
    return trainer.step(trainer.model(batch).square().mean())

def main(job):
    main_rank, sums = job.cluster.is_main, []
    # A loop that is left between two steps; one that is left within a step can't average what it has.
    for parallel in (smddp.DDPOptions(), Sharded(wrap=(Block,))):
        trainer = trainer_of(job, net(), f"left-{len(sums)}", parallel, accumulate=2)
        loader = trainer.loader(Data(), batch_size=24)
        for epoch in trainer.epochs(2):
            for number, batch in enumerate(trainer.batches(loader)):
                step(trainer, batch)
                if epoch == 0 and number == 3:
                    break
        whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in trainer.module.parameters()]
        sums.append(sum(float(each.abs().sum()) for each in whole))
    assert abs(sums[0] - sums[1]) < 1e-4, sums
    trainer = trainer_of(job, net(), "left-within", accumulate=2)
    loader = trainer.loader(Data(), batch_size=24)
    def leave_within():
        for epoch in trainer.epochs(1):
            for batch in trainer.batches(loader):
                step(trainer, batch)
                break
    told(leave_within)
    # Layers that come or are unfrozen after the Trainer.
    model = net()
    trainer = trainer_of(job, model, "added")
    step(trainer)
    model.append(nn.Linear(2, 1))
    told(lambda: step(trainer))
    model = net().requires_grad_(False)
    for part in (model[1], model[2]):
        fully_shard(part.requires_grad_())
    trainer = trainer_of(job, model, "unfrozen", smddp.DDPOptions())
    step(trainer)
    model[0].requires_grad_()
    told(lambda: step(trainer))
    # What fully_shard would lose.
    model = net()
    model[0].weight.register_hook(lambda gradient: gradient * 0)
    told(lambda: trainer_of(job, model, "hooked"))
    model = nn.Sequential(nn.Linear(9, 9), Block(9), Block(9))
    model[2].inner.weight = model[1].inner.weight
    told(lambda: trainer_of(job, model, "tied"))
    model = net()
    model[0].weight.decays = False
    trainer_of(job, model, "marked")
    assert model[0].weight.decays is False
    # Ranks that differ.
    told(lambda: trainer_of(job, net(), "options", Sharded(wrap=(Block,)) if main_rank else smddp.DDPOptions()))
    told(lambda: trainer_of(job, net(2 if main_rank else 3), "shapes"))
    told(lambda: trainer_of(job, net(), "units", Sharded(wrap=(Block if main_rank else nn.Conv1d,))))
    # An evaluation in inference mode before the first step, and a forward pass before the resume.
    model = net()
    trainer = trainer_of(job, model, "gathered", Sharded(wrap=(Block,), reshard_after_forward=False))
    with torch.inference_mode():
        trainer.model(torch.ones(2, 5))
    trainer.model(torch.ones(2, 5))
    for epoch in trainer.epochs(1):
        step(trainer)
    model = net()
    trainer = trainer_of(job, model, "gathered", Sharded(wrap=(Block,), reshard_after_forward=False))
    trainer.model(torch.ones(2, 5))
    assert trainer.resume() and trainer.steps == 1
    # A sharded model that steps in the loop of a replicated one: its evaluations must be equally long, too.
    inner = trainer_of(job, net(), "inner")
    outer = trainer_of(job, nn.Linear(5, 1), "outer", smddp.DDPOptions(), state={"inner": inner})
    assert len(outer.evaluation_loader(Data(), batch_size=48)) == 2
    # Two forward passes before a backward pass.
    twice = []
    for parallel in (None, Sharded(wrap=(Block,))):
        model = net()
        call = model if parallel is None else trainer_of(job, model, "twice", parallel).model
        (call(torch.ones(2, 5)).square().mean() + call(torch.zeros(2, 5)).square().mean()).backward()
        gradients = [each.grad for each in model.parameters()]
        twice.append([each.full_tensor() if hasattr(each, "full_tensor") else each for each in gradients])
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(*twice))
    # One rank fails, and each raises what is its own.
    model = nn.Linear(5, 1)
    trainer = trainer_of(job, model, "fails", smddp.DDPOptions())
    if main_rank:
        model.register_state_dict_post_hook(lambda *_: [][0])
    told(trainer.save_model)
    model = net()
    fully_shard(model)
    with Checkpointer("own", {"model": model}) as checkpointer:
        checkpointer.save(1)
    if not main_rank:
        def fail(*_):
            raise PermissionError(13, "not yours")
        smddp.checkpoint.restore.verified.VerifiedFiles.read = fail
    with Checkpointer("own", {"model": model}) as checkpointer:
        told(checkpointer.load)

smddp.run(main)
"""

ON_META = """
def main(job):
    torch.manual_seed(8 + job.cluster.rank)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 8), Block(8), nn.BatchNorm1d(8), Block(8), nn.Linear(8, 1))
    model[4].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1:].parameters(), "lr": 0.03}])
    parallel = eval(os.environ["PARALLEL"])
    trainer = smddp.Trainer(job, model, optimizer, parallel=parallel, ema=0.5, check_replicas=1)
    trainer.save_model()
    if trainer.is_main:
        print([round(float(each.double().sum()), 6) for each in torch.load(job.model_dir / "model.pt").values()])
    ema = trainer.ema(torch.ones(2, 5).requires_grad_())  # an average that was called with gradients follows, too
    for _ in range(4):
        teacher = trainer.ema(batch := torch.ones(2, 5)).detach()
        outputs = trainer.model(batch.requires_grad_())
        trainer.step((outputs - 1).square().mean() + (trainer.ema(batch) - outputs).square().mean())
    assert batch.grad is not None and batch.grad.abs().sum() > 0
    for length in (1, 2):  # the average follows buffers
        model.register_buffer("seen", torch.full((length,), 3.0))
        trainer.step((trainer.model(batch) - 1).square().mean())
        seen = dict(trainer.ema.named_buffers()) if job.cluster.world_size > 1 else {"seen": model.seen}
        assert [each.tolist() for name, each in seen.items() if name.endswith("seen")] == [[3.0] * length]
    model[0].frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    try:
        trainer.step((trainer.model(batch) - 1).square().mean())
    except ValueError as error:
        print(error)

smddp.run(main)
"""


@pytest.mark.slow
def test_a_model_on_the_meta_device_begins_the_same_on_any_number_of_ranks(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    sharded = "Sharded(wrap=(Block,))"
    begun = set()
    for number, (ranks, parallel) in enumerate([(1, sharded), (2, sharded), (3, sharded), (2, "smddp.DDPOptions()")]):
        directory = tmp_path / str(number)
        directory.mkdir()
        ended = run_ranks(program(directory, ON_META), [{"PARALLEL": parallel}] * ranks)
        assert [each.code for each in ended] == [0] * ranks, "\n".join(each.printed for each in ended)
        first, *rest = ended[0].printed.splitlines()
        assert rest == ["ema= can't follow a sharded model to other layers: change them before the Trainer is made"] * (
            ranks > 1 and parallel == sharded
        )
        begun.add(first)
    assert len(begun) == 1, begun


TOLD = [
    ["ValueError: the batches ended within an optimizer step, and the gradients of a sharded model are averaged"] * 2,
    ["ValueError: 3.weight is in no module that fully_shard was applied to"] * 2,
    ["ValueError: 0.weight is in no module that fully_shard was applied to"] * 2,
    ["ValueError: 0.weight has hooks on its gradient"] * 2,
    ["ValueError: 2.inner.weight is the same weight as 1.inner.weight, and wrap= puts them into different layers"] * 2,
    ["ValueError: the ranks were given different options: parallel is Sharded("] * 2,
    ["ValueError: the model of rank 1 has other weights than that of rank 0, by names, shapes"] * 2,
    ["ValueError: the ranks were given different options: parallel is Sharded("] * 2,
    ["IndexError: list index out of range", "PeerFailedError: rank 0 failed: IndexError: list index out of range"],
    ["CheckpointError: rank 1: PermissionError: [Errno 13] not yours"] * 2,
]


@pytest.mark.slow
def test_what_a_script_may_do_beside_the_path_is_done_as_by_ddp_or_refused_on_all_ranks(
    run_ranks: Callable[..., Any], tmp_path: Path
) -> None:
    ended = run_ranks(program(tmp_path, EDGES))
    assert [each.code for each in ended] == [0, 0], ended
    for rank, each in enumerate(ended):
        printed = each.printed.splitlines()
        assert len(printed) == len(TOLD), printed
        for line, expected in zip(printed, TOLD, strict=True):
            assert line.startswith(expected[rank]), printed


@pytest.fixture
def _group_of_one() -> Iterator[None]:
    smddp.join()
    yield
    smddp.leave()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh(), nn.Linear(2, 2)), nn.Linear(2, 1))


def compiled_in_place() -> nn.Sequential:
    model = net()
    model.compile()
    return model


@pytest.mark.usefixtures("_group_of_one")
@pytest.mark.parametrize(
    ("options", "change", "told"),
    [
        (
            {"wrap": (nn.Conv1d,)},
            None,
            r"wrap=Conv1d: the model holds no module of that class. It holds Linear \(3 times\)",
        ),
        ({"wrap": (nn.ModuleList,)}, lambda model: model.append(nn.ModuleList([nn.Linear(1, 1)])), "has no forward"),
        ({"shard": 3}, None, "shard=3 divides the weights among 3 ranks, and 1 ranks are no multiple"),
        ({}, lambda model: model.register_parameter("scale", nn.Parameter(torch.ones(()))), "scale is a scalar"),
        (
            {},
            lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(2, 2).mT)),
            "0.weight is not contiguous",
        ),
        (
            {},
            lambda model: model[0].register_parameter("more", nn.Parameter(torch.ones(1).double())),
            "gathered together",
        ),
        (
            {"gather_as": "bf16", "wrap": (nn.Sequential,)},
            lambda model: model[1].append(nn.BatchNorm1d(2)),
            r"1.2 \(BatchNorm1d\) is in a layer of wrap=, and gather_as='bf16'",
        ),
        ({}, lambda model: model.append(nn.LazyLinear(2)), r"3.weight has no shape yet \(a lazy layer\)"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(
    options: dict[str, Any], change: Callable[[nn.Module], object] | None, told: str
) -> None:
    model, membership = net(), current_membership()
    assert membership is not None
    if change is not None:
        change(model)
    with pytest.raises(ValueError, match=told):
        shard(Sharded(**{"wrap": (nn.Linear,), **options}), model, [torch.optim.SGD(model.parameters())], membership)
    assert not any(hasattr(weight, "placements") for weight in model.parameters())


def test_one_rank_refuses_what_several_refuse(tmp_path: Path) -> None:
    model, job = net(), smddp.Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    for wrap, precision, told in (nn.Conv1d, "fp32", "holds no module"), (nn.Linear, "O2", "keeps half copies"):
        with pytest.raises(ValueError, match=told):
            parallel = Sharded(wrap=(wrap,))
            smddp.Trainer(job, model, torch.optim.SGD(model.parameters()), parallel=parallel, precision=precision)


@pytest.mark.usefixtures("_group_of_one")
def test_an_optimizer_that_has_stepped_is_refused() -> None:
    model, membership = net(), current_membership()
    assert membership is not None
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"the optimizer \(AdamW\) has a state already"):
        shard(Sharded(wrap=(nn.Linear,)), model, [optimizer], membership)


@pytest.mark.usefixtures("_group_of_one")
def test_a_model_that_was_divided_without_values_is_refused_by_name(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = fully_shard(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = smddp.Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    with pytest.raises(ValueError, match=r"the model is on the meta device, and sharded by fully_shard: give it"):
        smddp.Trainer(job, model, optimizer)


@pytest.mark.usefixtures("_group_of_one")
def test_gradients_of_a_model_in_double_precision_stay_in_it() -> None:
    model, membership = net().double(), current_membership()
    assert membership is not None
    inputs = torch.rand(3, 2, dtype=torch.float64)
    model(inputs).square().sum().backward()
    expected = [each.grad for each in model.parameters()]
    model.zero_grad()
    shard(Sharded(wrap=(nn.Linear,)), model, [], membership)
    model(inputs).square().sum().backward()
    for weight, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(weight.grad.full_tensor(), gradient)


@pytest.mark.usefixtures("_group_of_one")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"is_divided": True}, "sharded by fully_shard already"),
        ({"model": torch.compile(net())}, "can't be compiled as a whole: compile its layers"),
        ({"model": compiled_in_place()}, "can't be compiled as a whole: compile its layers"),
        ({"precision": Precision("O2")}, "precision='O2' keeps half copies of whole weights"),
        ({"ema": 0.9, "is_divided": True, "parallel": smddp.DDPOptions()}, "ema=0.9 needs a copy of the model"),
        ({"move_model": False}, "move_model=False"),
        ({"parallel": Sharded(wrap=(nn.Linear,), gather_as="bf16")}, "gather_as='bf16' gathers .* computes in fp32"),
        (
            {"optimizers": lambda model: [ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)]},
            "give the optimizer that the ZeroRedundancyOptimizer wraps",
        ),
    ],
)
def test_what_a_sharded_model_cannot_be_combined_with_is_refused_by_name(given: dict[str, Any], told: str) -> None:
    model = net()
    if "optimizers" in given:
        given = {**given, "optimizers": given["optimizers"](model)}
    options = {
        "model": model,
        "optimizers": [torch.optim.SGD(model.parameters())],
        "precision": Precision("fp32"),
        "ema": None,
        "move_model": True,
        "parallel": Sharded(wrap=(nn.Linear,)),
        "is_divided": False,
        **given,
    }
    first = [options.pop(name) for name in ("model", "optimizers", "precision", "parallel")]
    with pytest.raises(ValueError, match=told):
        check_sharded(*first, **options)


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"wrap": ()}, ValueError, r"wrap=\(\): give the classes"),
        ({"wrap": nn.Linear}, TypeError, "wrap is the class Linear: give a tuple of classes"),
        ({"wrap": "Block"}, TypeError, "wrap is 'Block': give a tuple of classes"),
        ({"wrap": ("Block",)}, TypeError, "wrap has 'Block', no class of modules"),
        ({"wrap": (dict,)}, TypeError, "wrap has the class dict, no class of modules"),
        ({"wrap": (nn.Linear(1, 1),)}, TypeError, "wrap has a Linear, no class of modules"),
        ({"shard": "node"}, ValueError, 'shard=\'node\': give "all", "host"'),
        ({"shard": True}, ValueError, "shard=True"),
        ({"shard": 0}, ValueError, "shard=0"),
        ({"reshard_after_forward": 1}, ValueError, "reshard_after_forward=1"),
        ({"gather_as": "fp32"}, ValueError, "gather_as='fp32': give 'bf16', 'fp16' or None"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        Sharded(**{"wrap": (nn.Linear,), **options})


@pytest.mark.parametrize("size", [0, 3, 4, 10, 97, 128, 129])
@pytest.mark.parametrize("batch_size", [2, 3, 64])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_even_evaluation_has_equally_many_batches_and_each_sample_once(
    size: int, batch_size: int, world_size: int
) -> None:
    ranks = [
        EvaluationSampler(size, batch_size=batch_size, rank=rank, world_size=world_size, even=True)
        for rank in range(world_size)
    ]
    batches = [list(each) for each in ranks]
    assert len(set(map(len, batches))) == 1
    assert [len(each) for each in ranks] == [len(each) for each in batches]
    assert sorted(sample for each in batches for batch in each for sample in batch) == list(range(size))
    assert all(0 < len(batch) <= batch_size for each in batches for batch in each)


def test_too_few_samples_for_an_even_evaluation_are_refused() -> None:
    with pytest.raises(
        ValueError, match="7 samples in batches of 1 can't be divided into equally many batches for each"
    ):
        EvaluationSampler(7, batch_size=1, rank=0, world_size=2, even=True)


def job_with(directory: Path, parameters: dict[str, Any] | None, ranks: int = 4) -> smddp.Job:
    given = {} if parameters is None else {"SM_HP_MP_PARAMETERS": json.dumps(parameters)}
    job = smddp.Job.detect({"SMDDP_RUN_DIR": str(directory), **given})
    return replace(job, cluster=replace(job.cluster, world_size=ranks, local_world_size=ranks))


@pytest.mark.parametrize(
    ("parameters", "of_script", "of_job", "told"),
    [
        (None, "all", "all", "the job has no mp_parameters"),
        (None, "host", "host", "the job has no mp_parameters"),
        ({}, "all", "all", "the job has no mp_parameters"),
        ({"hybrid_shard_degree": 0, "tensor_parallel_degree": 1}, "host", "host", None),
        ({"hybrid_shard_degree": 1}, "all", 1, None),
        ({"hybrid_shard_degree": 2, "sm_activation_offloading": False}, "host", 2, None),
        ({"hybrid_shard_degree": 8}, "host", "all", "=8, and has 4 ranks: the weights are divided among all"),
        (
            {"allow_empty_shards": True, "random_seed": 3},
            "all",
            "all",
            "smddp ignores allow_empty_shards=True, random_seed=3 of mp_parameters: only AWS's torch.sagemaker has it",
        ),
    ],
)
def test_a_jobs_degree_decides_how_its_weights_are_divided(
    parameters: dict[str, Any] | None,
    of_script: Any,
    of_job: Any,
    told: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = job_with(tmp_path, parameters)
    with caplog.at_level(logging.INFO, "smddp.distributed"):
        options = Sharded.from_job(job, wrap=(nn.Linear,), shard=of_script, reshard_after_forward=False)
    assert options == Sharded(wrap=(nn.Linear,), shard=of_job, reshard_after_forward=False)
    assert len(caplog.messages) == (told is not None)
    assert told is None or told in caplog.text


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"tensor_parallel_degree": 2}, "asks for tensor_parallel_degree=2, and smddp.Sharded divides weights alone"),
        ({"context_parallel_degree": 2}, "asks for context_parallel_degree=2"),
        ({"expert_parallel_degree": 2}, "asks for expert_parallel_degree=2"),
        ({"tensor_parallel_degree": 0}, "tensor_parallel_degree is 0. Give at least 1"),
        ({"hybrid_shard_degree": -1}, "hybrid_shard_degree is -1. Give at least 0"),
        ({"hybrid_shard_degree": True}, "hybrid_shard_degree is True. Give a whole number"),
        ({"hybrid_shard_degree": "2"}, "hybrid_shard_degree is '2'. Give a whole number"),
        ({"allow_empty_shards": 1}, "allow_empty_shards is 1. Give True or False"),
        ({"hybrid_shard_degre": 2}, "no parameter 'hybrid_shard_degre'. Did you mean 'hybrid_shard_degree'"),
        ({"partitions": 2}, "SMP v2 has no parameter 'partitions'. It has hybrid_shard_degree, "),
    ],
)
def test_a_job_that_asks_for_what_is_not_there_is_refused_by_name(
    parameters: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        Sharded.from_job(job_with(tmp_path, parameters), wrap=(nn.Linear,))


@pytest.mark.parametrize("parameters", [{"hybrid_shard_degree": 0}, {"hybrid_shard_degree": 1}])
@pytest.mark.parametrize("options", [{}, {"parallel": smddp.DDPOptions()}])
def test_a_job_that_asks_for_modelparallel_is_not_trained_by_ddp(
    parameters: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    model, job = net(), job_with(tmp_path, parameters, ranks=1)
    told = "the job asks for smdistributed.modelparallel, and each rank would have the whole model: give parallel="
    with pytest.raises(ValueError, match=told):
        smddp.Trainer(job, model, torch.optim.SGD(model.parameters()), **options)
    parallel = Sharded.from_job(job, wrap=(nn.Linear,))
    smddp.Trainer(job, model, torch.optim.SGD(model.parameters()), parallel=parallel)


def test_a_script_that_divides_otherwise_than_its_job_asks_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_with(tmp_path, {"hybrid_shard_degree": 2})
    for parallel in Sharded(wrap=(nn.Linear,)), Sharded.from_job(job, wrap=(nn.Linear,)):
        check_model_parallel(job, net(), parallel)
    assert caplog.text.count("the job asks for hybrid_shard_degree=2, and the script has shard='all'") == 1
