"""A small run to save: its whole state follows from one number, so that mixed or wrong bytes are seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from smddp.checkpoint import Checkpointer, Retention


class Counted:
    """A part of a run, all of whose state is a function of a number."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.number = -1

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "weight": torch.arange(self.size) * 1.0 + self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert torch.equal(state["weight"], torch.arange(self.size) * 1.0 + state["number"])
        self.number = state["number"]


class Run:
    """A checkpointer with two parts, saved at steps whose number both parts hold."""

    def __init__(self, directory: Path, *, last: int = 3, **options: Any) -> None:
        self.directory = directory
        self.parts = {"model": Counted(300), "ema": Counted(700)}
        self.checkpointer = Checkpointer(directory, self.parts, keep=Retention(last=last), **options)

    def begin_save(self, step: int) -> None:
        for part in self.parts.values():
            part.number = step
        self.checkpointer.save(step)

    def save(self, step: int) -> Path:
        """Save durably, and give the step's directory."""
        self.begin_save(step)
        self.checkpointer.wait()
        return self.directory / f"step-{step:012}"

    def load(self) -> int | None:
        """Load, and give the step that everything loaded agrees on."""
        for part in self.parts.values():
            part.number = -1
        manifest = self.checkpointer.load()
        steps = {part.number for part in self.parts.values()}
        if manifest is None:
            assert steps == {-1}
            return None
        assert steps == {manifest.step}
        return manifest.step


def files_of(step: Path) -> Path:
    """Give the directory with the files of the checkpoint of a step."""
    return step / json.loads((step / "manifest.json").read_bytes())["directory"]


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Run]:
    """Give a process's view of the run in a directory: each call is a new life of it."""
    return lambda name="checkpoints", **options: Run(tmp_path / name, **options)


@pytest.fixture(name="files_of")
def give_files_of() -> Callable[[Path], Path]:
    """Give the directory with the files of the checkpoint of a step."""
    return files_of
