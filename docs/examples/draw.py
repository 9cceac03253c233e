"""Train the entry points on two processes, and draw the curves of docs/examples.md.

    python docs/examples/draw.py                all
    python docs/examples/draw.py char_gpt       one

Fashion-MNIST is read from the directory of Debian's package ``dataset-fashion-mnist``, or from ``FASHION_MNIST``; its
first 4,000 and 1,000 images are used. The runs stay in ``runs/examples``; a second call resumes them, and draws again.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from estimators.demo.run import write_digits

HERE = Path(__file__).parent
ENTRYPOINTS = HERE.parents[1] / "entrypoints"
RUNS = Path("runs/examples")
FASHION_MNIST = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))

LOSS, SCORE, AXES = "#3b82f6", "#f97316", "#808a96"  # readable on white and on the dark theme's background


@dataclass(kw_only=True, slots=True, frozen=True)
class Example:
    """One curve: a script, its arguments, and the metric that it reports beside the loss."""

    script: str
    arguments: tuple[str, ...]
    score: str
    title: str
    channel: Path | None = None
    scale: str = "linear"
    """Of the loss's axis: linear or log."""


EXAMPLES = {
    "image_classification": Example(
        script="image_classification.py",
        arguments=("--epochs", "12", "--log-every", "4"),
        score="accuracy",
        title="UCI digits, a small CNN",
        channel=RUNS / "digits",
        scale="log",
    ),
    "char_gpt": Example(
        script="char_gpt.py",
        arguments=("--steps", "600"),
        score="test_loss",
        title="Python's language reference, a GPT of 4 layers",
    ),
    "language_model": Example(
        script="language_model.py",
        arguments=("--steps", "400"),
        score="test_loss",
        title="Python's language reference, a sharded decoder of 4 layers",
    ),
    "transfer_learning": Example(
        script="transfer_learning.py",
        arguments=("--epochs", "5", "--batch-size", "64", "--workers", "0"),
        score="accuracy",
        title="4,000 images of Fashion-MNIST, a ResNet-18 from random weights",
        channel=RUNS / "fashion",
    ),
    "hydra_digits": Example(
        script="hydra_digits/train.py",
        arguments=("epochs=40", "optimizer=adam"),
        score="test_accuracy",
        title="UCI digits, an MLP configured by Hydra",
    ),
}


def train(name: str, example: Example) -> list[dict[str, float]]:
    """Run the script on two processes; return its metric lines."""
    directory = RUNS / name
    environment = {"SM_CHANNEL_TRAINING": str(example.channel.absolute())} if example.channel else {}
    launcher = ["smddp", "run", "--processes-per-node", "2", "--run-dir", directory]
    command = [*launcher, ENTRYPOINTS / example.script, *example.arguments]
    subprocess.run(command, env=os.environ | environment, check=True)
    lines = (directory / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def draw(example: Example, metrics: list[dict[str, float]], path: Path) -> None:
    """Draw the loss and the score on a transparent background: on one scale if the score is a loss, too."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    left = figure.add_subplot()
    steps, losses = points(metrics, "loss")
    left.plot(steps, losses, color=LOSS, linewidth=1.4)
    left.set_yscale(example.scale)
    left.set_xlabel("step", color=AXES)
    left.set_ylabel("training loss", color=LOSS)
    right = left.twinx()
    if example.score.endswith("loss"):
        right.sharey(left)  # two losses are compared, a loss and an accuracy are not
    steps, scores = points(metrics, example.score)
    right.plot(steps, scores, color=SCORE, linewidth=1.4, marker="o", markersize=4)
    right.set_ylabel(f"{example.score.replace('_', ' ')}: {scores[-1]:.3g}", color=SCORE)
    left.set_title(example.title, loc="left", color=AXES)
    left.grid(visible=True, alpha=0.25)
    for axes in (left, right):
        axes.tick_params(which="both", colors=AXES)
        axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=110, transparent=True)


def points(metrics: list[dict[str, float]], name: str) -> tuple[list[float], list[float]]:
    """Return the steps and the values of one metric."""
    found = [line for line in metrics if name in line]
    return [line["step"] for line in found], [line[name] for line in found]


def write_fashion(directory: Path, *, train: int = 4000, test: int = 1000) -> None:
    """Write the first images of Fashion-MNIST and their labels, as packed idx files."""
    for file, bytes_each in {"images-idx3": 28 * 28, "labels-idx1": 1}.items():
        for split, count in {"train": train, "t10k": test}.items():
            name = f"{split}-{file}-ubyte.gz"
            head = 16 if bytes_each > 1 else 8  # magic number, count, and the images' height and width
            content = gzip.decompress((FASHION_MNIST / name).read_bytes())
            first = content[:4] + count.to_bytes(4, "big") + content[8 : head + count * bytes_each]
            (directory / name).write_bytes(gzip.compress(first))


if __name__ == "__main__":
    names = sys.argv[1:] or [*EXAMPLES]
    channels = {EXAMPLES[name].channel for name in names} - {None}
    for channel in channels:
        channel.mkdir(parents=True, exist_ok=True)
    if RUNS / "digits" in channels:
        write_digits(RUNS / "digits" / "digits.npz")
    if RUNS / "fashion" in channels:
        write_fashion(RUNS / "fashion")
    for name in names:
        draw(EXAMPLES[name], train(name, EXAMPLES[name]), HERE / f"{name}.png")
