"""Lines stay whole on their way, and one without an end takes no memory."""

from __future__ import annotations

import io
import os
import select
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from smddp.process import output_lines
from smddp.process.output_lines import MOST_KEPT, OutputCopy, copy_lines, merge_lines


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


def copied(directory: Path, *pieces: bytes, pause: float = 0.0, awaited: bytes = b"") -> bytes:
    """What a file has of these pieces, if there are so many seconds between them, and what it has of the first."""
    reading, printing = os.pipe()
    log = directory / "log"

    def print_all() -> None:
        for piece in pieces:
            os.write(printing, piece)
            until = time.monotonic() + 30
            while piece is pieces[0] and not log.read_bytes().startswith(awaited) and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(pause)
        os.close(printing)

    thread = threading.Thread(target=print_all)
    with log.open("wb") as file:
        thread.start()
        copy_lines(reading, file.fileno())
    thread.join()
    os.close(reading)
    return log.read_bytes()


def test_a_line_that_comes_in_parts_is_written_whole() -> None:
    assert sum(copy(b"first ", b"half", b"\n")[:1]) == len(b"first half\n")


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_a_last_line_without_an_end_is_ended(tmp_path: Path, end: bytes) -> None:
    assert copied(tmp_path, b"step=1\nacc=93" + end) == b"step=1\nacc=93" + end + b"\n"
    assert copied(tmp_path, b"acc=93\n") == b"acc=93\n"
    assert copied(tmp_path, b"") == b""


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ((b"Loading ", b"done\n"), b"Loading \ndone\n"),
        ((b"50%", b"\r"), b"50%\n\r\n"),
        *[((start, b"3\n"), start + b"3\n") for start in (b"acc=9", b"acc=0.", b"acc=", b"acc: ", b"acc=1e-")],
    ],
)
def test_a_line_that_takes_too_long_is_ended_but_not_within_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: tuple[bytes, ...], lines: bytes
) -> None:
    monkeypatch.setattr(output_lines, "HELD_SECONDS", 0.0)
    monkeypatch.setattr(output_lines, "PARTIAL_SECONDS", 0.01)
    ended = pieces[0] + b"\n"
    awaited = ended if lines.startswith(ended) else b""  # a number is not written before its end
    assert copied(tmp_path, *pieces, pause=0.1, awaited=awaited) == lines


def test_lines_of_two_streams_do_not_mix() -> None:
    ends = [os.pipe(), os.pipe()]
    merged = merge_lines([open(reading, "rb", buffering=0) for reading, _ in ends])  # noqa: PTH123, SIM115
    (_, output), (_, errors) = ends
    os.write(output, b"acc=9")
    os.write(errors, b"3 warnings\n")
    assert merged.read(100) == b"3 warnings\n"
    os.write(output, b"3")
    os.close(output)
    os.close(errors)
    with merged:
        assert merged.read(100) == b"acc=93\n"
        assert merged.read(100) == b""


def test_long_lines_of_two_streams_do_not_mix() -> None:
    ends = [os.pipe(), os.pipe()]
    merged = merge_lines([open(reading, "rb", buffering=0) for reading, _ in ends])  # noqa: PTH123, SIM115

    def print_lines(end: int, letter: bytes) -> None:
        with open(end, "wb") as output:
            output.writelines([letter * 10_000 + b"\n"] * 100)

    threads = [
        threading.Thread(target=print_lines, args=each)
        for each in zip((ends[0][1], ends[1][1]), (b"a", b"b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    with io.BufferedReader(merged) as lines:  # type: ignore[type-var]
        assert all(line in (b"a" * 10_000 + b"\n", b"b" * 10_000 + b"\n") for line in lines)
    for thread in threads:
        thread.join()


def test_a_line_without_end_is_written_in_parts_and_takes_no_memory() -> None:
    size = 32 << 20
    tracemalloc.start()
    try:
        heard = copy(*[b"x" * (1 << 20)] * (size >> 20))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert sum(heard) == size + len(b"\n")  # a line ends with its stream
    assert max(heard) < 2 * MOST_KEPT


class Ended:
    """A process that has ended, while a daemon keeps its standard error open."""

    stdout = None

    def __init__(self) -> None:
        reading, self.kept_open = os.pipe()
        self.stderr: IO[bytes] = open(reading, "rb")  # noqa: PTH123, SIM115 - a descriptor


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ended]:
    monkeypatch.setattr(output_lines, "OUTPUT_SECONDS", 0.01)
    process, threads = Ended(), threading.enumerate()
    yield process
    os.close(process.kept_open)
    for each in set(threading.enumerate()).difference(threads):
        each.join(60)  # else it writes among other tests' output


class LatePoll:
    """A poll object for a thread that gets no core for a while before each look."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poll, name)

    def poll(self, *arguments: Any) -> Any:
        time.sleep(0.3)
        return self._poll.poll(*arguments)


@pytest.mark.parametrize("late", ["poll", "read", "write"])
def test_what_an_ended_process_wrote_is_copied_by_a_late_thread_too(
    ended: Ended, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    read, heard = output_lines._read, [b""]

    def read_late(source: int) -> bytes:
        chunk = read(source)
        time.sleep(0.3)
        return chunk

    def heed(data: bytes) -> None:
        time.sleep(0.3 if late == "write" else 0)
        heard.append(data)

    if late == "poll":
        polls = SimpleNamespace(poll=LatePoll, POLLIN=select.POLLIN, PIPE_BUF=select.PIPE_BUF)
        monkeypatch.setattr(output_lines, "select", polls)
    if late == "read":
        monkeypatch.setattr(output_lines, "_read", read_late)
    os.write(ended.kept_open, b"last\nand half a line")
    OutputCopy(ended, heed).finish()
    assert b"".join(heard) == b"last\nand half a line\n"


def test_a_thread_that_never_goes_on_is_not_waited_for(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_lines, "BEHIND_SECONDS", 0.1)
    begun, goes_on, heard = threading.Event(), threading.Event(), [b""]

    def heed(data: bytes) -> None:
        begun.set()
        goes_on.wait(100)
        heard.append(data)

    copy = OutputCopy(ended, heed)
    os.write(ended.kept_open, b"line\n")
    assert begun.wait(60)
    copy.finish()
    assert heard == [b""]
    goes_on.set()
