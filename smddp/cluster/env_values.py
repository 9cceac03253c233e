"""What a launcher's variables say, each value with the variable that it came from.

Here are only the shapes. Reading one variable is ``environment``, which variables count is each launcher's file, and
whether the values fit together is ``cluster``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvValue(Generic[T]):
    """A value, and what decided it: ``NAME=text`` of a variable, or ``default: why``."""

    value: T
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvValues:
    """The fields of a Cluster, as one launcher gives them."""

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
    """Return names to tell hosts apart by, for a launcher that gives none; they are no addresses."""
    names = ("localhost",) if count == 1 else tuple(f"node-{index}" for index in range(count))
    return EnvValue(names, f"default: {launcher} names no hosts")
