"""Weights from anywhere into a module: what fits is loaded, what does not is told, and nothing happens by halves."""

from __future__ import annotations

import json
import logging
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard

import smddp
from smddp.checkpoint.convert import export, saved_model
from smddp.checkpoint.convert.saved_model import write_weights
from smddp.checkpoint.convert.weights import WeightsError, load_weights
from smddp.checkpoint.stores import open_store
from smddp.errors import CheckpointError, SmddpError
from tests.smddp.checkpoint.by_hand import write_checkpoint


def net(classes: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


def bits(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one: nn.Module | dict[str, torch.Tensor], other: nn.Module | dict[str, torch.Tensor]) -> bool:
    left, right = (each.state_dict() if isinstance(each, nn.Module) else each for each in (one, other))
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def trained(tmp_path: Path) -> nn.Sequential:
    """A model, saved at step 7 under "run", with an optimizer, after another one at step 3."""
    model = net()
    model(torch.randn(8, 3)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters())
    store = open_store(tmp_path / "run")
    write_checkpoint(store, 3, {"model": net().state_dict()})
    optimizer.step()
    write_checkpoint(store, 7, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, writers=2)
    return model


def _torch_save(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path / "weights.pt")
    return path / "weights.pt"


def _old_torch_save(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path / "weights.bin", _use_new_zipfile_serialization=False)
    return path / "weights.bin"


def _in_parts(name: str) -> Callable[[nn.Module, Path], Path]:
    def save(model: nn.Module, path: Path) -> Path:
        torch.save({"epoch": 3, name: model.state_dict(), "optimizer": {"state": {}}}, path / "all.pt")
        return path / "all.pt"

    return save


def _model_directory(model: nn.Module, path: Path) -> Path:
    write_weights(model.state_dict(), path / "model")
    return path / "model"


def _safetensors(model: nn.Module, path: Path) -> Path:
    return _model_directory(model, path) / "model.safetensors"


def _several_files(model: nn.Module, path: Path) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(saved_model, "MOST_BYTES", 40)
        return _model_directory(model, path)


def _index_of_several(model: nn.Module, path: Path) -> Path:
    return _several_files(model, path) / "model.safetensors.index.json"


def _archive_of_several(model: nn.Module, path: Path) -> Path:
    with tarfile.open(path / "model.tar.gz", "w:gz") as archive:
        archive.add(_several_files(model, path), "./")
    return path / "model.tar.gz"


def _archive(kept: str, inside: str = "") -> Callable[[nn.Module, Path], Path]:
    def save(model: nn.Module, path: Path) -> Path:
        with tarfile.open(path / "model.tar.gz", "w:gz") as archive:
            archive.add(_model_directory(model, path) / kept, f"{inside}{kept}")
        return path / "model.tar.gz"

    return save


def _dcp(model: nn.Module, path: Path) -> Path:
    export(path / "run", path / "dcp", "dcp", ["model", "optimizer"])
    return path / "dcp"


def test_of_two_aliases_of_the_model_one_must_be_named(trained: nn.Sequential, tmp_path: Path) -> None:
    path, other, module = tmp_path / "two.pt", net(), net()
    torch.save({"model_state_dict": trained.state_dict(), "state_dict": other.state_dict()}, path)
    with pytest.raises(CheckpointError, match=r"has 'model_state_dict' and 'state_dict', .* part='model_state_dict'"):
        load_weights(module, path)
    for part, saved in {"model_state_dict": trained, "state_dict": other}.items():
        load_weights(module, path, part=part)
        assert same(module, saved)


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(lambda model, path: path / "run", id="newest checkpoint"),
        pytest.param(lambda model, path: str(path / "run" / "step-000000000007") + "/", id="one checkpoint"),
        pytest.param(_torch_save, id="torch.save"),
        pytest.param(_old_torch_save, id="torch.save before 1.6"),
        pytest.param(_in_parts("model"), id="torch.save with model"),
        pytest.param(_in_parts("model_state_dict"), id="torch.save with model_state_dict"),
        pytest.param(_in_parts("state_dict"), id="torch.save with state_dict"),
        pytest.param(_safetensors, id="safetensors"),
        pytest.param(_model_directory, id="model directory"),
        pytest.param(_several_files, id="directory of several safetensors"),
        pytest.param(_index_of_several, id="index of several safetensors"),
        pytest.param(_archive_of_several, id="tar of several safetensors"),
        pytest.param(_archive("model.safetensors"), id="tar of safetensors"),
        pytest.param(_archive("model.pt", "./"), id="tar of torch.save"),
        pytest.param(_dcp, id="dcp"),
    ],
)
def test_every_kind_of_source_gives_the_same_weights_bit_for_bit(
    trained: nn.Sequential, tmp_path: Path, save: Callable[[nn.Module, Path], Path]
) -> None:
    module = net()
    report = load_weights(module, save(trained, tmp_path))
    assert report.complete
    assert same(module, trained)
    assert set(report.loaded) == set(trained.state_dict())


def test_the_report_names_the_checkpoint_that_was_the_newest(trained: nn.Sequential, tmp_path: Path) -> None:
    assert load_weights(net(), tmp_path / "run").source == str(tmp_path / "run" / "step-000000000007")


def test_of_a_checkpoint_only_the_part_is_read(trained: nn.Sequential, tmp_path: Path) -> None:
    for file in (tmp_path / "run" / "step-000000000007").rglob("optimizer*.safetensors"):
        damaged = bytearray(file.read_bytes())
        damaged[-1] ^= 1
        file.write_bytes(damaged)
    module = net()
    load_weights(module, tmp_path / "run")
    assert same(module, trained)


def test_damaged_weights_are_passed_over_for_the_checkpoint_before(trained: nn.Sequential, tmp_path: Path) -> None:
    for file in (tmp_path / "run" / "step-000000000007").rglob("model*.safetensors"):
        damaged = bytearray(file.read_bytes())
        damaged[-1] ^= 1
        file.write_bytes(damaged)
    assert load_weights(net(), tmp_path / "run").source.endswith("step-000000000003")
    with pytest.raises(CheckpointError, match="was changed"):
        load_weights(net(), tmp_path / "run" / "step-000000000007")


def test_strict_refuses_before_anything_changes_and_names_all_that_does_not_fit(
    trained: nn.Sequential, tmp_path: Path
) -> None:
    module = net(classes=5)
    module.append(nn.Linear(5, 1))
    del module[0]
    module.insert(0, nn.Linear(3, 4, bias=False))
    before = bits(module)
    with pytest.raises(WeightsError) as raised:
        load_weights(module, tmp_path / "run")
    assert isinstance(raised.value, (SmddpError, ValueError))
    assert same(module, before)
    told = str(raised.value)
    assert "missing there (2): 3.weight, 3.bias" in told
    assert "unexpected there (1): 0.bias" in told
    assert "2.weight (float32 [2, 4] there, float32 [5, 4] here)" in told
    assert "strict=False" in told


def test_not_strict_loads_what_fits_and_warns_of_the_rest(
    trained: nn.Sequential, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = net(classes=5)
    before = bits(module)
    report = load_weights(module, tmp_path / "run", strict=False)
    assert same(module[:2], trained[:2])
    assert torch.equal(module[2].weight, before["2.weight"])
    assert set(report.misshapen) == {"2.weight", "2.bias"}
    assert (report.missing, report.unexpected) == ((), ())
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].getMessage() == str(report)


def test_what_fits_altogether_is_no_warning(
    trained: nn.Sequential, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load_weights(net(), tmp_path / "run")
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_another_model_is_an_error_although_not_strict(trained: nn.Sequential, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="another model"):
        load_weights(nn.ModuleDict({"encoder": nn.Linear(3, 4)}), tmp_path / "run", strict=False)


def test_a_long_report_is_cut_and_says_so(tmp_path: Path) -> None:
    torch.save(
        {**nn.Linear(1, 1).state_dict(), **{f"more.{index}": torch.ones(1) for index in range(30)}}, tmp_path / "w.pt"
    )
    report = load_weights(nn.Linear(1, 1), tmp_path / "w.pt", strict=False)
    assert "unexpected there (30): more.0, " in str(report)
    assert "and 25 more" in str(report)


def test_freeze_freezes_what_was_loaded_and_names_the_running_statistics(
    trained: nn.Sequential, tmp_path: Path
) -> None:
    module = net(classes=5)
    report = load_weights(module, tmp_path / "run", strict=False, freeze=True)
    assert [name for name, weight in module.named_parameters() if weight.requires_grad] == ["2.weight", "2.bias"]
    assert set(report.frozen) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert report.running == ("1",)
    assert "running statistics, which change unless in eval mode (1): 1" in str(report)
    module(torch.randn(8, 3) + 5)
    assert not torch.equal(module[1].running_mean, trained[1].running_mean), "as the report says"
    module[1].eval()
    mean = module[1].running_mean.clone()
    module(torch.randn(8, 3) + 5)
    assert torch.equal(module[1].running_mean, mean)


def test_without_freeze_everything_is_trained(trained: nn.Sequential, tmp_path: Path) -> None:
    module = net()
    report = load_weights(module, tmp_path / "run")
    assert all(weight.requires_grad for weight in module.parameters())
    assert (report.frozen, report.running) == ((), ())


def test_numbers_are_cast_with_a_note(trained: nn.Sequential, tmp_path: Path) -> None:
    module = net().to(torch.bfloat16)
    report = load_weights(module, tmp_path / "run")
    assert module[0].weight.dtype == torch.bfloat16
    assert torch.equal(module[0].weight, trained[0].weight.to(torch.bfloat16))
    assert report.cast["0.weight"] == "float32 to bfloat16"
    assert "cast (8): float32 to bfloat16" in str(report)


def test_numbers_of_another_kind_do_not_fit(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2, 3, dtype=torch.int8), "bias": torch.ones(2)}, tmp_path / "w.pt")
    report = load_weights(nn.Linear(3, 2), tmp_path / "w.pt", strict=False)
    assert report.misshapen == {"weight": "int8 [2, 3] there, float32 [2, 3] here"}


@pytest.mark.parametrize("wrapped", ["source", "module"])
def test_the_names_of_ddp_and_compile_are_recognised(tmp_path: Path, wrapped: str) -> None:
    plain, inner = net(), net()
    inner[0] = torch.compile(inner[0])  # nothing is compiled before it is called
    holder = nn.Module()
    holder.module = torch.compile(inner)
    assert "module._orig_mod.0._orig_mod.weight" in holder.state_dict()
    source, module = (holder, plain) if wrapped == "source" else (plain, holder)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    report = load_weights(module, tmp_path / "w.pt")
    assert report.complete
    assert torch.equal(plain[0].weight, inner[0].weight)
    assert torch.equal(plain[2].bias, inner[2].bias)


def test_a_layer_that_is_called_module_stays_so(tmp_path: Path) -> None:
    source, target = nn.Module(), nn.Module()
    source.module, target.module = nn.Linear(2, 2), nn.Linear(2, 2)
    torch.save(source.state_dict(), tmp_path / "w.pt")
    assert load_weights(target, tmp_path / "w.pt").loaded == ("module.bias", "module.weight")


@pytest.mark.parametrize("replicated", [False, True])
def test_a_prefix_takes_a_part_of_a_model(tmp_path: Path, replicated: bool) -> None:
    source = nn.ModuleDict({"backbone": net(), "head": nn.Linear(2, 2)})
    prefix = "module." if replicated else ""
    torch.save({prefix + name: weight for name, weight in source.state_dict().items()}, tmp_path / "w.pt")
    module = net()
    assert load_weights(module, tmp_path / "w.pt", prefix="backbone.").complete
    assert same(module, source["backbone"])
    with pytest.raises(WeightsError, match="under a prefix"):
        load_weights(module, tmp_path / "w.pt", prefix="body.")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_come_from_a_file_that_has_them_once(tmp_path: Path) -> None:
    source, module = Tied(), Tied()
    write_weights(source.state_dict(), tmp_path)
    report = load_weights(module, tmp_path / "model.safetensors", freeze=True)
    assert report.loaded == ("embed.weight", "head.weight")
    assert torch.equal(module.head.weight, source.embed.weight)
    assert module.head.weight is module.embed.weight
    torch.save({"embed.weight": source.embed.weight}, tmp_path / "once.pt")
    assert load_weights(Tied(), tmp_path / "once.pt").complete


def test_two_weights_do_not_become_one_in_silence(tmp_path: Path) -> None:
    torch.save({"embed.weight": torch.zeros(4, 3), "head.weight": torch.ones(4, 3)}, tmp_path / "untied.pt")
    with pytest.raises(WeightsError, match=r"other values there than embed\.weight, and here they are one tensor"):
        load_weights(Tied(), tmp_path / "untied.pt")


def test_the_pieces_of_a_sharded_model_are_no_model(tmp_path: Path) -> None:
    smddp.join()
    module = nn.Linear(3, 2)
    fully_shard(module)
    torch.save(module.state_dict(), tmp_path / "w.pt")
    smddp.leave()
    with pytest.raises(CheckpointError, match=r"w\.pt holds DTensors, so one rank's pieces .*full_state_dict=True"):
        load_weights(nn.Linear(3, 2), tmp_path / "w.pt")


def test_a_module_without_memory_is_told_what_to_do(trained: nn.Sequential, tmp_path: Path) -> None:
    with torch.device("meta"):
        module = net()
    with pytest.raises(WeightsError, match="to_empty"):
        load_weights(module, tmp_path / "run")


def test_a_lazy_module_takes_its_shape(trained: nn.Sequential, tmp_path: Path) -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert load_weights(module, tmp_path / "run").complete
    assert same(module, trained)


def test_the_versions_of_layers_reach_the_module_that_asks_for_them(tmp_path: Path) -> None:
    seen = []

    class Versioned(nn.Linear):
        _version = 3

        def _load_from_state_dict(self, state, prefix, metadata, *rest) -> None:  # type: ignore[no-untyped-def]
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    source = nn.Sequential(Versioned(2, 2))
    write_checkpoint(open_store(tmp_path), 1, {"model": source.state_dict()})
    load_weights(nn.Sequential(Versioned(2, 2)), tmp_path)
    holder = nn.Module()
    holder.module = nn.Sequential(Versioned(2, 2))
    load_weights(holder, tmp_path)
    assert seen == [3, 3]


def test_another_part_can_be_the_weights(trained: nn.Sequential, tmp_path: Path) -> None:
    ema = net()
    write_checkpoint(open_store(tmp_path / "other"), 1, {"model": trained.state_dict(), "ema": ema.state_dict()})
    module = net()
    load_weights(module, tmp_path / "other", part="ema")
    assert same(module, ema)
    with pytest.raises(CheckpointError, match="has no teacher, only ema, model"):
        load_weights(module, tmp_path / "other", part="teacher")


def test_an_averaged_model_gives_its_weights_without_its_count(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(net())
    write_checkpoint(open_store(tmp_path), 1, {"ema": average.state_dict()})
    module = net()
    assert load_weights(module, tmp_path, part="ema").complete
    assert same(module, average.module)

    again = torch.optim.swa_utils.AveragedModel(net())
    assert load_weights(again, tmp_path, part="ema").complete
    assert same(again.module, average.module)


def _with_index(change: Callable[[dict[str, str], Path], object]) -> Callable[[Path], Path]:
    """Return a function that makes a directory of files with the tensors a, b and c, whose index is changed."""

    def make(path: Path) -> Path:
        directory = path / "model"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(saved_model, "MOST_BYTES", 8)
            write_weights({name: torch.ones(2) for name in "abc"}, directory)
        file_of = {name: f"model-0000{number}-of-00003.safetensors" for number, name in enumerate("abc", start=1)}
        index = directory / "model.safetensors.index.json"
        assert json.loads(index.read_text())["weight_map"] == file_of
        change(file_of, directory)
        index.write_text(json.dumps({"weight_map": file_of}))
        return directory

    return make


FIRST, SECOND = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda files, _: files.update(a="../a.safetensors"),
            r"names '\.\./a\.safetensors', which is no safetensors",
        ),
        (
            lambda files, _: files.update(a="/etc/passwd"),
            "names '/etc/passwd', which is no safetensors file",
        ),
        (
            lambda files, _: files.update(a="model.pt"),
            "names 'model.pt', which is no safetensors file",
        ),
        (lambda files, _: files.update(a="a" * 300 + ".safetensors"), "which is no safetensors file in its directory"),
        (lambda files, _: files.update(a=["x"]), "which is no safetensors file in its directory"),
        (lambda _, path: (path / FIRST).unlink(), f"names {FIRST}, and there is no such file"),
        (lambda files, _: files.update(d=FIRST), f"says that d is in {FIRST}, which does not have it"),
        (lambda files, _: files.update(a=SECOND), f"{SECOND} has b|says that a is in {SECOND}, which does not have it"),
        (lambda files, _: files.pop("a") and files.update(d=FIRST), f"{FIRST} has a, and .* does not list it"),
        (
            lambda _, path: save_file({"b": torch.zeros(2), "a": torch.ones(2)}, path / FIRST),
            f"{FIRST} has b, and .* says that it is in {SECOND}",
        ),
        (lambda _, path: (path / SECOND).write_bytes(b"\x00" * 9), "is not a safetensors file, or it is damaged"),
        (lambda files, _: files.clear(), "is not an index of safetensors files: it names none"),
    ],
)
def test_an_index_that_its_files_do_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, str], Path], object], told: str
) -> None:
    module = nn.ParameterDict({name: torch.zeros(2) for name in "abc"})
    with pytest.raises(CheckpointError, match=told) as raised:
        load_weights(module, _with_index(change)(tmp_path))
    assert "\n" not in str(raised.value)
    assert not any(weight.any() for weight in module.values())


def test_an_alias_takes_the_place_of_no_tensor(tmp_path: Path) -> None:
    directory = _with_index(lambda files, _: files.update(pt=FIRST))(tmp_path)
    save_file({"a": torch.ones(2), "pt": torch.full((2,), 5.0)}, directory / FIRST, metadata={"format": "pt"})
    save_file({"b": torch.full((2,), 3.0)}, directory / SECOND, metadata={"a": "b", "d": "b"})
    module = nn.ParameterDict({name: torch.zeros(2) for name in ("a", "b", "c", "d", "pt")})
    assert load_weights(module, directory).complete
    assert {name: float(weight[0]) for name, weight in module.items()} == {"a": 1, "b": 3, "c": 1, "d": 3, "pt": 5}


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": "x", "a": "y"}}', "{"])
def test_what_is_no_index_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="is not an index of safetensors files"):
        load_weights(nn.Linear(1, 1), tmp_path)


def _nothing(path: Path) -> Path:
    return path / "nothing"


def _empty(path: Path) -> Path:
    (path / "empty").mkdir()
    return path / "empty"


def _text(path: Path) -> Path:
    (path / "notes.txt").write_text("not weights at all")
    return path / "notes.txt"


def _truncated(name: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write_weights(net().state_dict(), path)
        with tarfile.open(path / "model.tar.gz", "w:gz") as archive:
            archive.add(path / "model.pt", "model.pt")
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: len(content) // 2])
        return path / name

    return make


def _other_archive(path: Path) -> Path:
    with tarfile.open(path / "code.tar.gz", "w:gz") as archive:
        archive.add(_text(path), "notes.txt")
    return path / "code.tar.gz"


def _saved_module(path: Path) -> Path:
    torch.save(net(), path / "module.pt")
    return path / "module.pt"


def _saved_number(path: Path) -> Path:
    torch.save({"epoch": 3, "loss": 0.5}, path / "numbers.pt")
    return path / "numbers.pt"


def _run_directory(path: Path) -> Path:
    (path / "run" / "checkpoints").mkdir(parents=True)
    return path / "run"


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_nothing, "there is nothing at "),
        (_empty, "there is no checkpoint in .*; a checkpoint is a directory step-"),
        (_run_directory, r"did you mean .*/run/checkpoints\?"),
        (_text, "notes.txt is not a file that torch.save wrote"),
        (_truncated("model.safetensors"), "is not a safetensors file, or it is damaged"),
        (_truncated("model.pt"), "or it is damaged"),
        (_truncated("model.tar.gz"), "is not a model.tar.gz, or it is damaged"),
        (_other_archive, "has none of model.safetensors, .* only notes.txt"),
        (_saved_module, "holds torch.nn.modules.container.Sequential, .* run code"),
        (_saved_number, "holds epoch, loss, where a model's state_dict was expected"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_source_that_is_none_is_told_in_one_line(tmp_path: Path, make: Callable[[Path], Path], told: str) -> None:
    module = net()
    before = bits(module)
    with pytest.raises(CheckpointError, match=told) as raised:
        load_weights(module, make(tmp_path))
    assert "\n" not in str(raised.value)
    assert same(module, before)
