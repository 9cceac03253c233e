"""Shards to read, written as their users' tools write them, and sources that are not directories."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from smddp.data.shards import RawRecord
from smddp.data.source import Blob


def tar_bytes(members: Iterable[tuple[str, bytes]], *, style: int = tarfile.USTAR_FORMAT) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w", format=style) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return memory.getvalue()


def jsonl_bytes(records: Iterable[Mapping[str, object]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def numbered(sizes: Iterable[int], *, kind: str = "jsonl") -> dict[str, bytes]:
    """Shards of so many records each, which are numbered over all of them."""
    files, number = {}, 0
    for shard, size in enumerate(sizes):
        numbers = range(number, number + size)
        if kind == "tar":
            fields = [(each, field) for each in numbers for field in ("cls", "bin")]
            content = tar_bytes(
                (f"{each:06}.{field}", str(each).encode() if field == "cls" else bytes(each % 700))
                for each, field in fields
            )
        else:
            content = jsonl_bytes({"id": each, "pad": "x" * (each % 50)} for each in numbers)
        files[f"part-{shard:03}.{kind}"] = content
        number += size
    return files


def number_of(record: RawRecord) -> int:
    """What `numbered` has numbered a record with."""
    fields = record.parse()
    return int(fields["cls"] if "cls" in fields else fields["id"])


def fill(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


class Body:
    """The least that a source may give: what reads and closes, and no more."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)
        self.closed = False

    def read(self, count: int) -> bytes:
        assert not self.closed
        return self._file.read(count)

    @property
    def position(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True


class MemorySource:
    """Files in memory, which knows what was opened and what is open still."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.bodies: list[Body] = []
        self.opened: list[tuple[str, int]] = []

    def __str__(self) -> str:
        return "memory"

    def list(self) -> list[Blob]:
        return [Blob(name=name, size=len(content)) for name, content in sorted(self.files.items())]

    def open(self, name: str, start: int = 0, size: int | None = None) -> BinaryIO:
        self.opened.append((name, start))
        self.bodies.append(Body(self.files[name][start : None if size is None else start + size]))
        return self.bodies[-1]  # type: ignore[return-value]

    @property
    def open_files(self) -> int:
        return sum(not body.closed for body in self.bodies)
