"""Reads or verifies the files of one checkpoint, with several threads. Returns only verified bytes.

Each thread takes one span of a file at a time, which contains whole tensors. It reads the span block by block, and
hashes each block while the CPU cache still holds it. Reading and hashing both release the GIL.

Notes on memory. New memory costs more than the rest of a read: the kernel zeroes each page, and a virtual machine's
host may have to bring it.
  1. A tensor that is kept whole is read into its final memory. Adjacent ones share one allocation.
  2. A piece of which a rank needs a part, or which is a part of a larger tensor, passes through scratch memory that
     each thread reuses. The receiver copies the values that it needs from each block, which the CPU cache still holds.
     So a rank needs no memory for the whole piece.
  3. A receiver may have values before the digest of their tensor is compared. If it does not match, `read` raises, and
     the caller drops the receivers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import xxhash

from smddp.checkpoint.format.manifest import DIGESTS_NAME, STATE_NAME, FileDigests, Manifest, digests_from_json, part_of
from smddp.checkpoint.format.shards import Box
from smddp.checkpoint.format.tensors import Entry, Layout, allocate, header_size, tensor_at
from smddp.checkpoint.stores.store import Store
from smddp.errors import CheckpointError
from smddp.storage.parallel import in_parallel

_MOST_CORES = 8
"""Threads that read and hash at the same time, unless the store wants more: memory bandwidth limits them."""

_SPAN = 32 * 2**20
"""Bytes of a span at most; a larger tensor has its own. The tensors of a span share one allocation, which is freed with
the last of them: small tensors are smaller than the huge pages that make an allocation cheap."""

_SMALL = 2**16
"""Bytes of a tensor that is copied, rather than read apart from its neighbours: a read costs as much as the copy."""

_FIRST_READ = 2**16
"""Bytes of the first read of a file. Most headers are shorter."""


@dataclass(kw_only=True, slots=True, frozen=True)
class _Stretch:
    """Bytes with one digest: a tensor, or a whole file in format 1."""

    name: str
    size: int
    xxh3_128: str


@dataclass(kw_only=True, slots=True, frozen=True)
class _Span:
    """Adjacent stretches of a file, read by one thread."""

    file: str
    start: int
    """Offset in the file, in bytes."""
    size: int
    stretches: tuple[_Stretch, ...]
    entries: tuple[Entry, ...] | None
    """The tensors in it. None in format 1, where the header is verified together with the rest of the file."""
    is_kept: bool
    """Whether its memory stays with the tensors (note 1); otherwise their values are copied (note 2)."""


class Receiver(Protocol):
    """Receives the values of tensors that are read, in several threads."""

    def keeps(self, name: str) -> bool:
        """Return whether it keeps a whole tensor with its memory. A small one is given to `copy` all the same."""

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a tensor, which has its own storage."""

    def copy(self, name: str, box: Box, values: torch.Tensor) -> None:
        """Copy the values of a box of a tensor. All boxes of a tensor come, in order, and from one thread."""


Receivers = Mapping[str, Mapping[str, Receiver]]
"""The receiver of each tensor that is to be read, by the names of the part and of the tensor."""


class VerifiedFiles:
    """The files of a manifest, verified as they are read.

    Methods raise CheckpointError with only the reason if a file was changed, and the store's own errors if it fails.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        """Read nothing yet."""
        self._store = store
        self._threads = max(store.readers, min(_cores(), _MOST_CORES))
        self._digests: dict[str, FileDigests] | None = None
        self._read_layouts: dict[str, Layout] = {}
        self._unused_scratch: list[memoryview] = []
        self.manifest = manifest

    def verify(self) -> None:
        """Verify every byte of every file, in little memory. Call `check_sizes` first."""
        self.state()
        spans = self._spans(self.manifest.parts, None)
        in_parallel([partial(self._verify, span) for span in spans], threads=self._threads)

    def state(self) -> bytes:
        """Return the content of state.json. Call `check_sizes` first."""
        return self._small_file(STATE_NAME)

    def read(self, receivers: Receivers) -> None:
        """Read and verify the tensors that have a receiver, and give each to it. Call `entries` first."""
        spans = self._spans(receivers, receivers)
        in_parallel([partial(self._give, span, receivers[part_of(span.file)]) for span in spans], threads=self._threads)

    def entries(self, parts: Collection[str]) -> dict[str, dict[str, Entry]]:
        """Return the tensors of some parts, which are not read yet, by part and name. Call `check_sizes` first."""
        entries: dict[str, dict[str, Entry]] = {part: {} for part in parts}
        for name, layout in self._layouts(self._names(parts)).items():
            of_part = entries[part_of(name)]
            for entry in layout.entries:
                if entry.name in of_part:
                    raise CheckpointError(f"{entry.name!r} is twice among the tensors of {part_of(name)}")
                of_part[entry.name] = entry
        return entries

    def _names(self, parts: Collection[str]) -> list[str]:
        return [name for part, names in self.manifest.parts.items() if part in parts for name in names]

    def _spans(self, parts: Collection[str], receivers: Receivers | None) -> list[_Span]:
        """Divide the files of some parts into spans, largest first, so that all threads end at about the same time.

        Without `receivers` the spans have all tensors.
        """
        names = self._names(parts)
        if self.manifest.format == 1:
            spans = [self._whole(name) for name in names]
        else:
            spans = [
                span
                for name, layout in self._layouts(names).items()
                for span in _divide(
                    name, layout, self._known(name), None if receivers is None else receivers[part_of(name)]
                )
            ]
        return sorted(spans, key=lambda span: -span.size)

    def _layouts(self, names: Sequence[str]) -> dict[str, Layout]:
        """Return the layouts of some files, verified except in format 1, where a file has one digest."""
        if self._digests is None and self.manifest.format > 1:
            self._digests = digests_from_json(self._small_file(DIGESTS_NAME))
        missing = [name for name in names if name not in self._read_layouts]
        layouts = in_parallel([partial(self._layout, name) for name in missing], threads=self._threads)
        self._read_layouts.update(zip(missing, layouts, strict=True))
        return {name: self._read_layouts[name] for name in names}

    def _known(self, name: str) -> FileDigests:
        found = (self._digests or {}).get(name)
        if found is None or found.xxh3_128 != self.manifest.files[name].xxh3_128:
            raise CheckpointError(f"{DIGESTS_NAME} does not have the digests of {name}")
        return found

    def _whole(self, name: str) -> _Span:
        record = self.manifest.files[name]
        stretch = _Stretch(name=name, size=record.size, xxh3_128=record.xxh3_128)
        return _Span(file=name, start=0, size=record.size, stretches=(stretch,), entries=None, is_kept=True)

    def _layout(self, name: str) -> Layout:
        """Read a file's header, and verify it except in format 1."""
        size = self.manifest.files[name].size
        beginning = self._bytes(name, 0, min(size, _FIRST_READ))
        length = header_size(beginning, size)
        header = beginning[:length] + self._bytes(name, len(beginning), max(0, length - len(beginning)))
        known = None if self.manifest.format == 1 else self._known(name)
        if known is not None and xxhash.xxh3_128_hexdigest(header) != known.header:
            raise CheckpointError(f"{name} was changed: its header does not match its xxh3_128")
        try:
            layout = Layout.parse(header, size)
        except CheckpointError as error:  # in format 1, whose header is verified with the rest of the file
            raise CheckpointError(f"{name} was changed: {error}") from error
        if known is not None and [entry.name for entry in layout.entries] != list(known.tensors):
            raise CheckpointError(f"{DIGESTS_NAME} does not have the tensors of {name}")
        return layout

    def _give(self, span: _Span, receivers: Mapping[str, Receiver]) -> None:
        """Read and verify a span, and give its tensors to their receivers."""
        if not span.is_kept:
            self._pass(span, receivers)
            return
        memory = allocate(max(span.size, 1))
        self._read(span, memory)
        for entry in _layout_of(memory).entries if span.entries is None else span.entries:
            if entry.name in receivers:
                tensor = tensor_at(memory, entry.start - span.start, entry.dtype, entry.shape)
                receiver = receivers[entry.name]
                if receiver.keeps(entry.name):
                    receiver.keep(entry.name, tensor)
                else:  # in format 1
                    receiver.copy(entry.name, Box.whole(entry.shape), tensor)

    def _pass(self, span: _Span, receivers: Mapping[str, Receiver]) -> None:
        """Read and verify a span through scratch memory, and give each block to the receivers."""
        assert span.entries is not None
        with self._scratch() as scratch:
            position, stretches = span.start, iter(span.stretches)
            digest, hashed = xxhash.xxh3_128(), 0
            for block in _blocks(span.entries, len(scratch)):
                size = sum(box.size * entry.dtype.itemsize for entry, box in block)
                self._read_exactly(span.file, position, scratch[:size])
                begin, position = 0, position + size
                for entry, box in block:
                    content = scratch[begin : begin + box.size * entry.dtype.itemsize]
                    digest.update(content)
                    receivers[entry.name].copy(entry.name, box, tensor_at(scratch, begin, entry.dtype, box.shape))
                    begin, hashed = begin + len(content), hashed + len(content)
                    if hashed == entry.size:
                        _compare(span, next(stretches), digest)
                        digest, hashed = xxhash.xxh3_128(), 0

    @contextmanager
    def _scratch(self) -> Iterator[memoryview]:
        """Lend memory for one block to a thread. It is allocated once, and then reused: new memory is slow."""
        try:
            scratch = self._unused_scratch.pop()
        except IndexError:
            scratch = allocate(self._store.read_size)
        yield scratch
        self._unused_scratch.append(scratch)

    def _verify(self, span: _Span) -> None:
        with self._scratch() as scratch:
            self._read(span, scratch, overwrite=True)

    def _read(self, span: _Span, memory: memoryview, *, overwrite: bool = False) -> None:
        """Read a span into memory, each block after the one before or, to `overwrite`, in its place; and verify it."""
        block, done, position = memory[:0], 0, 0
        for stretch in span.stretches:
            digest, end = xxhash.xxh3_128(), position + stretch.size
            while position < end:
                if position == done:
                    size = min(self._store.read_size, span.size - done)
                    block = memory[:size] if overwrite else memory[done : done + size]
                    self._read_exactly(span.file, span.start + done, block)
                    done += size
                piece = block[len(block) - (done - position) :][: end - position]
                digest.update(piece)
                position += len(piece)
            _compare(span, stretch, digest)

    def _small_file(self, name: str) -> bytes:
        record = self.manifest.files[name]
        content = self._bytes(name, 0, record.size)
        if xxhash.xxh3_128_hexdigest(content) != record.xxh3_128:
            raise CheckpointError(f"{name} was changed: its bytes do not match their xxh3_128")
        return content

    def _bytes(self, name: str, start: int, size: int) -> bytes:
        content = bytearray(size)
        if size:
            self._read_exactly(name, start, memoryview(content))
        return bytes(content)

    def _read_exactly(self, name: str, start: int, memory: memoryview) -> None:
        self._store.read_into(self.manifest.step, self.manifest.directory, name, start, memory)


def _divide(file: str, layout: Layout, known: FileDigests, receivers: Mapping[str, Receiver] | None) -> Iterator[_Span]:
    """Divide a file into spans of whole tensors, without those that have no receiver."""
    entries: list[Entry] = []
    are_kept: bool | None = None
    for entry in layout.entries:
        receiver = None if receivers is None else receivers.get(entry.name)
        is_wanted = receivers is None or receiver is not None
        is_kept = receiver is not None and receiver.keeps(entry.name)
        joins = is_wanted and (is_kept == are_kept or (is_kept and entry.size <= _SMALL))
        if entries and (not joins or entry.start + entry.size - entries[0].start > _SPAN):
            yield _span(file, entries, known, is_kept=bool(are_kept))
            entries = []
        if is_wanted:
            are_kept = are_kept if entries else is_kept
            entries.append(entry)
    if entries:
        yield _span(file, entries, known, is_kept=bool(are_kept))


def _span(file: str, entries: list[Entry], known: FileDigests, *, is_kept: bool) -> _Span:
    return _Span(
        file=file,
        start=entries[0].start,
        size=sum(entry.size for entry in entries),
        stretches=tuple(
            _Stretch(name=each.name, size=each.size, xxh3_128=known.tensors[each.name]) for each in entries
        ),
        entries=tuple(entries),
        is_kept=is_kept,
    )


def _blocks(entries: Sequence[Entry], size: int) -> Iterator[list[tuple[Entry, Box]]]:
    """Divide adjacent tensors into blocks of at most `size` bytes, each of several tensors or a box of a larger one."""
    block: list[tuple[Entry, Box]] = []
    left = size
    for entry in entries:
        for box in Box.whole(entry.shape).in_order(size // entry.dtype.itemsize):
            if block and box.size * entry.dtype.itemsize > left:
                yield block
                block, left = [], size
            block.append((entry, box))
            left -= box.size * entry.dtype.itemsize
    if block:
        yield block


def _compare(span: _Span, stretch: _Stretch, digest: xxhash.xxh3_128) -> None:
    if digest.hexdigest() != stretch.xxh3_128:
        where = "" if stretch.name == span.file else f" of {stretch.name!r}"
        raise CheckpointError(f"{span.file} was changed: its bytes{where} do not match their xxh3_128")


def _layout_of(content: memoryview) -> Layout:
    size = header_size(bytes(content[:8]), len(content))
    return Layout.parse(bytes(content[:size]), len(content))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
