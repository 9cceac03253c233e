import gzip
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from smddp.distributed import leave
from smddp.job import Job
from tests.entrypoints.channels import write_fashion_mnist


def config(entry_point: ModuleType, **values: Any) -> Any:
    return entry_point.Config(**values)


def job_with(channel: Path, run_dir: Path) -> Job:
    return Job.detect({"SMDDP_RUN_DIR": str(run_dir), "SM_CHANNEL_TRAINING": str(channel)})


@pytest.mark.slow
def test_digits_are_learned_in_a_few_epochs(
    entry_point: ModuleType, digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="smddp.metrics.metric_lines")
    job = job_with(digits, tmp_path / "run")
    try:
        entry_point.main(config(entry_point, epochs=3), job)
    finally:
        leave()

    accuracies = [record.getMessage() for record in caplog.records if "accuracy=" in record.getMessage()]
    assert len(accuracies) == 3
    assert float(accuracies[-1].rpartition("=")[2]) >= 0.97

    model = entry_point.build("small_cnn", 1)
    safetensors.torch.load_model(model, job.model_dir / "model.safetensors")
    _, test = entry_point.datasets(config(entry_point), digits)
    images, labels = test.__getitems__(list(range(len(test))))
    with torch.no_grad():
        assert (model.eval()(images).argmax(dim=1) == labels).double().mean() >= 0.97


@pytest.fixture
def fashion_mnist(tmp_path: Path) -> Path:
    write_fashion_mnist(tmp_path / "channel", train=6, test=3)
    return tmp_path / "channel"


def test_fashion_mnist_is_read_as_torchvision_keeps_it(entry_point: ModuleType, fashion_mnist: Path) -> None:
    train, test = entry_point.datasets(config(entry_point), fashion_mnist)

    assert (len(train), len(test)) == (6, 3)
    raw = (fashion_mnist / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").read_bytes()[16:]
    images, labels = train.__getitems__([5, 0])
    assert images.shape == (2, 1, 28, 28)
    assert torch.equal(
        (images[1] * 255).round().byte().flatten(), torch.frombuffer(bytearray(raw[:784]), dtype=torch.uint8)
    )
    assert labels.tolist() == [5, 0]


def test_packed_or_cut_off_fashion_mnist_is_told(entry_point: ModuleType, fashion_mnist: Path) -> None:
    labels = fashion_mnist / "FashionMNIST" / "raw" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-2])
    with pytest.raises(ValueError, match="does not hold the four unpacked idx files"):
        entry_point.datasets(config(entry_point), fashion_mnist)
    labels.with_suffix(".gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    with pytest.raises(ValueError, match="does not hold the four unpacked idx files"):
        entry_point.datasets(config(entry_point), fashion_mnist)


def test_cifar10_is_read_in_colour(entry_point: ModuleType, cifar10: Path) -> None:
    train, test = entry_point.datasets(config(entry_point), cifar10)

    assert (len(train), len(test)) == (10, 3)
    images, labels = test.__getitems__([2])
    stored = pickle.loads((cifar10 / "cifar-10-batches-py" / "test_batch").read_bytes())["data"][2]
    assert torch.equal((images[0] * 255).round().byte().flatten(), torch.from_numpy(stored))
    assert labels.tolist() == [9]


def test_a_cifar10_that_was_changed_is_never_unpickled(entry_point: ModuleType, cifar10: Path, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "attacked",)

    (cifar10 / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({"data": Attack(), "labels": []}))
    with pytest.raises(ValueError, match="MD5 sum is not the published one"):
        entry_point.datasets(config(entry_point), cifar10)
    assert not (tmp_path / "attacked").exists()


def test_a_channel_without_data_is_told_with_what_it_holds(entry_point: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "train.csv").touch()
    with pytest.raises(ValueError, match=r"dataset='auto' needs digits.npz or .* or .*, which holds train.csv"):
        entry_point.datasets(config(entry_point), tmp_path)


def test_a_dataset_that_was_named_and_is_missing_is_told(entry_point: ModuleType, digits: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset='cifar10' needs cifar-10-batches-py.*, which holds digits.npz"):
        entry_point.datasets(config(entry_point, dataset="cifar10"), digits)


def test_two_datasets_in_one_channel_must_be_told_apart(
    entry_point: ModuleType, digits: Path, fashion_mnist: Path
) -> None:
    (fashion_mnist / "digits.npz").write_bytes((digits / "digits.npz").read_bytes())
    with pytest.raises(ValueError, match="dataset='auto' needs"):
        entry_point.datasets(config(entry_point), fashion_mnist)
    train, _ = entry_point.datasets(config(entry_point, dataset="digits"), fashion_mnist)
    assert len(train) == 1437


def arrays(**changed: Any) -> dict[str, Any]:
    good = {
        "train_images": np.zeros((4, 8, 8), np.uint8),
        "train_labels": np.zeros(4, np.int64),
        "test_images": np.zeros((2, 8, 8), np.uint8),
        "test_labels": np.zeros(2, np.int64),
    }
    return {name: array for name, array in {**good, **changed}.items() if array is not None}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"test_labels": None}, "has no readable test_images and test_labels"),
        ({"train_images": np.zeros((4, 8, 8), np.float32)}, "train_images is torch.float32"),
        ({"train_images": np.zeros((4, 28, 28), np.uint8)}, r"shape \(4, 28, 28\)"),
        ({"train_labels": np.zeros(3, np.int64)}, r"train_labels of shape \(3,\)"),
        ({"train_images": np.array([print], dtype=object)}, "has no readable train_images"),
    ],
)
def test_digits_of_another_shape_are_told(
    entry_point: ModuleType, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    np.savez(tmp_path / "digits.npz", **arrays(**changed))
    with pytest.raises(ValueError, match=told):
        entry_point.datasets(config(entry_point), tmp_path)


def test_a_damaged_file_of_digits_is_told(entry_point: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "digits.npz").write_bytes(b"not a zip file")
    with pytest.raises(ValueError, match=r"digits\.npz has no readable train_images"):
        entry_point.datasets(config(entry_point), tmp_path)


@pytest.mark.parametrize(("name", "channels"), [("small_cnn", 1), ("small_cnn", 3), ("resnet18", 1), ("resnet18", 3)])
def test_models_take_grey_and_colour_images_of_every_size(entry_point: ModuleType, name: str, channels: int) -> None:
    model = entry_point.build(name, channels).eval()
    for size in (8, 28, 32):
        assert model(torch.zeros(2, channels, size, size)).shape == (2, 10)


def test_an_unknown_model_is_told_with_those_there_are(entry_point: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"model='resnet19' is not known; use small_cnn or .*resnet18"):
        entry_point.build("resnet19", 3)


def test_digits_need_no_torchvision(script: Path) -> None:
    """Its import takes seconds, and not every container has it."""
    program = f"import sys, runpy; sys.modules['torchvision'] = None; runpy.run_path({str(script)!r})"
    subprocess.run([sys.executable, "-c", program], check=True)
