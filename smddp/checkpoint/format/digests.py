"""The digests of a checkpoint's tensor files, down to each tensor, and ``digests.json``, which stores them.

The digest of a tensor file is xxh3_128 over digests, 16 raw bytes each: the digest of the header (the eight bytes of
its length, the JSON, the padding), then the digest of each tensor in the order of the file. So every byte is covered,
several threads can hash one file, and one tensor can be verified without the others. ``digests.json`` is
``{"model.safetensors": {"header": "<32 hex>", "tensors": {"<name>": "<32 hex>"}}}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from smddp.checkpoint.format import strict_json
from smddp.checkpoint.format.names import DIGESTS_NAME
from smddp.errors import CheckpointError

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(kw_only=True, slots=True, frozen=True)
class FileDigests:
    """The digests of a tensor file, each 32 lower-case hexadecimal digits."""

    header: str
    """The digest of the bytes before the first tensor."""
    tensors: Mapping[str, str]
    """The digests of the tensors by name, in the order of the file."""

    def __post_init__(self) -> None:
        for digest in (self.header, *self.tensors.values()):
            if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
                raise CheckpointError(
                    f"{DIGESTS_NAME} has {str(digest)[:40]!r} for a digest, not 32 hexadecimal digits"
                )

    @property
    def xxh3_128(self) -> str:
        """The digest of the whole file."""
        return xxhash.xxh3_128_hexdigest(bytes.fromhex("".join([self.header, *self.tensors.values()])))


def to_json(files: Mapping[str, FileDigests]) -> bytes:
    """Return the content of digests.json from the digests of all tensor files, by file name."""
    content = {name: {"header": each.header, "tensors": dict(each.tensors)} for name, each in files.items()}
    return json.dumps(content, separators=(",", ":")).encode()


def from_json(data: bytes) -> dict[str, FileDigests]:
    """Parse an untrusted digests.json; raise CheckpointError, whose message is only the reason, if it is malformed."""
    try:
        content = strict_json.loads(data)
        return {
            name: FileDigests(header=each["header"], tensors=dict(each["tensors"].items()))
            for name, each in content.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{DIGESTS_NAME} is not what it should be: {error}") from error
