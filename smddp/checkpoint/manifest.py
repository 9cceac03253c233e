"""The manifest: what makes a directory a checkpoint, and how each byte of it is known to be right.

It is a JSON object and the last file written. Its key ``xxh3_128`` is the digest of the manifest's own bytes, taken
with 32 zeros in the digest's place; that rule, the key and the key ``format`` stay in every version of the format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import xxhash

from smddp.errors import CheckpointError

FORMAT = 1
"""The version of the format that is written, and the newest that is read."""

MANIFEST_NAME = "manifest.json"
STATE_NAME = "state.json"
TENSORS_SUFFIX = ".safetensors"

LARGEST_MANIFEST = 16 * 2**20
"""Bytes. No manifest comes near; nothing larger is read."""

LARGEST_STEP = 10**12 - 1

_NO_DIGEST = "0" * 32
_FILE_NAME = re.compile(r"state\.json|[A-Za-z0-9_-]{1,64}\.safetensors")
_DIGEST = re.compile(r"[0-9a-f]{32}")


def is_file_name(name: object) -> bool:
    """Whether a file of a checkpoint, beside its manifest, may have this name."""
    return _is_match(_FILE_NAME, name)


class NewerFormatError(CheckpointError):
    """The checkpoint was written by a newer smddp: it is not damaged, but this one cannot read it."""


@dataclass(kw_only=True, slots=True, frozen=True)
class FileRecord:
    """What a file must be to be the one that was written."""

    size: int
    """Bytes."""
    xxh3_128: str
    """The digest of all its bytes, 32 lower-case hexadecimal digits."""

    def __post_init__(self) -> None:
        _require(type(self.size) is int and self.size >= 0, "size", self.size, "a count of bytes")
        _require(_is_match(_DIGEST, self.xxh3_128), "xxh3_128", self.xxh3_128, "32 hexadecimal digits")


@dataclass(kw_only=True, slots=True, frozen=True)
class Manifest:
    """What a checkpoint is, and what it consists of."""

    step: int
    """Optimizer steps taken."""
    epoch: int
    """The epoch under way."""
    world_size: int
    """How many processes trained, and so have the state of their random numbers here."""
    saved_at: datetime
    """When, with a time zone."""
    smddp_version: str
    torch_version: str
    files: Mapping[str, FileRecord]
    """Every file of the checkpoint but the manifest, by name."""
    metrics: Mapping[str, float]
    """What was measured when it was saved."""

    def __post_init__(self) -> None:
        _require(type(self.step) is int and 0 <= self.step <= LARGEST_STEP, "step", self.step, "0 to 10**12 - 1")
        _require(type(self.epoch) is int and self.epoch >= 0, "epoch", self.epoch, "0 or more")
        _require(type(self.world_size) is int and self.world_size >= 1, "world_size", self.world_size, "1 or more")
        _require(self.saved_at.tzinfo is not None, "saved_at", self.saved_at, "a time with a time zone")
        for key, version in ("smddp_version", self.smddp_version), ("torch_version", self.torch_version):
            _require(type(version) is str, key, version, "a text")
        _require(STATE_NAME in self.files, "files", sorted(self.files), f"{STATE_NAME} among them")
        for name in self.files:
            _require(is_file_name(name), "a file", name, f"{STATE_NAME} or <name>{TENSORS_SUFFIX}")
        for name, value in self.metrics.items():
            _require(type(name) is str and type(value) is float, "metrics", {name: value}, "floats by name")

    @property
    def size(self) -> int:
        """Bytes of all files that it names."""
        return sum(record.size for record in self.files.values())

    def to_json(self) -> bytes:
        """Give the content of manifest.json."""
        content = {
            "format": FORMAT,
            "xxh3_128": _NO_DIGEST,
            "step": self.step,
            "epoch": self.epoch,
            "world_size": self.world_size,
            "saved_at": self.saved_at.isoformat(),
            "smddp_version": self.smddp_version,
            "torch_version": self.torch_version,
            "metrics": {name: _finite_or_text(value) for name, value in self.metrics.items()},
            "files": {name: {"size": record.size, "xxh3_128": record.xxh3_128} for name, record in self.files.items()},
        }
        unsigned = json.dumps(content, indent=1, allow_nan=False).encode()
        return unsigned.replace(_NO_DIGEST.encode(), xxhash.xxh3_128_hexdigest(unsigned).encode(), 1)

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read a manifest.json that nobody vouches for.

        Raises:
            NewerFormatError: a newer smddp wrote it.
            CheckpointError: it is not a manifest, or not as it was written. The message is only the reason.
        """
        try:
            content = json.loads(data, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{MANIFEST_NAME} is not JSON: {error}") from error
        _require(type(content) is dict, "the manifest", content, "a JSON object")
        version, digest = content.pop("format", None), content.pop("xxh3_128", None)
        _require(type(version) is int and version >= 1, "format", version, "1 or more")
        _require(_is_match(_DIGEST, digest), "xxh3_128", digest, "32 hexadecimal digits")
        unsigned = data.replace(digest.encode(), _NO_DIGEST.encode(), 1)
        if xxhash.xxh3_128_hexdigest(unsigned) != digest:
            raise CheckpointError(f"{MANIFEST_NAME} was changed: its bytes do not match its own xxh3_128")
        if version > FORMAT:
            raise NewerFormatError(
                f"its format is version {version}, this smddp reads versions up to {FORMAT}; install a newer smddp"
            )
        keys = {"step", "epoch", "world_size", "saved_at", "smddp_version", "torch_version", "files", "metrics"}
        _require(set(content) == keys, "the keys", sorted(content), ", ".join(sorted(keys)))
        _require(type(content["files"]) is dict, "files", content["files"], "a JSON object")
        _require(type(content["metrics"]) is dict, "metrics", content["metrics"], "a JSON object")
        try:
            saved_at = datetime.fromisoformat(content.pop("saved_at"))
            files = {name: FileRecord(**record) for name, record in content.pop("files").items()}
            metrics = {name: _float(value) for name, value in content.pop("metrics").items()}
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{MANIFEST_NAME} is not a manifest: {error}") from error
        return cls(saved_at=saved_at, files=files, metrics=metrics, **content)


def _require(correct: bool, key: str, found: object, allowed: str) -> None:
    if not correct:
        raise CheckpointError(f"{MANIFEST_NAME} is not a manifest: {key} is {_brief(found)}, not {allowed}")


def _brief(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 100 else text[:100] + "..."


def _is_match(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands there twice")
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite_or_text(value: float) -> float | str:
    """JSON has no nan and no infinity: they are written as text."""
    return value if math.isfinite(value) else repr(value)


def _float(value: object) -> float:
    if type(value) is float or value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"the metric {value!r} is not a float")
