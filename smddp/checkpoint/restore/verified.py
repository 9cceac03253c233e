"""Reads or verifies the files of one checkpoint, with several threads. Returns only verified bytes.

Each thread takes one span of a file at a time, which contains whole tensors. It reads the span block by block into its
final memory, and hashes each block while the CPU cache still holds it. Reading and hashing both release the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import xxhash

from smddp.checkpoint.format.manifest import DIGESTS_NAME, STATE_NAME, FileDigests, Manifest, digests_from_json, part_of
from smddp.checkpoint.format.tensors import Entry, Layout, allocate, header_size, tensor_at
from smddp.checkpoint.stores.store import Store
from smddp.errors import CheckpointError
from smddp.storage.parallel import in_parallel

_MOST_CORES = 8
"""Threads that read and hash at the same time, unless the store wants more: memory bandwidth limits them."""

_SPAN = 32 * 2**20
"""Bytes of a span at most; a larger tensor has its own. The tensors of a span share one allocation, which is freed with
the last of them: small tensors are smaller than the huge pages that make an allocation cheap."""

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


def _everything(_part: str, _name: str) -> bool:
    return True


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
        self.manifest = manifest

    def verify(self) -> None:
        """Verify every byte of every file, in little memory. Call `check_sizes` first."""
        self.state()
        spans = self._spans(self.manifest.parts, _everything)
        in_parallel([partial(self._read, span) for span in spans], threads=self._threads)

    def state(self) -> bytes:
        """Return the content of state.json. Call `check_sizes` first."""
        return self._small_file(STATE_NAME)

    def read(
        self,
        parts: Collection[str],
        take: Callable[[str, str, torch.Tensor], None],
        wanted: Callable[[str, str], bool],
    ) -> None:
        """Read and verify the `wanted` tensors of some parts, and give each to `take`. Call `entries` first.

        Both functions get the names of the part and of the tensor; `take` is called in several threads, and a tensor
        that it does not keep is freed. Each tensor has its own storage.
        """
        in_parallel(
            [partial(self._take, span, take, wanted) for span in self._spans(parts, wanted)], threads=self._threads
        )

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

    def _spans(self, parts: Collection[str], wanted: Callable[[str, str], bool]) -> list[_Span]:
        """Divide the files of some parts into spans, largest first, so that all threads end at about the same time."""
        names = self._names(parts)
        if self.manifest.format == 1:
            spans = [self._whole(name) for name in names]
        else:
            spans = [
                span
                for name, layout in self._layouts(names).items()
                for span in _divide(name, layout, self._known(name), wanted)
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
        return _Span(file=name, start=0, size=record.size, stretches=(stretch,), entries=None)

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

    def _take(
        self, span: _Span, take: Callable[[str, str, torch.Tensor], None], wanted: Callable[[str, str], bool]
    ) -> None:
        """Read and verify a span, and give its tensors to `take`."""
        memory = allocate(max(span.size, 1))
        self._read(span, memory)
        part = part_of(span.file)
        for entry in _layout_of(memory).entries if span.entries is None else span.entries:
            if wanted(part, entry.name):
                take(part, entry.name, tensor_at(memory, entry.start - span.start, entry.dtype, entry.shape))

    def _read(self, span: _Span, memory: memoryview | None = None) -> None:
        """Read and verify a span, into `memory` or block by block into a scratch buffer."""
        scratch = memoryview(bytearray(min(span.size, self._store.read_size))) if memory is None else memory[:0]
        block, done, position = scratch[:0], 0, 0
        for stretch in span.stretches:
            digest, end = xxhash.xxh3_128(), position + stretch.size
            while position < end:
                if position == done:
                    size = min(self._store.read_size, span.size - done)
                    block = scratch[:size] if memory is None else memory[done : done + size]
                    self._read_exactly(span.file, span.start + done, block)
                    done += size
                piece = block[len(block) - (done - position) :][: end - position]
                digest.update(piece)
                position += len(piece)
            if digest.hexdigest() != stretch.xxh3_128:
                where = "" if stretch.name == span.file else f" of {stretch.name!r}"
                raise CheckpointError(f"{span.file} was changed: its bytes{where} do not match their xxh3_128")

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


def _divide(file: str, layout: Layout, known: FileDigests, wanted: Callable[[str, str], bool]) -> Iterator[_Span]:
    """Divide a file into spans of whole tensors, without those that are not wanted."""
    part = part_of(file)
    entries: list[Entry] = []
    for entry in layout.entries:
        is_wanted = wanted(part, entry.name)
        if entries and (not is_wanted or entry.start + entry.size - entries[0].start > _SPAN):
            yield _span(file, entries, known)
            entries = []
        if is_wanted:
            entries.append(entry)
    if entries:
        yield _span(file, entries, known)


def _span(file: str, entries: list[Entry], known: FileDigests) -> _Span:
    return _Span(
        file=file,
        start=entries[0].start,
        size=sum(entry.size for entry in entries),
        stretches=tuple(
            _Stretch(name=each.name, size=each.size, xxh3_128=known.tensors[each.name]) for each in entries
        ),
        entries=tuple(entries),
    )


def _layout_of(content: memoryview) -> Layout:
    size = header_size(bytes(content[:8]), len(content))
    return Layout.parse(bytes(content[:size]), len(content))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
