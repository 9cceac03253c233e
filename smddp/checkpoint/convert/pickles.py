"""Read untrusted pickles without running code from them, in memory bounded by their size.

Python's unpickler imports classes by name, which can run code, and allocates a memo as large as any number in the
pickle states.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from smddp.errors import CheckpointError

_REMEMBERS = {"PUT", "BINPUT", "LONG_BINPUT"}

UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that loading a damaged pickle, or using its values, may raise."""


class Inert:
    """Stands in for any class that a pickle names: accepts everything, and does nothing."""

    def __new__(cls, *_: object) -> Inert:
        """Accept any arguments."""
        return super().__new__(cls)

    def __init__(self, *_: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, _: object) -> None:
        """Accept a state."""

    def __setitem__(self, _: object, __: object) -> None:
        """Accept an item of a dict."""

    def append(self, _: object) -> None:
        """Accept an item of a list."""

    def add(self, _: object) -> None:
        """Accept an item of a set."""


class BoundedUnpickler(pickle.Unpickler):
    """Loads a pickle in memory bounded by its size; a subclass resolves the names in it."""

    def __init__(self, content: bytes) -> None:
        """Raise CheckpointError if a memo number exceeds the pickle's bytes, ValueError if it is malformed."""
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _REMEMBERS and not 0 <= int(str(argument)) <= len(content):
                raise CheckpointError(f"a pickle of {len(content)} bytes numbers a value {argument}: it is damaged")
        super().__init__(io.BytesIO(content))

    def find_class(self, module: str, name: str, /) -> Any:
        """Return the stand-in for a name. The named class is never loaded."""
        raise NotImplementedError
