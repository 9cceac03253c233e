"""Lines stay whole on their way, and one without an end takes no memory."""

from __future__ import annotations

import os
import threading
import tracemalloc

from smddp.process.output_lines import MOST_KEPT, copy_lines


def copy(*pieces: bytes) -> list[int]:
    """How many bytes are written at a time when these are printed without a pause."""
    reading, printing = os.pipe()
    taking, writing = os.pipe()

    def print_all() -> None:
        with open(printing, "wb", buffering=0) as output:  # noqa: PTH123 - a descriptor
            for piece in pieces:
                output.write(piece)

    def drain() -> None:
        while os.read(taking, 1 << 20):
            pass

    threads = [threading.Thread(target=print_all), threading.Thread(target=drain)]
    for thread in threads:
        thread.start()
    heard: list[int] = []
    copy_lines(reading, writing, lambda data: heard.append(len(data)))
    os.close(writing)
    for thread in threads:
        thread.join()
    os.close(reading)
    os.close(taking)
    return heard


def test_a_line_that_comes_in_parts_is_written_whole() -> None:
    assert sum(copy(b"first ", b"half", b"\n")[:1]) == len(b"first half\n")


def test_a_line_without_end_is_written_in_parts_and_takes_no_memory() -> None:
    size = 32 << 20
    tracemalloc.start()
    try:
        heard = copy(*[b"x" * (1 << 20)] * (size >> 20))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert sum(heard) == size
    assert max(heard) < 2 * MOST_KEPT
