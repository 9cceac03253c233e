"""Runs the programs of a document, and reads their results from what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from tests.entrypoints.channels import copy_entrypoints, write_cifar10, write_fashion_mnist, write_text
from tests.ports import free_port
from tests.seeds.programs import PROGRAMS

Result = dict[str, str]


def run_document(document: str, directory: Path) -> dict[str, Result]:
    """The result of each program, by its name.

    Args:
        document: Whose programs.
        directory: Where to run them; empty.

    Raises:
        AssertionError: One failed, or did not print its result.
    """
    _furnish(directory)
    programs = str(Path(sys.executable).parent)
    environ = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    results = {}
    for program in PROGRAMS[document]:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", program.command],
            cwd=directory,
            env=environ | {"PORT": str(free_port())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, f"{program.command}\n{done.stdout}"
        found = list(re.finditer(program.shows, done.stdout, re.MULTILINE))
        assert found, f"{program.command} did not print {program.shows}:\n{done.stdout}"
        results[program.program] = found[-1].groupdict()
    return results


def _furnish(directory: Path) -> None:
    classes = list(range(10))
    sums = write_cifar10(directory / "data", train=[classes * 10] * 5, test=classes * 5)
    copy_entrypoints(directory / "entrypoints", sums)
    write_fashion_mnist(directory / "fashion", train=16, test=10)
    write_text(directory / "text")
    from torchvision.models import resnet18

    torch.manual_seed(0)
    (directory / "resnet18").mkdir()
    torch.save(resnet18(num_classes=5).state_dict(), directory / "resnet18" / "resnet18.pth")
