"""How ranks and nodes meet: whether a program listens at the address, counts that must be equal, the missing members.

The first of them serves the store of the meeting, in ``smddp.distributed.store``. Connections are plain ones, made
before torch's.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

from smddp.display_text import shown_names
from smddp.errors import DistributedError

_SHOWN = 16

_CONNECT_SECONDS = 1.0
_LEAST_PAUSE = 0.01
_MOST_PAUSE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualCount:
    """A count that must be equal for all members, such as the number of ranks. Each compares it with the first's."""

    member: str
    """The kind of the members: ``rank`` or ``node``."""
    who: str
    """This member, such as ``rank 1 on algo-2``."""
    found: str
    """This member's count, such as ``2 ranks``."""
    remedy: str
    """How the members get the same count."""

    def offer(self, store: Store) -> None:
        """Publish the first member's count, and forget what an earlier attempt in this process found."""
        store.delete_key(self._other)
        store.set(self._own, self.found)

    def check(self, store: Store) -> None:
        """Raise DistributedError if the first member has another count, after telling that member."""
        if not store.check([self._own]):
            return
        first = store.get(self._own).decode(errors="replace")
        if first != self.found:
            store.set(self._other, f"{self.who} with {self.found}")
            raise DistributedError(
                f"{self.who} was started with {self.found}, and {self.member} 0 with {first}. {self.remedy}"
            )

    def check_others(self, store: Store) -> None:
        """Raise DistributedError if another member has another count. Only on the first member."""
        if store.check([self._other]):
            other = store.get(self._other).decode(errors="replace")
            raise DistributedError(f"{self.member} 0 was started with {self.found}, and {other}. {self.remedy}")

    @property
    def _own(self) -> str:
        return f"smddp_count_of_{self.member}s"

    @property
    def _other(self) -> str:
        return f"smddp_other_count_of_{self.member}s"


def waiting(member: str, missing: Sequence[int], count: int, where: str, timeout: timedelta) -> str:
    """Return the line that names the missing members; empty if none is missing.

    Examples:
        >>> waiting("rank", [1], 2, "algo-1:7777", timedelta(minutes=30))
        '1 of 2 ranks have arrived at algo-1:7777; waiting for rank 1, at most 1800 s'
    """
    if not missing:
        return ""
    return (
        f"{count - len(missing)} of {count} {member}s have arrived at {where}; waiting for {listed(member, missing)}, "
        f"at most {timeout.total_seconds():g} s"
    )


def listed(member: str, numbers: Sequence[int]) -> str:
    """Return the names of ranks or nodes, such as ``ranks 1, 2``."""
    return f"{member}{'s' if len(numbers) > 1 else ''} {shown_names(numbers, most=_SHOWN)}"


def await_listener(address: str, port: int, deadline: float, given_up: threading.Event) -> None:
    """Wait until a program accepts connections at this address; raise TimeoutError, with the reason, at the deadline.

    The address may have no host yet, as in Kubernetes.
    """
    pause = _LEAST_PAUSE
    while True:
        try:
            with socket.create_connection((address, port), timeout=_CONNECT_SECONDS) as connection:
                # Without a listener, a port of the range for clients may be connected to itself.
                if connection.getsockname() != connection.getpeername():
                    return
                why = "nobody listens there"
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
        if time.monotonic() > deadline or given_up.wait(pause):
            raise TimeoutError(why)
        pause = min(1.5 * pause, _MOST_PAUSE)


def is_silent(address: str, port: int) -> bool | None:
    """Return whether a program accepts a connection and keeps it without a word, as a store does, too.

    None if nobody accepted or refused it in time: the host may not be up, or a program's queue may be full.
    """
    try:
        connection = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
    except TimeoutError:
        return None
    except (OSError, UnicodeError):
        return False
    with connection:
        try:
            return connection.recv(1) != b""  # a proxy closes it until rank 0 listens
        except TimeoutError:
            return True
        except OSError:
            return False
