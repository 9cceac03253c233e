"""The ways to save a state that are compared, each as its own documentation has it done."""

# ruff: noqa: B027, D101, D102 -- what each method does, Contender says

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from checkpointing.state import State, blank_like, bytes_of, tensors_of, write_raw
from safetensors.torch import load_file, save_file
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from smddp.checkpoint import Checkpointer, Retention


class Contender(ABC):
    """One way to save a state, in a directory of its own."""

    asynchronous = False
    """Whether `save` returns before all is durable; `pending` tells when it is."""

    def __init__(self, state: State, directory: Path) -> None:
        self.state = state
        self.directory = directory

    @abstractmethod
    def save(self, step: int) -> None: ...

    @abstractmethod
    def load(self, step: int) -> State:
        """Give what was saved, in memory of its own."""

    def prepare_load(self) -> None:
        """Do what is not timed."""

    def pending(self) -> bool:
        return False

    def wait(self) -> None:
        """Return once the last save is durable."""

    def close(self) -> None:
        """Leave nothing running."""

    def path(self, step: int) -> Path:
        return self.directory / f"save-{step}"

    def forget(self, step: int) -> None:
        if self.path(step).is_dir():
            shutil.rmtree(self.path(step))
        else:
            self.path(step).unlink(missing_ok=True)


class Smddp(Contender):
    asynchronous = True

    def __init__(self, state: State, directory: Path) -> None:
        super().__init__(state, directory)
        self.loaded: State = {}
        parts = {name: _Part(part, self.loaded, name) for name, part in state.items()}
        self.checkpointer = Checkpointer(directory, parts, keep=Retention(last=100))
        self.checkpointer.load()
        self.checkpointer.warm_up()
        self.checkpointer.wait()  # a run takes its first steps meanwhile
        self.step = -1

    def save(self, step: int) -> None:
        self.step = step
        self.checkpointer.save(step)

    def pending(self) -> bool:
        self.checkpointer.check()
        report = self.checkpointer.last_report
        return report is None or report.step != self.step

    def wait(self) -> None:
        self.checkpointer.wait()

    def load(self, step: int) -> State:
        manifest = self.checkpointer.load()
        assert manifest is not None
        assert manifest.step == step
        return {name: self.loaded.pop(name) for name in self.state}

    def close(self) -> None:
        self.checkpointer.close()

    def path(self, step: int) -> Path:
        return self.directory / f"step-{step:012}"


class _Part:
    """A part of a run that hands its state out as a module does, and keeps what is loaded apart."""

    def __init__(self, state: State, loaded: State, name: str) -> None:
        self._state, self._loaded, self._name = state, loaded, name

    def state_dict(self) -> State:
        return self._state

    def load_state_dict(self, state: State) -> None:
        self._loaded[self._name] = state


class TorchSave(Contender):
    def save(self, step: int) -> None:
        torch.save(self.state, self.path(step))
        _sync(self.path(step))

    def load(self, step: int) -> State:
        state: State = torch.load(self.path(step), weights_only=True)
        return state


class Safetensors(Contender):
    def save(self, step: int) -> None:
        save_file(dict(tensors_of(self.state)), self.path(step))
        _sync(self.path(step))

    def load(self, step: int) -> State:
        return {name: tensor.clone() for name, tensor in load_file(self.path(step)).items()}


class DcpSave(Contender):
    """It calls fsync by itself, and loads into tensors that are there already."""

    blank: State

    def save(self, step: int) -> None:
        dcp.save(self.state, checkpoint_id=self.path(step), no_dist=True)

    def prepare_load(self) -> None:
        self.blank = blank_like(self.state)

    def load(self, step: int) -> State:
        loaded = self.blank
        del self.blank
        dcp.load(loaded, checkpoint_id=self.path(step), no_dist=True)
        return loaded


class DcpAsyncSave(DcpSave):
    """With one stager for all saves: its default, made anew for each, stalls about twice as long."""

    asynchronous = True

    def __init__(self, state: State, directory: Path) -> None:
        super().__init__(state, directory)
        self.stager = DefaultStager(StagingOptions(False, False, False, False))
        self.future: Any = Future()

    def save(self, step: int) -> None:
        self.future = dcp.async_save(self.state, checkpoint_id=self.path(step), async_stager=self.stager, no_dist=True)

    def pending(self) -> bool:
        return not self.future.done()

    def wait(self) -> None:
        self.future.result()

    def close(self) -> None:
        self.stager.close()


class RawWrite(Contender):
    """No format at all: what the machine itself allows, and what any save does to the loop beside it."""

    def save(self, step: int) -> None:
        write_raw(self.state, self.path(step))

    def prepare_load(self) -> None:
        self.blank = blank_like(self.state)

    def load(self, step: int) -> State:
        loaded = self.blank
        del self.blank
        with self.path(step).open("rb", buffering=0) as file:
            for _, tensor in tensors_of(loaded):
                rest = bytes_of(tensor)
                while rest:
                    rest = rest[file.readinto(rest) :]
        return loaded


CONTENDERS: dict[str, type[Contender]] = {
    "smddp": Smddp,
    "torch.save": TorchSave,
    "safetensors": Safetensors,
    "DCP save": DcpSave,
    "DCP async_save": DcpAsyncSave,
    "raw write": RawWrite,
}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
