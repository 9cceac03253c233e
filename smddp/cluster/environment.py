"""Reads a process's environment variables strictly: an invalid or missing one raises an error that names it.

It does not know the launchers, and does not read ``os.environ``, so that detection is a pure function.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from smddp.cluster.env_values import EnvValue
from smddp.errors import ClusterError

_LONGEST_SHOWN = 100

_FIRST_PORT, _PORTS = 10_000, 20_000
"""Ports derived from a job's id, below the range that Linux assigns to clients (32768 and up)."""


class Environment:
    """Environment variables; an empty one counts as unset."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = {name: value for name, value in variables.items() if value}

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def names(self, prefix: str) -> list[str]:
        """Return the names of the set variables that start with ``prefix``, sorted."""
        return sorted(name for name in self._variables if name.startswith(prefix))

    def show(self, name: str) -> str:
        """Return ``NAME=value`` for errors and explanations, with a long value shortened."""
        value = self._variables[name]
        return f"{name}={value if len(value) <= _LONGEST_SHOWN else value[: _LONGEST_SHOWN - 1] + '…'}"

    def first(self, *names: str) -> str | None:
        """Return the first of these names that is set; None if none is."""
        return next((name for name in names if name in self._variables), None)

    def require(self, *names: str, beside: str) -> str:
        """Return the first of these names that is set; raise ClusterError if none is.

        The error says that ``beside``, which is set, makes them necessary.
        """
        name = self.first(*names)
        if name is None:
            raise ClusterError(
                f"{self.show(beside)} is set, but {' or '.join(names)} is not: set it as well, or unset {beside} "
                "if no launcher started this process."
            )
        return name

    def text(self, *names: str, beside: str) -> EnvValue[str]:
        """Return the value of the variable that :meth:`require` returns."""
        name = self.require(*names, beside=beside)
        return EnvValue(self._variables[name], self.show(name))

    def integer(self, *names: str, beside: str, minimum: int = 0) -> EnvValue[int]:
        """Return a whole number of at least ``minimum``, from the variable that :meth:`require` returns."""
        value = self.text(*names, beside=beside)
        digits = value.value.strip()
        if not (digits.isascii() and digits.isdecimal() and int(digits) >= minimum):
            raise ClusterError(f"{value.source}: expected a whole number of at least {minimum}.")
        return EnvValue(int(digits), value.source)

    def json(self, name: str, *, expected: str) -> EnvValue[Any]:
        """Return the parsed value of a JSON variable; ``expected`` describes it in the error."""
        try:
            return EnvValue(json.loads(self._variables[name]), self.show(name))
        except ValueError as error:
            raise ClusterError(f"{self.show(name)} is not JSON ({error}); expected {expected}.") from error

    def master_addr(self, default: EnvValue[str]) -> EnvValue[str]:
        """Return MASTER_ADDR, which the user or the platform may set, or the launcher's default."""
        return self.text("MASTER_ADDR", beside="MASTER_ADDR") if "MASTER_ADDR" in self else default

    def master_port(self, default: EnvValue[int]) -> EnvValue[int]:
        """Return MASTER_PORT, which the user or the platform may set, or the launcher's default."""
        return self.integer("MASTER_PORT", beside="MASTER_PORT") if "MASTER_PORT" in self else default

    def port_of_job(self, *names: str) -> EnvValue[int]:
        """Return a port that all processes of a job derive alike: 10000 + crc32 of the job's id modulo 20000.

        The id is the values of the set variables, joined with dots; at least one must be set.
        """
        present = [name for name in names if name in self]
        identity = ".".join(self._variables[name] for name in present)
        port = _FIRST_PORT + zlib.crc32(identity.encode()) % _PORTS
        return EnvValue(port, f"default: derived from {', '.join(self.show(name) for name in present)}")
