"""The Checkpointer: what a training loop calls to save everything that it needs to go on, and to go on.

It brings the others together: collects the state, lets rank 0 write or read, tells all ranks how it went. When to
save is the loop's decision.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from smddp.checkpoint import retention, rng
from smddp.checkpoint.manifest import LARGEST_STEP, STATE_NAME, TENSORS_SUFFIX, Manifest
from smddp.checkpoint.ranks import Ranks
from smddp.checkpoint.reader import inspect, read_newest
from smddp.checkpoint.store import DirectoryStore
from smddp.checkpoint.tensors import decode
from smddp.checkpoint.tree import unflatten
from smddp.checkpoint.writer import write
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)

_RNG = "rng"
_PART_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@runtime_checkable
class Stateful(Protocol):
    """Anything that gives its state and takes it back: a module, an optimizer, a scheduler, a scaler, a sampler."""

    def state_dict(self) -> Any:
        """Give dicts, lists and tuples of tensors, arrays, numbers, texts and None."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Go back to what `state_dict` gave."""


class Checkpointer:
    """Saves and restores a run: the parts given here, and every rank's random numbers.

    The parts are the same on all ranks, as they are under DistributedDataParallel: rank 0 writes and reads, and no
    other rank needs to see the directory. `save` and `load` are collective; when one fails, it fails on every rank,
    with the same error.

    Example:
        >>> checkpointer = Checkpointer(
        ...     job.checkpoint_dir, {"model": model, "optimizer": optimizer, "sampler": sampler}
        ... )
        >>> resumed = checkpointer.load()
        >>> step = resumed.step if resumed else 0
    """

    def __init__(self, directory: str | os.PathLike[str], state: Mapping[str, Stateful], *, keep_last: int = 3) -> None:
        """Say what to save, and where.

        Args:
            directory: where the checkpoints lie. It is made with the first one.
            state: the parts of the run by name. A name becomes a file's name; ``rng`` is taken.
            keep_last: how many checkpoints stay; older ones are removed once a newer one is durable.

        Raises:
            ValueError: a name is not possible, or keep_last is not at least 1.
            TypeError: a part has no state_dict and load_state_dict.
        """
        if keep_last < 1:
            raise ValueError(f"keep_last is {keep_last}: at least one checkpoint must stay")
        for name, part in state.items():
            if name == _RNG or not _PART_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot name a part of the state: 1 to 64 letters, digits, '-' and '_' can, "
                    f"but for {_RNG!r}, where the random numbers are"
                )
            if not isinstance(part, Stateful):
                raise TypeError(f"{name!r} is a {type(part).__qualname__}: it has no state_dict and load_state_dict")
        self._store = DirectoryStore(Path(directory).absolute())
        self._state = dict(state)
        self._keep_last = keep_last

    def save(self, step: int, *, epoch: int = 0, metrics: Mapping[str, float] | None = None) -> Path:
        """Save the run as it is now; it is durable when this returns.

        A valid checkpoint of the same step is kept as it is.

        Args:
            step: optimizer steps taken.
            epoch: the epoch under way.
            metrics: what was measured, to be kept with it.

        Returns:
            The checkpoint's directory, as rank 0 sees it.

        Raises:
            ValueError: the step or the epoch is not possible.
            CheckpointError: it could not be saved. Earlier checkpoints are as they were.
        """
        if not 0 <= step <= LARGEST_STEP or epoch < 0:
            raise ValueError(f"step is {step} and epoch {epoch}: steps go from 0 to 10**12 - 1, epochs from 0")
        ranks = Ranks.current()
        rngs = ranks.on_each(rng.capture)
        return ranks.on_main(lambda: self._save(int(step), int(epoch), metrics or {}, rngs))

    def load(self) -> Manifest | None:
        """Go back to the newest valid checkpoint.

        Returns:
            What was loaded; None if there is no checkpoint at all.

        Raises:
            CheckpointError: there are checkpoints but none is valid, or the valid one does not fit the state.
        """
        ranks = Ranks.current()
        contents: dict[str, torch.Tensor] = {}
        manifest = ranks.on_main(lambda: self._read(contents))
        if manifest is None:
            return None
        for name, record in manifest.files.items():
            contents[name] = ranks.broadcast(contents.get(name), record.size)
        ranks.on_each(lambda: self._apply(manifest, contents, ranks.rank))
        return manifest

    def _save(self, step: int, epoch: int, metrics: Mapping[str, float], rngs: list[dict[str, Any]]) -> Path:
        path = self._store.path(step)
        if path.exists():
            found = inspect(self._store, step)
            if found.valid:
                logger.info("kept the checkpoint %s, which is there already", path)
                return path
            if found.status == "newer":
                raise CheckpointError(f"will not replace the checkpoint {path}: {found.reason}")
            logger.warning("replacing the checkpoint %s: %s", path, found.reason)
        started = time.monotonic()
        state = {name: part.state_dict() for name, part in self._state.items()}
        manifest = write(
            self._store,
            {**state, _RNG: rngs},
            step=step,
            epoch=epoch,
            world_size=len(rngs),
            metrics={str(name): float(value) for name, value in metrics.items()},
        )
        seconds = time.monotonic() - started
        logger.info("saved %s: %.1f MB in %.2f s", path, manifest.size / 1e6, seconds)
        retention.prune(self._store, newest=step, keep_last=self._keep_last)
        return path

    def _read(self, contents: dict[str, torch.Tensor]) -> Manifest | None:
        started = time.monotonic()
        found = read_newest(self._store)
        if found is None:
            logger.info("there is no checkpoint in %s: starting from the beginning", self._store.root)
            return None
        manifest, files = found
        contents.update(files)
        path, seconds = self._store.path(manifest.step), time.monotonic() - started
        logger.info("read %s: %.1f MB, every byte verified, in %.2f s", path, manifest.size / 1e6, seconds)
        return manifest

    def _apply(self, manifest: Manifest, contents: dict[str, torch.Tensor], rank: int) -> None:
        """Give each part its state back, on this rank."""
        skeletons = json.loads(bytes(contents.pop(STATE_NAME).numpy()))
        saved = set(skeletons) - {_RNG}
        if missing := sorted(set(self._state) - saved):
            raise CheckpointError(
                f"the checkpoint of step {manifest.step} has no {', '.join(missing)}, only {', '.join(sorted(saved))}; "
                "resume with the same parts, or start anew in another directory"
            )
        unused = sorted(saved - set(self._state))
        if unused and rank == 0:
            logger.warning("the checkpoint of step %d also has %s: not used", manifest.step, ", ".join(unused))
        for name, part in self._state.items():
            state = _unpack(name, skeletons, contents)
            _restore(part, state, f"the checkpoint of step {manifest.step} does not fit this run's {name}")
        rng.restore(_unpack(_RNG, skeletons, contents), rank=rank)


def _unpack(name: str, skeletons: Mapping[str, Any], contents: dict[str, torch.Tensor]) -> Any:
    """Put one part's state together, and let go of the file it came from."""
    content = contents.pop(name + TENSORS_SUFFIX, None)
    return unflatten(skeletons[name], {} if content is None else decode(content))


def _restore(part: Stateful, state: Any, failure: str) -> None:
    try:
        part.load_state_dict(state)
    except Exception as error:
        raise CheckpointError(f"{failure}: {type(error).__name__}: {error}") from error
