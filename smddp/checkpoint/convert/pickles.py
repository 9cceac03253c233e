"""Pickles that nobody trusts, read without running what may be in them, and without more memory than they have bytes.

Python's unpickler loads a class by its name, which can run code, and makes room for as many remembered values as one
number in the pickle says.
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
"""What loading a damaged pickle, or what was made of it, may raise."""


class Inert:
    """Stands for anything that a pickle names: takes whatever it is given, and does nothing."""

    def __new__(cls, *_: object) -> Inert:
        """Take any arguments."""
        return super().__new__(cls)

    def __init__(self, *_: object) -> None:
        """Take any arguments."""

    def __setstate__(self, _: object) -> None:
        """Take a state."""

    def __setitem__(self, _: object, __: object) -> None:
        """Take an item of a dict."""

    def append(self, _: object) -> None:
        """Take an item of a list."""

    def add(self, _: object) -> None:
        """Take an item of a set."""


class BoundedUnpickler(pickle.Unpickler):
    """Loads a pickle in memory that its size bounds; a subclass says what stands for the names in it."""

    def __init__(self, content: bytes) -> None:
        """Look at the pickle.

        Raises:
            CheckpointError: It numbers more values than it could hold.
            ValueError: It is no pickle.
        """
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _REMEMBERS and not 0 <= int(str(argument)) <= len(content):
                raise CheckpointError(f"a pickle of {len(content)} bytes numbers a value {argument}: it is damaged")
        super().__init__(io.BytesIO(content))

    def find_class(self, module: str, name: str, /) -> Any:
        """Return what stands for a name: nothing that a pickle names is loaded."""
        raise NotImplementedError
