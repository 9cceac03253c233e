"""A module on the meta device gets the values that its constructor would have given it, or is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from smddp.distributed.meta_device import draw_values, give_memory, has_no_values, without_values

CPU = torch.device("cpu")


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    module = on_meta(make)
    draw_values(module, module, CPU, 0)
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)),
        lambda: nn.Transformer(16, 2, 1, 1, 64),
        lambda: nn.LSTM(32, 32),
        lambda: nn.Sequential(nn.Embedding(32, 16, padding_idx=3), nn.Conv2d(16, 16, 3), nn.RMSNorm(16), nn.PReLU()),
    ],
)
def test_the_layers_of_torch_get_the_values_of_their_constructors(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, usual = drawn(make), make()
    own, expected = module.state_dict(), usual.state_dict()
    assert not has_no_values(module)
    assert own.keys() == expected.keys()
    for name, value in own.items():
        spread = expected[name].float().std(correction=0)
        assert torch.isclose(value.float().std(correction=0), spread, rtol=0.3, atol=0.05), name
        assert torch.isclose(value.float().mean(), expected[name].float().mean(), atol=0.1), name
    assert [each.requires_grad for each in module.parameters()] == [each.requires_grad for each in usual.parameters()]


def test_tied_weights_stay_tied_and_frozen_ones_frozen() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(5, 5).requires_grad_(False))
        model[1].weight = model[0].weight
        return model

    module = drawn(make)
    assert module[0].weight is module[1].weight  # type: ignore[index]
    assert [each.requires_grad for each in module.parameters()] == [True, False, False]


class Own(nn.Module):
    """A layer that writes its weight in the way that is asked for."""

    def __init__(self, write: Callable[[nn.Module], object] | None, *, inner: bool = False) -> None:
        super().__init__()
        self.weight, self.write = nn.Parameter(torch.ones(4)), write
        self.inner = nn.Linear(2, 2) if inner else None
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool), persistent=False)

    def reset_parameters(self) -> None:
        self.mask.zero_()  # type: ignore[operator]
        if self.write is not None:
            self.write(self)


class Model(nn.Module):
    """A model with Hugging Face's method, whose constructor writes to some weights `again`."""

    def __init__(self, again: str = "-") -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.apply(self._init_weights)
        for name, weight in self.named_parameters():
            if name.startswith(again):
                nn.init.ones_(weight)

    def _init_weights(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.constant_(part.weight, 0.5)
            part.bias.data.fill_(0.25)


def test_the_method_of_the_model_around_comes_last() -> None:
    model = drawn(lambda: nn.Sequential(Model(), nn.Linear(1, 1)))
    assert {float(each) for each in model[0].first.weight.view(-1)} == {0.5}  # type: ignore[index]
    assert {float(each) for each in model[0].last.bias} == {0.25}  # type: ignore[index]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Own(None),
            r"weight \(Own\): nothing gives it values, or not all: write them in a method reset_parameters\(\) of Own",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(2), Model("last.weight")),
            r"1.last.weight \(Linear\): the constructor has written to it 3 times, reset_parameters\(\) and",
        ),
        (
            lambda: Model("last.weight"),
            r"last.weight .* written to it 3 times, reset_parameters\(\) and _init_weights\(\) 2, such as by a loop",
        ),
    ],
)
def test_other_values_than_those_of_the_constructor_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawn(make)


def replaced(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(torch.zeros_like(layer.weight))


def written(layer: nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.zero_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replaced, r"0.weight \(Linear\): the constructor has replaced or copied it: change it in"),
        (written, r"0.weight \(Linear\): the constructor has written to it 2 times"),
    ],
)
def test_a_weight_that_a_constructor_changes_is_refused(change: Callable[[nn.Linear], None], message: str) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3))
        change(model[0])  # type: ignore[arg-type]
        return model

    with pytest.raises(ValueError, match=message):
        drawn(make)


def test_values_that_are_written_in_part_are_refused() -> None:
    for dtype in (torch.float32, torch.int64):

        def write(layer: nn.Module) -> None:
            layer.part[1:] = 1  # type: ignore[operator, union-attr, index]

        def make(dtype: torch.dtype = dtype) -> nn.Module:
            layer = Own(lambda layer: (nn.init.ones_(layer.get_parameter("weight")), write(layer)))
            layer.register_buffer("part", torch.zeros(3, dtype=dtype))
            return layer

        with pytest.raises(ValueError, match=r"part \(Own\): nothing gives it values, or not all"):
            drawn(make)


def test_what_a_layer_assigns_is_taken(shape: int = 3) -> None:
    def make(shape: int) -> nn.Module:
        layer = Own(lambda layer: layer.get_parameter("weight").data.fill_(1.0))
        layer.register_buffer("steps", torch.arange(3), persistent=False)
        inner = layer.write
        layer.write = lambda layer: (inner(layer), setattr(layer, "steps", torch.arange(shape)))  # type: ignore[misc]
        return layer

    assert drawn(lambda: make(3)).steps.tolist() == [0, 1, 2]  # type: ignore[operator, union-attr]
    with pytest.raises(ValueError, match=r"steps \(Own\): reset_parameters\(\) assigns something other than a tensor"):
        drawn(lambda: make(4))


def test_all_faults_of_a_layer_are_told_at_once() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(*(Own(None) for _ in range(4)), Model("last.weight"))
        model[0].positions = torch.arange(3)
        return model

    with pytest.raises(ValueError, match="would begin with other values than on the CPU") as told:
        drawn(make)
    lines = str(told.value).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "0.weight",
        "1.weight",
        "2.weight",
        "3.weight",
        "4.last.weight",
        "and",
    ]
    model = on_meta(lambda: nn.Sequential(nn.Linear(1, 1)))
    model.positions = torch.empty(3, device="meta")
    with pytest.raises(ValueError, match="positions: a tensor on the meta device, and no buffer: register it"):
        draw_values(model, model, CPU, 0)


def test_the_values_depend_on_seed_and_names_alone() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), Model())

    whole, by_layers, other = on_meta(make), on_meta(make), on_meta(make)
    state = torch.get_rng_state()
    draw_values(whole, whole, CPU, 3)
    assert torch.get_rng_state().equal(state)
    torch.rand(7)
    for layer in (by_layers[2], by_layers[1], by_layers):  # type: ignore[index]
        draw_values(layer, by_layers, CPU, 3)
    draw_values(other, other, CPU, 4)
    assert all(map(torch.equal, whole.state_dict().values(), by_layers.state_dict().values()))
    assert not whole[0].weight.equal(whole[1][0].weight)  # type: ignore[index]
    assert not whole[0].weight.equal(other[0].weight)  # type: ignore[index]


def test_a_write_beside_the_counter_counts_by_its_values() -> None:
    model = drawn(lambda: Own(lambda layer: layer.weight.data.fill_(7.0)))
    assert model.weight.tolist() == [7.0] * 4  # type: ignore[operator, union-attr]


def test_values_that_are_there_stay() -> None:
    model = on_meta(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    model[0] = given = nn.Linear(2, 2)  # type: ignore[operator]
    before = [each.clone() for each in given.parameters()]
    draw_values(model, model, CPU, 0)
    assert [each.tolist() for each in given.parameters()] == [each.tolist() for each in before]
    with torch.device("meta"):
        around = Own(lambda layer: layer.get_parameter("inner.weight").zero_(), inner=True)
    around.inner = given
    with pytest.raises(
        ValueError, match=r"reset_parameters\(\) of a layer around inner.weight writes to it, and it has"
    ):
        draw_values(around, around, CPU, 0)


def test_a_copy_without_values_is_frozen_and_has_the_same_ties() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.append(model[0])
    outline = without_values(model)
    assert all(each.is_meta for each in (*outline.parameters(), *outline.buffers()))
    assert outline[0] is outline[2]  # type: ignore[index]
    assert not any(each.requires_grad for each in outline.parameters())
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))
    assert list(give_memory(outline, CPU)) == [*dict(model.named_parameters()), *dict(model.named_buffers())]
    assert not has_no_values(outline)
