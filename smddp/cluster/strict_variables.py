"""Environment variables, read strictly: an invalid or missing one raises an error that names it.

Each value keeps its origin. The launchers' modules choose the variables, and ``cluster`` checks that their values fit
together. Nothing here reads ``os.environ``, so detection is a pure function.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from smddp.errors import ClusterError, DistributedError

_LONGEST_SHOWN = 100

_FIRST_PORT, _PORTS = 10_000, 20_000
"""Ports derived from a job's id, below the range that Linux assigns to clients (32768 and up)."""

DEFAULT_PORT = 29500
"""torchrun's default port."""

TIMEOUT_VARIABLE = "SMDDP_TIMEOUT"
"""The variable with the seconds that a rank waits for other ranks, at the start and in each collective, for
``smddp.join`` without an argument; ``smddp run --timeout`` sets it."""

_DEFAULT_TIMEOUT = 1800.0
"""Seconds: torch's own default for gloo, long enough while one rank reads a whole data set."""

_LONGEST_TIMEOUT = 1e7

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EnvValue(Generic[_T]):
    """A value and its origin: ``NAME=text`` of a variable, or ``default: why``."""

    value: _T
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvValues:
    """The fields of a Cluster, as one launcher's variables give them."""

    launcher: EnvValue[str]
    rank: EnvValue[int]
    local_rank: EnvValue[int]
    world_size: EnvValue[int]
    local_world_size: EnvValue[int]
    node_rank: EnvValue[int]
    node_count: EnvValue[int]
    hosts: EnvValue[tuple[str, ...]]
    master_addr: EnvValue[str]
    master_port: EnvValue[int]


def unnamed_hosts(count: int, launcher: str) -> EnvValue[tuple[str, ...]]:
    """Return names that distinguish hosts, for a launcher that gives none; they are not addresses."""
    names = ("localhost",) if count == 1 else tuple(f"node-{index}" for index in range(count))
    return EnvValue(names, f"default: {launcher} names no hosts")


DERIVED = "default: derived from "
"""How the source of a port that was derived from the job's id begins."""


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
        """Return the first of these names that is set, or None."""
        return next((name for name in names if name in self._variables), None)

    def require(self, *names: str, beside: str) -> str:
        """Return the first of these names that is set; raise ClusterError if all are unset.

        ``beside`` is the variable that makes them necessary; the error names it.
        """
        name = self.first(*names)
        if name is None:
            raise ClusterError(
                f"{self.show(beside)} is set, but {' or '.join(names)} is not: set it as well, or unset {beside} "
                "if no launcher started this process."
            )
        return name

    def require_all(self, *names: str, beside: str, remedy: str = "") -> None:
        """Raise ClusterError, with the names of all that are unset, unless each of these names is set.

        ``beside`` is the variable that makes them necessary. The ``remedy`` stands for the usual one.
        """
        missing = [name for name in names if name not in self._variables]
        if not missing:
            return
        are, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        usual = f"set {them} as well, or unset {beside} if no launcher started this process."
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        raise ClusterError(f"{self.show(beside)} is set, but {listed} {are} not: {remedy or usual}")

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

        The id joins the values of all set variables with dots; at least one must be set.
        """
        present = [name for name in names if name in self]
        identity = ".".join(self._variables[name] for name in present)
        port = _FIRST_PORT + zlib.crc32(identity.encode()) % _PORTS
        return EnvValue(port, f"{DERIVED}{', '.join(self.show(name) for name in present)}")


def check_timeout(seconds: float, source: str) -> float:
    """Return the seconds if they are a valid timeout; otherwise raise DistributedError, which names ``source``."""
    if not 0 < seconds <= _LONGEST_TIMEOUT:  # also refuses NaN
        raise DistributedError(
            f"{source}: a timeout is more than 0 and at most {_LONGEST_TIMEOUT:.0f} seconds, such as 600."
        )
    return seconds


def read_timeout(environ: Mapping[str, str]) -> float:
    """Return SMDDP_TIMEOUT in seconds, or the default if unset; raise DistributedError if it is not a valid timeout."""
    given = environ.get(TIMEOUT_VARIABLE)
    if not given:
        return _DEFAULT_TIMEOUT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    return check_timeout(seconds, f"{TIMEOUT_VARIABLE}={given!r}")


def is_equal_share(rank: int, world_size: int, *, outer_rank: int, outer_size: int) -> bool:
    """Return whether an inner rank belongs to an outer rank, if all outer ranks have equal shares, in order.

    Examples:
        >>> is_equal_share(3, 4, outer_rank=1, outer_size=2), is_equal_share(1, 2, outer_rank=0, outer_size=2)
        (True, False)
    """
    share, rest = divmod(world_size, outer_size)
    return not rest and rank // share == outer_rank
