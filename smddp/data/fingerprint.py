"""A fingerprint of the data, so that a resume notices changed data.

It guards against accidents, not adversaries: of files it takes names and sizes, and does not read them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash


def fingerprint(*things: Any) -> str:
    """Return 32 hexadecimal digits that change if any of the things changes.

    Args:
        *things: What identifies the data, in order. A ``Path`` counts as the size of that file, or as the relative
            names and sizes of all files below that directory, wherever it is (symbolic links to other directories are
            not followed). A NumPy array or a dense tensor counts as its type, shape and bytes. A ``str``, ``int`` or
            ``bytes``, such as the name of a release, counts as itself; a ``str`` is never a path.

    Returns:
        Their xxh3_128 hash.

    Raises:
        ValueError: A path is missing or cannot be read, or a thing has an unsupported type.

    Examples:
        >>> fingerprint("release 2026-11", 1010) == fingerprint("release 2026-12", 1010)
        False
    """
    whole = xxhash.xxh3_128()
    for thing in things:
        digest = xxhash.xxh3_128()
        for part in _parts(thing):
            digest.update(len(part).to_bytes(8, "little"))  # without it "ab", "c" would equal "a", "bc"
            digest.update(part)
        whole.update(digest.digest())
    return whole.hexdigest()


def _parts(thing: Any) -> Iterator[Any]:
    """Yield the bytes that identify a thing, its kind first."""
    torch = sys.modules.get("torch")  # if torch is not imported, nothing is a tensor
    if isinstance(thing, os.PathLike):
        yield b"files"
        yield from _files(Path(thing))
    elif isinstance(thing, str):
        yield from (b"str", thing.encode("utf-8", "surrogateescape"))
    elif isinstance(thing, bytes):
        yield from (b"bytes", thing)
    elif isinstance(thing, int):
        yield from (b"int", str(thing).encode())
    elif isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
        content = np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
        yield from (b"array", f"{thing.dtype.descr} {thing.shape}".encode(), content)
    elif torch is not None and isinstance(thing, torch.Tensor) and thing.layout is torch.strided:
        content = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield from (b"tensor", f"{thing.dtype} {tuple(thing.shape)}".encode(), content)
    else:
        raise ValueError(
            f"no fingerprint of {type(thing).__name__}: it is made of paths, arrays of numbers, dense tensors, str, "
            "int and bytes; give what decides the data as one of these"
        )


def _files(path: Path) -> Iterator[bytes]:
    """Yield the relative name and the size of each file at the path, sorted by name."""
    try:
        if not path.is_dir():
            yield str(path.stat().st_size).encode()
            return
        found = [Path(folder, name) for folder, _, names in os.walk(path, onerror=_fail) for name in names]
        for file in sorted(found):
            yield os.fsencode(file.relative_to(path))
            yield str(file.stat().st_size).encode()
    except OSError as error:
        raise ValueError(
            f"no fingerprint of the data in {path}: {error.strerror}: {error.filename}; give a path that can be read"
        ) from error


def _fail(error: OSError) -> NoReturn:
    raise error
