"""Loops with several models, frozen or compiled ones: each is a proof that its resume changes no bit.

Run as a program on one rank or several, with the names of the recipes as arguments; it prints those that hold.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import smddp
from smddp.distributed import current_membership

WHOLE, PART = 11, 5  # optimizer steps; an epoch has eight


def points(*shape: int) -> TensorDataset:
    return TensorDataset(torch.randn(64, *shape, generator=torch.Generator().manual_seed(7)))


def network(sizes: tuple[int, ...] = (4, 8, 1)) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02, **options)


def steps(trainer: smddp.Trainer, count: int, data: TensorDataset) -> Iterator[tuple[int, Tensor]]:
    batches = trainer.batches(trainer.loader(data, batch_size=8))
    for step in trainer.steps_to(count):
        (batch,) = next(batches)
        yield step, batch


def adversarial_losses(real: Tensor, of_fake: Tensor) -> Tensor:
    one, zero = torch.ones_like(real), torch.zeros_like(real)
    loss = nn.functional.binary_cross_entropy_with_logits
    return loss(real, one) + loss(of_fake, zero)


def gan_of_two_trainers(job: smddp.Job, count: int) -> list[nn.Module]:
    generator, critic = network((2, 8, 4)), network()
    generating = smddp.Trainer(job, generator, adam(generator), name="generator")
    trainer = smddp.Trainer(job, critic, adam(critic), state={"generator": generating})
    for _, real in steps(trainer, count, points(4)):
        fake = generating.model(torch.randn(len(real), 2))
        scores = trainer.model(torch.cat([real, fake.detach()]))
        trainer.step(adversarial_losses(scores[: len(real)], scores[len(real) :]))
        for weight in critic.parameters():
            weight.requires_grad_(False)
        generating.step(-trainer.model(fake).mean())
        for weight in critic.parameters():
            weight.requires_grad_(True)
    assert generating.steps == count
    return [generator, critic]


class Gan(nn.Module):
    """Both models, and their losses in one forward pass: neither loss has gradients for the other's model."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = network((2, 8, 4)), network()

    def forward(self, real: Tensor, noise: Tensor) -> Tensor:
        fake = self.generator(noise)
        scores = self.critic(torch.cat([real, fake.detach()]))
        frozen = {name: weight.detach() for name, weight in self.critic.named_parameters()}
        of_generator = -functional_call(self.critic, frozen, (fake,)).mean()
        return adversarial_losses(scores[: len(real)], scores[len(real) :]) + of_generator


def gan_of_one_trainer(job: smddp.Job, count: int) -> list[nn.Module]:
    gan = Gan()
    trainer = smddp.Trainer(job, gan, [adam(gan.generator), adam(gan.critic)])
    for _, real in steps(trainer, count, points(4)):
        trainer.step(trainer.model(real, torch.randn(len(real), 2)))
    return [gan]


def teacher_and_student(job: smddp.Job, count: int) -> list[nn.Module]:
    teacher, student = network().requires_grad_(False), network()
    average = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    trainer = smddp.Trainer(job, student, adam(student), state={"average": average})
    for _, batch in steps(trainer, count, points(4)):
        target = teacher(batch) + average(batch).detach()
        trainer.step((trainer.model(batch) - target).square().mean())
        average.update_parameters(student)
    return [student, average]


def unfrozen_later(job: smddp.Job, count: int) -> list[nn.Module]:
    model = network()
    trainer = smddp.Trainer(job, model, adam(model))
    first = copy.deepcopy(model[0].weight)
    for step, batch in steps(trainer, count, points(4)):
        model[0].requires_grad_(step >= 7)
        trainer.step(trainer.model(batch).square().mean())
    assert torch.equal(first, model[0].weight) == (count < 8)
    return [model]


class Checkpointed(nn.Module):
    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.body, self.head, self.enabled = network((4, 8, 8)), nn.Linear(8, 1), enabled

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(checkpoint(self.body, x, use_reentrant=False) if self.enabled else self.body(x))
        return self.head(x)


def gradient_checkpointing(job: smddp.Job, count: int) -> list[nn.Module]:
    ends = []
    for enabled in (True, False):
        torch.manual_seed(1)
        model = Checkpointed(enabled)
        trainer = smddp.Trainer(job, model, adam(model), name=f"enabled-{enabled}")
        for _, batch in steps(trainer, count, points(4)):
            trainer.step(trainer.model(batch).square().mean())
        ends.append(model)
    assert same(ends[0], ends[1])
    return ends


def compiled(job: smddp.Job, count: int) -> list[nn.Module]:
    model = network()
    trainer = smddp.Trainer(job, torch.compile(model, backend="eager"), adam(model))  # type: ignore[arg-type]
    for _, batch in steps(trainer, count, points(4)):
        trainer.step(trainer.model(batch).square().mean())
    return [model]


def channels_last(job: smddp.Job, count: int) -> list[nn.Module]:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(180, 1))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    trainer = smddp.Trainer(job, model, adam(model))
    for _, batch in steps(trainer, count, points(3, 8, 8)):
        batch = batch.contiguous(memory_format=torch.channels_last)
        trainer.step(trainer.model(batch).square().mean())
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    return [model]


def fused(job: smddp.Job, count: int) -> list[nn.Module]:
    model = network()
    optimizer = adam(model, fused=True)
    trainer = smddp.Trainer(job, model, optimizer, precision="fp16")
    for _, batch in steps(trainer, count, points(4)):
        trainer.step(trainer.model(batch).square().mean())
    assert optimizer.param_groups[0]["fused"]
    return [model]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def same(one: nn.Module, other: nn.Module) -> bool:
    return torch.equal(flat(one), flat(other))


def holds(job: smddp.Job, recipe: Callable[[smddp.Job, int], list[nn.Module]]) -> None:
    """Sees that a run in two parts ends with the bits of one that was never disturbed, on all ranks."""

    def train(name: str, count: int) -> list[nn.Module]:
        torch.manual_seed(1)  # what is drawn after a resume is the checkpoint's
        return recipe(job.part(f"{recipe.__name__}-{name}"), count)

    whole = train("whole", WHOLE)
    before = train("parts", PART)
    resumed = train("parts", WHOLE)
    assert all(map(same, whole, resumed))
    assert not any(map(same, whole, before))
    membership = current_membership()
    assert membership is not None
    ends = [flat(model).tolist() for model in resumed]
    assert membership.ranks.gather(lambda: ends) == [ends] * membership.cluster.world_size


RECIPES = (
    *(gan_of_two_trainers, gan_of_one_trainer, teacher_and_student, unfrozen_later, gradient_checkpointing),
    *(compiled, channels_last, fused),
)


def main(job: smddp.Job) -> None:
    for recipe in RECIPES:
        if recipe.__name__ in sys.argv[1:]:
            holds(job, recipe)
            print(recipe.__name__)


if __name__ == "__main__":
    smddp.run(main)
