"""The digests of a checkpoint's files of tensors, down to the single tensor, and the file that holds them.

The digest of such a file is xxh3_128 over digests, 16 raw bytes each: first that of the header (the eight bytes of its
length, the JSON, the spaces after it), then that of each tensor in the order of the file. So every byte is covered,
threads can hash and verify one file together, and one tensor can be verified without the others. ``digests.json``
holds the digests that went in: ``{"model.safetensors": {"header": "<32 hex>", "tensors": {"<name>": "<32 hex>"}}}``.
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
    """The digests of a file of tensors, as 32 lower-case hexadecimal digits each."""

    header: str
    """That of its beginning, up to the first tensor."""
    tensors: Mapping[str, str]
    """Those of its tensors by name, in the order of the file."""

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
    """Return the content of digests.json.

    Args:
        files: The digests of all files of tensors, by the file's name.
    """
    content = {name: {"header": each.header, "tensors": dict(each.tensors)} for name, each in files.items()}
    return json.dumps(content, separators=(",", ":")).encode()


def from_json(data: bytes) -> dict[str, FileDigests]:
    """Read a digests.json that nobody vouches for.

    Raises:
        CheckpointError: It is no such file. The message is only the reason.
    """
    try:
        content = strict_json.loads(data)
        return {
            name: FileDigests(header=each["header"], tensors=dict(each["tensors"].items()))
            for name, each in content.items()
        }
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{DIGESTS_NAME} is not what it should be: {error}") from error
