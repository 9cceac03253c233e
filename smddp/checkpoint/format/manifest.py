"""The files of a checkpoint: their names, and the manifest and digests that verify each of their bytes.

``manifest.json`` is in the step's directory, and is the last file written: it commits the files that it names. They are
in a directory beside it, one for each attempt to save the step. The tensors of a part of the state, for example
``model``, are in ``model.safetensors``, or, written by four processes, in ``model-00001-of-00004.safetensors`` and so
on. Files with other names are foreign.

The manifest's key ``xxh3_128`` is the digest of the manifest's own bytes, computed with 32 zeros in the digest's place.
This rule and the keys ``xxh3_128`` and ``format`` stay in every version of the format. The manifest names files, not
tensors, so it stays small; ``digests.json`` has a digest for each tensor. No bytes of a checkpoint are trusted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

import xxhash

from smddp.errors import CheckpointError
from smddp.secret_text import masked_repr

MANIFEST_NAME = "manifest.json"
STATE_NAME = "state.json"
DIGESTS_NAME = "digests.json"
TENSORS_SUFFIX = ".safetensors"

_PART = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NUMBER = re.compile(r"-\d{5}-of-\d{5}", re.ASCII)
_ATTEMPT = re.compile(r"[0-9a-f]{12}-\d{4,12}", re.ASCII)


def file_names(part: str, count: int) -> list[str]:
    """Return the names of the tensor files of a part, one for each of `count` writers."""
    if count == 1:
        return [part + TENSORS_SUFFIX]
    return [f"{part}-{number:05}-of-{count:05}{TENSORS_SUFFIX}" for number in range(1, count + 1)]


def part_of(name: str) -> str:
    """Return the part of the state that a tensor file belongs to."""
    stem = name.removesuffix(TENSORS_SUFFIX)
    return stem[: -len("-00001-of-00001")] if _NUMBER.fullmatch(stem[-len("-00001-of-00001") :]) else stem


def is_part_name(name: object) -> bool:
    """Return whether the name is valid for a part: 1 to 64 letters, digits, ``-`` and ``_``.

    It must not end like ``-00001-of-00002``.
    """
    return isinstance(name, str) and _PART.fullmatch(name) is not None and part_of(name) == name


def is_file_name(name: object) -> bool:
    """Return whether the name is valid for a checkpoint's file, other than its manifest."""
    if not isinstance(name, str):
        return False
    return name in (STATE_NAME, DIGESTS_NAME) or (name.endswith(TENSORS_SUFFIX) and is_part_name(part_of(name)))


def is_attempt_name(name: object) -> bool:
    """Return whether the name is valid for an attempt's directory: run id and save count, ``5f3a9c01d2e4-0007``."""
    return isinstance(name, str) and _ATTEMPT.fullmatch(name) is not None


FORMAT = 2
"""The version that is written, and the newest that is read."""

LARGEST_MANIFEST = 16 * 2**20
"""Bytes. A larger manifest is neither written nor read."""

LARGEST_STEP = 10**12 - 1

_LARGEST_FILE = 2**63 - 1  # bytes; no file system has larger ones

_NO_DIGEST = "0" * 32
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KEYS_OF_1 = {"step", "epoch", "world_size", "saved_at", "smddp_version", "torch_version", "files", "metrics"}
_NEW_IN_2: dict[str, Any] = {"run": "", "directory": "", "position": None, "hyperparameters": {}}  # as in format 1
_KEYS = {1: _KEYS_OF_1, 2: _KEYS_OF_1 | set(_NEW_IN_2)}


class NewerFormatError(CheckpointError):
    """A newer smddp wrote the checkpoint: it is not damaged, but this version cannot read it."""


@dataclass(kw_only=True, slots=True, frozen=True)
class FileRecord:
    """The expected size and digest of a file."""

    size: int
    """Bytes."""
    xxh3_128: str
    """32 lower-case hexadecimal digits: the digest of the bytes, or for a tensor file the digest of its digests (see
    `FileDigests`). In format 1 always the digest of the bytes."""

    def __post_init__(self) -> None:
        _require(_is_count(self.size) and self.size <= _LARGEST_FILE, "size", self.size, "a count of bytes")
        _require(_is_match(_DIGEST, self.xxh3_128), "xxh3_128", self.xxh3_128, "32 hexadecimal digits")


@dataclass(kw_only=True, slots=True, frozen=True)
class Manifest:
    """The description of a checkpoint and its files."""

    run: str
    """The id of the run that saved it, 12 hexadecimal digits; empty in format 1."""
    directory: str
    """The attempt's directory, beside the manifest: the run's id and save count. Empty in format 1: no directory."""
    step: int
    """Optimizer steps taken."""
    epoch: int
    """The current epoch, from 0."""
    position: int | None
    """Samples of the epoch that are consumed; None if unknown, and in format 1."""
    world_size: int
    """The number of ranks that trained; the checkpoint stores the random state of each."""
    saved_at: datetime
    """The time of the save, with a time zone."""
    smddp_version: str
    torch_version: str
    files: Mapping[str, FileRecord]
    """Every file of the checkpoint except the manifest, by name."""
    metrics: Mapping[str, float]
    """Metrics at the time of the save."""
    hyperparameters: Mapping[str, Any]
    """The run's hyperparameters, JSON values by name; empty in format 1."""

    def __post_init__(self) -> None:
        _require(_is_count(self.step) and self.step <= LARGEST_STEP, "step", self.step, "0 to 10**12 - 1")
        _require(_is_count(self.epoch), "epoch", self.epoch, "0 or more")
        _require(self.position is None or _is_count(self.position), "position", self.position, "0 or more, or null")
        _require(_is_count(self.world_size) and self.world_size >= 1, "world_size", self.world_size, "1 or more")
        _require(self.saved_at.tzinfo is not None, "saved_at", self.saved_at, "a time with a time zone")
        for key, version in ("smddp_version", self.smddp_version), ("torch_version", self.torch_version):
            _require(type(version) is str, key, version, "a text")
        if self.format == 2:
            is_attempt = is_attempt_name(self.directory) and self.directory == f"{self.run}-{self.directory[13:]}"
            _require(is_attempt, "directory", self.directory, f"{self.run!r}, 12 hexadecimal digits, -<count of saves>")
        self._check_files()
        for name, value in self.metrics.items():
            _require(type(name) is str and type(value) is float, "metrics", {name: value}, "floats by name")

    def __repr__(self) -> str:
        return masked_repr(self, "hyperparameters")

    def _check_files(self) -> None:
        required = {STATE_NAME, DIGESTS_NAME} if self.format == 2 else {STATE_NAME}
        allowed = f"{' and '.join(sorted(required))} among them"
        _require(required <= set(self.files), "files", sorted(self.files), allowed)
        for name in self.files:
            _require(is_file_name(name), "a file", name, f"{STATE_NAME}, {DIGESTS_NAME} or <name>{TENSORS_SUFFIX}")
        for part, names in self.parts.items():
            _require(names == file_names(part, len(names)), f"the files of {part}", names, "all that belong together")

    @property
    def format(self) -> int:
        """The version of the format."""
        return 2 if self.directory or self.run else 1

    @property
    def parts(self) -> dict[str, list[str]]:
        """The sorted names of tensor files for each part of the state."""
        parts: dict[str, list[str]] = {}
        for name in sorted(self.files):
            if name.endswith(TENSORS_SUFFIX):
                parts.setdefault(part_of(name), []).append(name)
        return parts

    @property
    def epoch_from_one(self) -> int:
        """The epoch in which the checkpoint was saved, counted from 1 as in the log; after its last step, too."""
        return max(self.epoch + (self.position != 0), 1)

    @property
    def size(self) -> int:
        """Bytes of all files in the manifest."""
        return sum(record.size for record in self.files.values())

    def to_json(self) -> bytes:
        """Return the content of manifest.json.

        Raises:
            CheckpointError: The hyperparameters are not JSON values, or too large.
        """
        assert self.format == FORMAT, self.format
        content = {
            "format": FORMAT,
            "xxh3_128": _NO_DIGEST,
            "run": self.run,
            "directory": self.directory,
            "step": self.step,
            "epoch": self.epoch,
            "position": self.position,
            "world_size": self.world_size,
            "saved_at": self.saved_at.isoformat(),
            "smddp_version": self.smddp_version,
            "torch_version": self.torch_version,
            "metrics": {name: _finite_or_text(value) for name, value in self.metrics.items()},
            "hyperparameters": dict(self.hyperparameters),
            "files": {name: {"size": record.size, "xxh3_128": record.xxh3_128} for name, record in self.files.items()},
        }
        try:
            unsigned = json.dumps(content, indent=1, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"the hyperparameters cannot be written as JSON: {error}; give finite numbers, texts, true, false, "
                "null, and lists and dicts of them"
            ) from error
        if len(unsigned) > LARGEST_MANIFEST:
            raise CheckpointError(
                f"the {MANIFEST_NAME} would have {len(unsigned)} bytes, and {LARGEST_MANIFEST} are allowed; keep large "
                "hyperparameters in a file"
            )
        return unsigned.replace(_NO_DIGEST.encode(), xxhash.xxh3_128_hexdigest(unsigned).encode(), 1)

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Parse an untrusted manifest.json.

        Raises:
            NewerFormatError: A newer smddp wrote it.
            CheckpointError: It is malformed, or its digest does not match. The message is only the reason.
        """
        try:
            content = parse_json(data)
        except ValueError as error:
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
        keys = _KEYS[version]
        _require(set(content) == keys, "the keys", sorted(content), ", ".join(sorted(keys)))
        for key in sorted(keys & {"files", "metrics", "hyperparameters"}):
            _require(type(content[key]) is dict, key, content[key], "a JSON object")
        try:
            saved_at = datetime.fromisoformat(content.pop("saved_at"))
            files = {name: FileRecord(**record) for name, record in content.pop("files").items()}
            metrics = {name: _float(value) for name, value in content.pop("metrics").items()}
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{MANIFEST_NAME} is not a manifest: {error}") from error
        manifest = cls(saved_at=saved_at, files=files, metrics=metrics, **{**_NEW_IN_2, **content})
        _require(manifest.format == version, "directory", manifest.directory, "<run>-<count of saves>")
        return manifest


@dataclass(kw_only=True, slots=True, frozen=True)
class FileDigests:
    """The digests of a tensor file, each 32 lower-case hexadecimal digits, as ``digests.json`` stores them.

    The digest of the whole file is xxh3_128 over digests, 16 raw bytes each: the digest of the header (the eight bytes
    of its length, the JSON, the padding), then the digest of each tensor in the order of the file. So every byte is
    covered, several threads can hash one file, and one tensor can be verified without the others.
    """

    header: str
    """The digest of the bytes before the first tensor."""
    tensors: Mapping[str, str]
    """The digests of the tensors by name, in the order of the file."""

    def __post_init__(self) -> None:
        for digest in (self.header, *self.tensors.values()):
            if not _is_match(_DIGEST, digest):
                raise CheckpointError(
                    f"{DIGESTS_NAME} has {str(digest)[:40]!r} for a digest, not 32 hexadecimal digits"
                )

    @property
    def xxh3_128(self) -> str:
        """The digest of the whole file."""
        return xxhash.xxh3_128_hexdigest(bytes.fromhex("".join([self.header, *self.tensors.values()])))


def digests_to_json(files: Mapping[str, FileDigests]) -> bytes:
    """Return the content of digests.json from the digests of all tensor files, by file name."""
    content = {name: {"header": each.header, "tensors": dict(each.tensors)} for name, each in files.items()}
    return json.dumps(content, separators=(",", ":")).encode()


def digests_from_json(data: bytes) -> dict[str, FileDigests]:
    """Parse an untrusted digests.json; raise CheckpointError, whose message is only the reason, if it is malformed."""
    try:
        content = parse_json(data)
        return {
            name: FileDigests(header=each["header"], tensors=dict(each["tensors"].items()))
            for name, each in content.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{DIGESTS_NAME} is malformed: {error}") from error


def parse_json(data: bytes) -> Any:
    """Parse JSON; raise ValueError if malformed, nested too deep, or with a duplicate key, NaN or infinity."""
    try:
        return json.loads(data, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands there twice")
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_values(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters as JSON reads them back. Raise ValueError if one is not a JSON value."""
    try:
        return dict(json.loads(json.dumps(dict(hyperparameters), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the hyperparameters are not JSON values: {error}; give numbers, texts, None, and lists and dicts of them"
        ) from error


def _require(correct: bool, key: str, found: object, allowed: str) -> None:
    if not correct:
        raise CheckpointError(f"{MANIFEST_NAME} is not a manifest: {key} is {_brief(found)}, not {allowed}")


def _brief(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 100 else text[:100] + "..."


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _is_match(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _finite_or_text(value: float) -> float | str:
    """Return a finite number as it is, and nan or infinity, which JSON lacks, as text."""
    return value if math.isfinite(value) else repr(value)


def _float(value: object) -> float:
    if type(value) is float or value in ("nan", "inf", "-inf"):
        return float(value)
    raise ValueError(f"the metric {value!r} is not a float")
