from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from smddp.training.precision import Precision

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
    assert Precision("fp16", CPU).scaler() is not None
    assert Precision("bf16", CPU).scaler() is None
    assert Precision("fp32", CPU).scaler() is None


class Outputs(NamedTuple):
    logits: Tensor
    label: int


class Many(nn.Module):
    def forward(self, x: Tensor) -> dict[str, object]:
        low = x @ x
        return {"named": Outputs(low, 3), "list": [low, (low, "text")], "counts": torch.tensor([1])}


def test_nested_outputs_become_float32_and_the_rest_is_left_alone() -> None:
    outputs = Precision("bf16", CPU).wrap(Many())(torch.ones(2, 2))

    assert isinstance(outputs["named"], Outputs)
    assert outputs["named"].logits.dtype == torch.float32
    assert outputs["named"].label == 3
    assert outputs["list"][0].dtype == torch.float32
    assert outputs["list"][1][0].dtype == torch.float32
    assert outputs["list"][1][1] == "text"
    assert outputs["counts"].dtype == torch.int64


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
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert Precision("auto", torch.device("cuda", 0)).name == name


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="precision='16-mixed' is unknown; use one of 'auto', 'fp32', 'bf16', 'fp16'"):
        Precision("16-mixed", CPU)  # type: ignore[arg-type]
