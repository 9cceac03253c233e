"""Whatever the sizes and however many threads, every byte comes where it belongs, and no other is touched."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.save import staging
from smddp.checkpoint.save.staging import Span, copy_spans
from tests.interrupts import HandlerError, handler_error


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Small pieces, and the threads that are begun."""
    monkeypatch.setattr(staging, "_PIECE", 7)
    monkeypatch.setattr(staging, "_BYTES_A_THREAD", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    threads: list[threading.Thread] = []
    real = threading.Thread

    def begin(**options: Any) -> threading.Thread:
        threads.append(real(**options))
        return threads[-1]

    monkeypatch.setattr(threading, "Thread", begin)
    return threads


def copied(sizes: list[int], gap: int) -> None:
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    target = torch.full((sum(sizes) + gap * (len(sizes) + 1),), 0, dtype=torch.uint8)
    expected = target.clone()
    spans, place = [], gap
    for source, size in zip(sources, sizes, strict=True):
        spans.append(Span(target.data_ptr() + place, source.data_ptr(), size))
        expected[place : place + size] = source
        place += size + gap
    copy_spans(spans)
    assert torch.equal(target, expected)


@given(st.lists(st.integers(0, 100), max_size=20), st.integers(0, 9))
def test_every_byte_is_copied_and_no_other(sizes: list[int], gap: int) -> None:
    copied(sizes, gap)


@pytest.mark.parametrize(("size", "threads"), [(99, 0), (250, 1), (100_000, 3)])
def test_large_copies_are_shared_by_threads(size: int, threads: int, begun: list[threading.Thread]) -> None:
    for _ in range(10):
        begun.clear()
        copied([size // 3, size - size // 3 - 1, 1], 3)
        assert len(begun) == threads
        assert not any(thread.is_alive() for thread in begun)


def test_no_thread_copies_any_more_when_a_handlers_error_is_raised(
    begun: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    copying, memmove, is_shared, once = set[int](), ctypes.memmove, threading.Event(), threading.Lock()

    def move_late(target: int, source: int, size: int) -> None:
        if threading.current_thread() is threading.main_thread():
            is_shared.wait(30)
        else:
            copying.add(target)
            is_shared.set()
            if once.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGALRM)
            time.sleep(0.3)
            memmove(target, source, size)
            copying.discard(target)

    monkeypatch.setattr(ctypes, "memmove", move_late)
    memory = torch.zeros(2000, dtype=torch.uint8)
    with pytest.raises(HandlerError), handler_error(60):
        copy_spans([Span(memory.data_ptr() + 1000, memory.data_ptr(), 1000)])
    assert begun
    assert not copying
