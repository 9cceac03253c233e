"""The values of a launcher's variables, each with its origin.

Only the types. ``environment`` reads one variable, each launcher's module chooses the variables, and ``cluster`` checks
that the values fit together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvValue(Generic[T]):
    """A value and its origin: ``NAME=text`` of a variable, or ``default: why``."""

    value: T
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
