from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from smddp.training.optimizer_step import OptimizerStep, _by_mesh


def quadratic() -> tuple[nn.Linear, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, lambda x: model(x).square().mean()


def test_one_step_is_what_a_hand_written_loop_does() -> None:
    x = torch.randn(8, 3)
    ours, loss = quadratic()
    OptimizerStep([torch.optim.SGD(ours.parameters(), lr=0.1)], clip_norm=0.5).backward_and_step(loss(x))

    theirs, loss = quadratic()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    loss(x).backward()
    nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    optimizer.step()

    assert torch.equal(ours.weight, theirs.weight)
    assert ours.weight.grad is None


def test_micro_batches_add_up_to_their_whole_batch() -> None:
    x = torch.randn(8, 3)
    whole, loss = quadratic()
    assert OptimizerStep([torch.optim.SGD(whole.parameters(), lr=0.1)]).backward_and_step(loss(x))

    pieces, loss = quadratic()
    optimizer_step = OptimizerStep([torch.optim.SGD(pieces.parameters(), lr=0.1)], accumulate=4)
    done = []
    for piece in x.split(2):
        accumulates = optimizer_step.accumulates
        done.append(optimizer_step.backward_and_step(loss(piece)))
        assert done[-1] is not accumulates

    assert done == [False, False, False, True]
    assert torch.allclose(whole.weight, pieces.weight, atol=1e-7)


def test_a_step_that_was_never_finished_leaves_no_gradients_behind() -> None:
    model, loss = quadratic()
    optimizer_step = OptimizerStep([torch.optim.SGD(model.parameters(), lr=0.1)], accumulate=2)
    optimizer_step.backward_and_step(loss(torch.ones(1, 3)))
    optimizer_step.restart()
    assert model.weight.grad is None
    assert optimizer_step.accumulates


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_that_fp16_skips_does_not_move_weights_or_schedule(clip_norm: float | None) -> None:
    model, loss = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = GradScaler("cpu", init_scale=2.0)
    optimizer_step = OptimizerStep([optimizer], schedulers=[scheduler], scaler=scaler, clip_norm=clip_norm)
    before = model.weight.detach().clone()

    assert optimizer_step.backward_and_step(
        loss(torch.full((1, 3), float("inf")))
    )  # the step is over, though it was skipped
    assert torch.equal(model.weight, before)
    assert optimizer_step.learning_rate == 0.1
    assert scaler.get_scale() == 1.0

    assert optimizer_step.backward_and_step(loss(torch.ones(1, 3)))
    assert not torch.equal(model.weight, before)
    assert optimizer_step.learning_rate == 0.05


def test_scaled_and_clipped_gradients_are_those_of_the_unscaled_loss() -> None:
    x = torch.randn(8, 3)
    scaled, loss = quadratic()
    optimizer = torch.optim.SGD(scaled.parameters(), lr=0.1)
    OptimizerStep([optimizer], scaler=GradScaler("cpu", init_scale=1024.0), clip_norm=0.1).backward_and_step(loss(x))

    plain, loss = quadratic()
    OptimizerStep([torch.optim.SGD(plain.parameters(), lr=0.1)], clip_norm=0.1).backward_and_step(loss(x))

    assert torch.allclose(scaled.weight, plain.weight, atol=1e-6)


def test_each_element_is_clipped_once_it_is_unscaled() -> None:
    model, loss = quadratic()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    scaler = GradScaler("cpu", init_scale=1024.0)
    OptimizerStep([optimizer], scaler=scaler, clip_value=0.01).backward_and_step(loss(100 * torch.randn(8, 3)))
    assert torch.allclose((model.weight - before).abs(), torch.full((1, 3), 0.01))


@pytest.mark.parametrize("clip_norm", [None, 1e9])
def test_with_a_loss_scale_an_optimizer_without_gradients_steps_as_without_one(clip_norm: float | None) -> None:
    def train(scaler: GradScaler | None) -> tuple[list[Tensor], list[int], list[bool]]:
        torch.manual_seed(0)
        layers = [nn.Linear(2, 1) for _ in range(2)]
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in layers]
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for optimizer in optimizers]
        step = OptimizerStep(optimizers, schedulers=schedulers, scaler=scaler, clip_norm=clip_norm)
        applied = []
        for used in ([0, 1], [0], [1], []):
            outputs = [layers[number](torch.ones(1, 2)) for number in used] or [torch.ones(1, requires_grad=True)]
            step.backward_and_step(torch.stack([output.sum() for output in outputs]).sum())
            applied.append(step.applied)
        weights = [weight.detach() for layer in layers for weight in layer.parameters()]
        return weights, [scheduler.last_epoch for scheduler in schedulers], applied

    plain, scaled = train(None), train(GradScaler("cpu", init_scale=1024.0))
    torch.testing.assert_close(scaled[0], plain[0])
    assert scaled[1:] == plain[1:] == ([4, 4], [True] * 4)


def test_an_overflow_beside_an_optimizer_without_gradients_is_a_skipped_step() -> None:
    layers = [nn.Linear(2, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 1)
    scaler = GradScaler("cpu", init_scale=2.0)
    step = OptimizerStep(optimizers, schedulers=[scheduler], scaler=scaler)
    step.backward_and_step(layers[0](torch.full((1, 2), torch.inf)).sum())
    assert (step.applied, scheduler.last_epoch, scaler.get_scale()) == (False, 0, 1.0)


def test_weights_without_gradients_take_no_part_in_the_norm() -> None:
    # PyTorch's norm of no gradients is on the CPU, and could not be added to those of a GPU.
    model, _ = quadratic()
    assert [list(map(id, group)) for group in _by_mesh([*model.parameters()])] == [[]]
    model.weight.grad = torch.ones_like(model.weight)
    assert [list(map(id, group)) for group in _by_mesh([*model.parameters()])] == [[id(model.weight)]]
