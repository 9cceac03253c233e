"""The fingerprints of collectives that processes of one host share."""

from __future__ import annotations

import os

import pytest

from smddp.watch import fingerprints
from smddp.watch.fingerprints import Fingerprints


def test_the_later_of_two_ranks_sees_that_they_differ() -> None:
    first, second = Fingerprints.create(), Fingerprints.create()
    assert first is not None
    assert second is not None
    for each in first, second:
        each.find_others({os.getpid()})
    assert not first.differ(0, 1, 5)
    assert not second.differ(0, 1, 5)
    assert not second.differ(0, 2, -6)  # the first rank has not come there
    assert first.differ(0, 2, 7)
    assert not second.differ(0, 2 + fingerprints._SLOTS, 8)  # the first rank's number 2 is in the same slot


def test_groups_that_share_a_slot_are_told_apart() -> None:
    first, second = Fingerprints.create(), Fingerprints.create()
    assert first is not None
    assert second is not None
    second.find_others({os.getpid()})
    first.differ(0xABCDEF01, 3, 5)
    assert not second.differ(0xABCDEF00, 4, 6)
    assert not second.differ(0xABCDEF01 + fingerprints._SLOTS, 3, 6)
    assert second.differ(0xABCDEF01, 3, 6)
    assert not second.differ(0, 2**16, 6)  # an empty slot


def test_a_process_that_is_gone_is_not_compared_with() -> None:
    own = Fingerprints.create()
    assert own is not None
    own.find_others({2**30})
    assert not own.differ(0, 1, 5)


def test_a_system_without_shared_memory_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert Fingerprints.create() is None
