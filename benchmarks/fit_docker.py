"""Seconds that fit() takes on two containers for a job that does nothing: the SDK's Local Mode, and the local platform.

The same image and script, in turn, in one run: ``sagemaker.pytorch.PyTorch`` in the SDK's own Local Mode (spared its
telemetry, which needs the internet), ``Estimator`` in Local Mode, and ``Estimator`` on the local platform's Docker
executor, which runs already. Build the image before: ``smddp image build``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from estimators import Estimator
from estimators.docker.docker_program import DockerError, docker
from estimators.local import Docker, LocalSageMaker
from estimators.sdk import v2

ROLE = "arn:aws:iam::123456789012:role/local"


def seconds(fit: Callable[[], object]) -> float:
    """Return how long the command takes, without what it prints."""
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        fit()
    return time.perf_counter() - began


@contextlib.contextmanager
def without_leftovers(image: str) -> Iterator[None]:
    """Remove the containers that a block leaves: the SDK leaves all of its own."""
    listed = ("ps", "--all", "--quiet", "--filter", f"ancestor={image}", "--filter", "status=exited")
    before = docker(*listed).split()
    try:
        yield
    finally:
        if left := set(docker(*listed).split()) - set(before):
            docker("rm", *left)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--image", default="smddp-training")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    try:
        docker("image", "inspect", arguments.image)
    except DockerError as fault:
        print(f"Not measured, for want of the image {arguments.image}: {fault} Build it by: smddp image build")
        return

    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    with (
        tempfile.TemporaryDirectory() as directory,
        without_leftovers(arguments.image),
        LocalSageMaker(executor=Docker()) as platform,
    ):
        os.chdir(directory)  # where Local Mode leaves what a job makes
        Path("nothing.py").write_text("print('done')\n")
        job: dict[str, Any] = {
            "entry_point": "nothing.py",
            "source_dir": directory,
            "image_uri": arguments.image,
            "instance_count": 2,
        }
        in_local_mode = {**job, "instance_type": "local", "role": ROLE}
        of_the_sdk = {**in_local_mode, "debugger_hook_config": False, "disable_profiler": True}
        on_platform = {**job, "instance_type": "ml.m5.large", "role": platform.role}
        on_platform["sagemaker_session"] = platform.session
        fits: dict[str, Callable[[], object]] = {
            "PyTorch, Local Mode": lambda: v2.trainer(of_the_sdk, v2.local_session()).fit(),
            "Estimator, Local Mode": lambda: Estimator(**in_local_mode).fit(),
            "Estimator, Docker executor": lambda: Estimator(**on_platform).fit(),
        }
        for fit in fits.values():
            seconds(fit)  # once to warm up what is read from disk
        taken: dict[str, list[float]] = {name: [] for name in fits}
        for _ in range(arguments.repeats):
            for name, fit in fits.items():
                taken[name].append(seconds(fit))
    sdk = statistics.median(taken["PyTorch, Local Mode"])
    print("| fit() | median s | worst s | of the SDK's Local Mode |\n|---|---|---|---|")
    for name, values in taken.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.2f} | {max(values):.2f} | {median / sdk:.2f} |")


if __name__ == "__main__":
    main()
