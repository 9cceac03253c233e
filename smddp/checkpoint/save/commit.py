"""The commit of a save on rank 0: the manifest that makes the ranks' files a checkpoint, and what follows it.

Notes on the order, in `Committer`:
  1. The location is locked first, until `unlock_location`.
  2. Files that belong to all ranks are written, and every file is found again with its size. Then the manifest may
     name them.
  3. The lock is checked just before the commit: a process that was suspended may have lost it.
  4. `Store.commit` publishes the manifest if the step still has the manifest that was read before the save began
     (compare and swap). That one operation makes the checkpoint.
  5. Replaced and superseded files are removed only after it, once the lock is checked again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import torch
from xxhash import xxh3_128_hexdigest

from smddp._version import __version__
from smddp.checkpoint.format.manifest import (
    DIGESTS_NAME,
    STATE_NAME,
    TENSORS_SUFFIX,
    FileRecord,
    Manifest,
    NewerFormatError,
    digests_to_json,
)
from smddp.checkpoint.format.tensors import Layout, header_size, tensor_at
from smddp.checkpoint.restore.listing import check_sizes, inspect
from smddp.checkpoint.retention import Pruner, Retention
from smddp.checkpoint.run_state import RANKS
from smddp.checkpoint.save.attempt import SaveRequest, write
from smddp.checkpoint.save.save_group import RankResult
from smddp.checkpoint.save.staging import Staging
from smddp.checkpoint.stores.owner_record import Owner
from smddp.checkpoint.stores.store import CommitListener, Hold, Store, StoreError
from smddp.errors import CheckpointError

logger = logging.getLogger(__name__)


class Committer:
    """Commits the save attempts of one run, one after the other, in the background thread of rank 0.

    The training thread may lock the location before the first save.
    """

    def __init__(
        self, store: Store, *, keep: Retention, hyperparameters: Mapping[str, Any], listener: CommitListener | None
    ) -> None:
        """Write nothing yet. `hyperparameters` are JSON values for each manifest."""
        self._store = store
        self._hyperparameters = hyperparameters
        self.loaded: Manifest | None = None
        """The checkpoint that the run resumed from. The run may replace it, but no checkpoint of another run."""
        self._listener = listener
        self._pruner = Pruner(store, keep)
        self._replaced: bytes | None = None
        self._commit_unconfirmed: str | None = None
        self._hold: Hold | None = None

    def lock_location(self, run: str, *, make: bool) -> None:
        """Lock the location until `unlock_location`. Raise LocationTakenError if another run owns it.

        Without `make`, a location that does not exist or that this user may not write stays unlocked.
        """
        if self._hold is not None:
            return
        try:
            self._hold = self._store.hold(Owner.here(run), make=make)
        except (StoreError, OSError) as error:
            if make or (isinstance(error, StoreError) and error.transient):
                raise
            logger.debug("%s; a save would fail", error)

    def unlock_location(self) -> None:
        """Unlock the location."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def manifest_to_replace(self, request: SaveRequest) -> bytes | None:
        """Return the manifest already committed at this step, or None. Raise CheckpointError if it must stay.

        Only a checkpoint of this run, the loaded one, and a damaged one may be replaced.
        """
        path, content = self._store.path(request.step), self._store.read_manifest(request.step)
        if content is None:
            return None
        try:
            manifest = Manifest.from_json(content)
        except NewerFormatError as error:
            raise CheckpointError(f"will not replace the checkpoint {path}: {error}") from error
        except CheckpointError as error:
            logger.warning("replacing the checkpoint %s: %s", path, error)
            return content
        is_loaded = self.loaded is not None and manifest.files == self.loaded.files
        if manifest.run != request.run and not is_loaded:
            found = inspect(self._store, request.step)
            if found.valid:
                raise CheckpointError(
                    f"will not replace the checkpoint {path}, which another run saved at {manifest.saved_at:%F %T %Z}, "
                    "and which this run did not load: two runs share the location; give each its own"
                )
            logger.warning("replacing the checkpoint %s: %s", path, found.reason)
        return content

    def commit(self, request: SaveRequest, results: Sequence[RankResult], *, replacing: bytes | None) -> int:
        """Commit the attempt durably, and return the checkpoint's size in bytes.

        `results` has one success per rank, in order. `replacing` is the value of `manifest_to_replace`.
        """
        step, directory = request.step, request.directory
        written = {name: file for result in results for name, file in result.files.items()}
        assert request.snapshot is not None
        _check_same(results)
        self._check_visible(request, results)
        skeletons = [result.skeleton for result in results]
        tensors = _tensors_of(results)
        written |= write(self._store, step, directory, Staging().copy({RANKS + TENSORS_SUFFIX: tensors}))
        small = {
            STATE_NAME: _json({**request.snapshot.skeletons, RANKS: skeletons}),
            DIGESTS_NAME: digests_to_json({name: file.digests for name, file in written.items()}),
        }
        for name, content in small.items():
            self._store.write(step, directory, name, [memoryview(content)])
        manifest = Manifest(
            run=request.run,
            directory=directory,
            step=step,
            epoch=request.moment.epoch,
            position=request.moment.position,
            world_size=len(results),
            saved_at=datetime.now(timezone.utc),
            smddp_version=__version__,
            torch_version=str(torch.__version__),
            metrics=request.moment.metrics,
            hyperparameters=self._hyperparameters,
            files={name: FileRecord(size=file.size, xxh3_128=file.digests.xxh3_128) for name, file in written.items()}
            | {
                name: FileRecord(size=len(content), xxh3_128=xxh3_128_hexdigest(content))
                for name, content in small.items()
            },
        )
        data = manifest.to_json()
        check_sizes(self._store, manifest)
        if self._hold is not None:
            self._hold.check()
        try:
            self._store.commit(step, directory, data, replacing=replacing)
        except StoreError as error:
            self._commit_unconfirmed = directory if error.transient else None
            raise
        self._replaced = replacing
        if self._listener is not None:
            self._listener.expect(step, data)
        return manifest.size

    def prune(self, request: SaveRequest) -> None:
        """Remove superseded checkpoints after a commit. The next call retries failures.

        Remove nothing if another run owns the location.
        """
        try:
            if self._hold is not None:
                self._hold.check()
        except (CheckpointError, OSError) as error:
            logger.error("removed no checkpoints: %s", error)
            return
        if self._replaced is not None:
            try:
                self._store.discard(request.step, Manifest.from_json(self._replaced).directory)
            except (CheckpointError, OSError) as error:
                logger.info("some files of the former %s stay for now: %s", self._store.path(request.step), error)
        try:
            self._pruner.prune(request.step)
        except (CheckpointError, OSError) as error:
            logger.warning("could not look for checkpoints to remove: %s; trying again after the next save", error)

    def discard(self, request: SaveRequest) -> None:
        """Remove the files of a failed attempt."""
        # If the commit got no answer, the store may have taken the manifest: its files stay until the step is pruned.
        if request.directory == self._commit_unconfirmed:
            return
        try:
            self._store.discard(request.step, request.directory)
        except (CheckpointError, OSError) as error:
            path = self._store.path(request.step)
            logger.warning("could not remove the unfinished checkpoint %s: %s", path, error)

    def _check_visible(self, request: SaveRequest, results: Sequence[RankResult]) -> None:
        """Verify that rank 0 finds the files of the other ranks, before its manifest names them."""
        for rank, result in enumerate(results[1:], start=1):
            for name, file in result.files.items():
                size = self._store.size(request.step, request.directory, name)
                if size != file.size:
                    raise CheckpointError(
                        f"rank {rank} wrote {name} with {file.size} bytes, and rank 0 finds "
                        f"{'none' if size is None else f'one of {size}'} in {self._store.path(request.step)}; do all "
                        'ranks that write see the same directory? share="node" lets only those of one node write'
                    )


def _check_same(results: Sequence[RankResult]) -> None:
    """Verify that all ranks divided the same state; otherwise tensors would be missing or written twice."""
    for rank, result in enumerate(results):
        if result.fingerprint not in ("", results[0].fingerprint):
            raise CheckpointError(
                f"the state of rank {rank} has not the same tensors as that of rank 0; what differs from rank to rank "
                "is to be given as per_rank"
            )


def _tensors_of(results: Sequence[RankResult]) -> dict[str, torch.Tensor]:
    """Return the tensors of all per-rank states. Each name begins with the rank."""
    tensors = {}
    for result in results:
        content = memoryview(bytearray(result.tensors))
        layout = Layout.parse(bytes(content[: header_size(result.tensors, len(content))]), len(content))
        for entry in layout.entries:
            tensors[entry.name] = tensor_at(content, entry.start, entry.dtype, entry.shape)
    return tensors


def _json(content: Any) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
