"""A fingerprint of the data, so that a resume notices when they are others.

It is for accidents, not against adversaries: of files it takes names and sizes, and does not read them.
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
    """Give 32 hexadecimal digits that stay the same as long as all of the things do.

    Args:
        *things: What decides the data, in order. A ``Path``: the size of that file, or the relative names and sizes of
            all files below that directory, wherever it lies (links in it to other directories are not followed). An
            array of NumPy or a dense tensor: its type, shape and bytes. A ``str``, ``int`` or ``bytes``: itself, such
            as the name of a release; a ``str`` is never taken for a path.

    Returns:
        The xxh3_128 of them.

    Raises:
        ValueError: A path is not there or cannot be read, or a thing is of no kind that is named above.

    Examples:
        >>> fingerprint("release 2026-11", 1010) == fingerprint("release 2026-12", 1010)
        False
    """
    whole = xxhash.xxh3_128()
    for thing in things:
        digest = xxhash.xxh3_128()
        for part in _parts(thing):
            digest.update(len(part).to_bytes(8, "little"))  # else "ab", "c" would be "a", "bc"
            digest.update(part)
        whole.update(digest.digest())
    return whole.hexdigest()


def _parts(thing: Any) -> Iterator[Any]:
    """Yield buffers of bytes that tell two things apart, the kind of the thing first."""
    torch = sys.modules.get("torch")  # where it was not imported, nothing is a tensor
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
    """Yield the name of each file at the path, relative to it, and its size, in the order of the names."""
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
