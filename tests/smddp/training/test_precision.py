from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import pytest
import torch
from torch import Tensor, nn

from smddp.training.precision import Precision, PrecisionName, unwrapped

CPU = torch.device("cpu")


def test_auto_is_float32_without_a_gpu() -> None:
    assert Precision("auto", CPU).name == "fp32"


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_the_forward_pass_computes_in_the_precision_and_gives_float32(name: str, dtype: torch.dtype) -> None:
    computed: list[torch.dtype] = []
    inner = nn.Linear(4, 4)
    inner.register_forward_hook(lambda _module, _inputs, output: computed.append(output.dtype))
    model = Precision(name, CPU).wrap(inner)  # type: ignore[arg-type]

    output = model(torch.ones(2, 4))

    assert computed == [dtype]
    assert output.dtype == torch.float32
    assert all(weight.dtype == torch.float32 for weight in inner.parameters())


def test_float32_costs_no_wrapper() -> None:
    model = nn.Linear(4, 4)
    assert Precision("fp32", CPU).wrap(model) is model


def test_only_fp16_scales_its_loss() -> None:
    scaled = {name for name in get_args(PrecisionName) if name != "tf32" and Precision(name, CPU).scaler() is not None}
    assert scaled == {"fp16", "O1", "O2"}


class ModelOutput(OrderedDict[str, object]):
    """Fields by name and by key, as transformers' outputs have them."""

    def __getattr__(self, name: str) -> object:
        return self[name]


@dataclass(frozen=True)
class Detections:
    boxes: Tensor


class Outputs(NamedTuple):
    logits: Tensor
    label: int


class Returns(nn.Module):
    """A model that computes in low precision and returns what ``make`` makes of that."""

    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.make = make
        self.returned: object = None

    def forward(self, x: Tensor) -> object:
        self.returned = self.make(x @ x)
        return self.returned


@pytest.mark.parametrize(
    "make",
    [
        lambda low: ModelOutput(loss=low.sum(), logits=low),
        lambda low: Detections(low),
        lambda low: Outputs(low, 3),
        lambda low: {"logits": low},
        lambda low: (low, [low]),
    ],
    ids=["an OrderedDict of its own", "a dataclass", "a namedtuple", "a dict", "a tuple"],
)
def test_an_output_that_is_no_tensor_is_handed_on_as_it_is(make: Callable[[Tensor], object]) -> None:
    model = Returns(make)
    assert Precision("bf16", CPU).wrap(model)(torch.ones(2, 2)) is model.returned


def test_a_tensor_that_is_not_of_low_precision_is_handed_on_as_it_is() -> None:
    model = Returns(lambda low: low.argmax(dim=1))
    assert Precision("bf16", CPU).wrap(model)(torch.ones(2, 2)) is model.returned


def test_autocast_covers_a_block_of_ones_own() -> None:
    with Precision("bf16", CPU).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with Precision("fp32", CPU).autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("capability", "name"), [((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")]
)
def test_auto_on_a_gpu_is_bf16_where_it_is_in_hardware(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert Precision("auto", torch.device("cuda", 0)).name == name


def test_a_gpu_that_only_emulates_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with pytest.raises(ValueError, match=r"bf16' needs a GPU that has it in hardware, and Tesla T4 has not"):
        Precision("bf16", torch.device("cuda", 0))


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        ValueError, match=r"precision='16-mixed' is unknown; use one of 'auto', 'fp32', 'tf32', 'bf16', .*'O3'"
    ):
        Precision("16-mixed", CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(("level", "name"), [("O0", "fp32"), ("O1", "fp16")])
def test_apexs_first_levels_are_other_names(level: str, name: str) -> None:
    assert Precision(level, CPU).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["bf16", "O2", "O3"])
def test_the_model_within_is_found_again(name: str) -> None:
    model = nn.Linear(2, 2)
    assert unwrapped(Precision(name, CPU).wrap(model)) is model  # type: ignore[arg-type]
    assert unwrapped(model) is model


def test_tf32_is_switched_on_for_the_process_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="smddp.training.precision")
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    torch.backends.cudnn.allow_tf32 = False
    try:
        model = nn.Linear(2, 2)
        precision = Precision("tf32", torch.device("cuda", 0))
        assert torch.get_float32_matmul_precision() == before  # to name it changes nothing
        assert precision.wrap(model) is model
        precision.wrap(nn.Linear(2, 2))  # its average
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions
    assert caplog.text.count("in TF32 from now on, in all of this process") == 1


def test_tf32_is_refused_where_no_hardware_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'tf32' needs a GPU of CUDA capability 8.0 or later, which a cpu is not"):
        Precision("tf32", CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(ValueError, match="which Tesla V100 is not; use 'fp32' or 'auto'"):
        Precision("tf32", torch.device("cuda", 0))


def test_pure_half_keeps_the_parameters_that_an_optimizer_has() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    weight = inner[0].weight
    model = Precision("O3", CPU).wrap(inner)
    output = model(torch.ones(2, 4))
    output.sum().backward()
    optimizer.step()
    assert inner[0].weight is weight
    assert output.dtype == torch.float32
    assert {each.dtype for each in inner.parameters()} == {torch.float16}
    assert {each.grad.dtype for each in inner.parameters()} == {torch.float16}  # type: ignore[union-attr]
    assert {state["momentum_buffer"].dtype for state in optimizer.state.values()} == {torch.float16}
