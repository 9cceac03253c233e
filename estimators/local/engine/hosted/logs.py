"""Sends the output of hosts to CloudWatch Logs: `HostLog` at once, `EarlierLogs` after a restart of the platform.

There is one stream for each host and attempt, made for its first line, or when the host starts. The host never waits
for CloudWatch: one thread reads, another sends. The buffer between them is bounded; if the sender falls behind, the
oldest lines are dropped, and a line says how many. The newest lines are never dropped. Lines that CloudWatch refused
are not sent again, and a later line says how many.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError

from estimators.local.engine.records import NOTHING_KEPT, RecordStore, StoredLine
from smddp.display_text import counted

if TYPE_CHECKING:
    from mypy_boto3_logs import CloudWatchLogsClient
    from mypy_boto3_logs.type_defs import InputLogEventTypeDef


logger = logging.getLogger(__name__)

TRAINING_JOBS, PROCESSING_JOBS = "/aws/sagemaker/TrainingJobs", "/aws/sagemaker/ProcessingJobs"
LOG_GROUPS = (TRAINING_JOBS, PROCESSING_JOBS)
"""The log groups of all kinds of jobs that run on hosts."""
BATCH_SECONDS = 0.2
MAX_LINE_BYTES = 64 << 10
"""A longer line becomes several events; CloudWatch takes at most 256 KiB in one."""
MAX_BATCH_EVENTS = 1000
MAX_BATCH_BYTES = 512 << 10
"""CloudWatch takes at most 10,000 events and 1 MiB, with 26 bytes counted for each event."""
_EVENT_BYTES = 26
MAX_BUFFERED_BYTES = 16 << 20
TAIL_LINES = 10
_READ_BYTES = 64 << 10


class HostLog:
    """The log stream of one host in one attempt."""

    def __init__(
        self,
        client: CloudWatchLogsClient,
        job_name: str,
        host: str,
        *,
        began: int,  # seconds since 1970, different for each attempt of the job
        group: str = TRAINING_JOBS,
        seen: Callable[[str, int], None],  # called with every line of the program, and its time in ms
        store: RecordStore = NOTHING_KEPT,  # remembers the lines
    ) -> None:
        self._client = client
        self._job_name = job_name
        self._group = group
        self._store = store
        self._stream = f"{job_name}/{host}-{began}"
        self._seen = seen
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        # Guards the six below; no other lock is taken while it is held, and nothing is sent. Bound: lines of at most
        # MAX_BUFFERED_BYTES wait, and the oldest are dropped first. Times never decrease, as CloudWatch requires.
        self._changed = threading.Condition()
        self._lines: deque[InputLogEventTypeDef] = deque()
        self._buffered = 0
        self._dropped = 0
        self._now = 0
        self._started = False
        self._ended = False
        self._sender = threading.Thread(target=self._send_all, name=self._stream, daemon=True)

    @property
    def tail(self) -> str:
        """The last `TAIL_LINES` lines of the program."""
        return "\n".join(self._tail)

    def open(self) -> None:
        """Make the stream and its group if absent, also for a host that prints nothing."""
        make_stream(self._client, self._group, self._stream)

    def follow(self, output: BinaryIO) -> None:
        """Read ``output`` to its end."""
        for line in _lines(output):
            self._tail.append(line)
            timestamp = self._add(line)
            self._seen(line, timestamp)  # after the line itself: the callback may add lines

    def say(self, line: str) -> None:
        """Add a line, from any thread, also before the host runs; after `close`, send it at once."""
        self._add(line)

    def close(self) -> None:
        """Return when all lines are sent to CloudWatch. It can be called again."""
        with self._changed:
            self._ended = True
            self._changed.notify()
            started = self._started
        if started:
            self._sender.join()

    def _add(self, line: str) -> int:
        """Add a line as `say` does, and return its time."""
        line = line.encode(errors="backslashreplace").decode()  # it may contain a file name that is not UTF-8
        with self._changed:
            # The clock may be set back.
            timestamp = self._now = max(self._now, int(time.time() * 1000))
            self._append({"timestamp": timestamp, "message": line or " "})
            closed = self._ended
            if not closed and not self._started:
                self._started = True
                self._sender.start()
        if closed:  # a line of the platform after the host's end
            self._send_all()
        return timestamp

    def _append(self, event: InputLogEventTypeDef) -> None:
        self._lines.append(event)
        self._buffered += _size(event)
        while self._buffered > MAX_BUFFERED_BYTES:
            self._buffered -= _size(self._lines.popleft())
            self._dropped += 1
        self._changed.notify()

    def _send_all(self) -> None:
        due, refused = 0.0, 0  # the first line after a pause is sent at once
        make_stream(self._client, self._group, self._stream)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._ended)
                self._changed.wait_for(lambda: self._ended, timeout=max(0.0, due - time.monotonic()))
                batch, now = self._take_batch(), self._now
            due = time.monotonic() + BATCH_SECONDS
            if not batch and not refused:
                return
            kept = [StoredLine(self._stream, event["timestamp"], event["message"]) for event in batch]
            self._store.add_lines(self._group, self._job_name, kept)
            told: list[InputLogEventTypeDef] = []
            if refused:
                text = f"[{counted(refused, 'line is', 'lines are')} missing here: the log did not take them]"
                told.append({"timestamp": batch[0]["timestamp"] if batch else now, "message": text})
            try:
                self._client.put_log_events(
                    logGroupName=self._group, logStreamName=self._stream, logEvents=[*told, *batch]
                )
            except Exception:  # of any kind: the thread must go on, for the next lines
                if not batch:  # the host has ended, and so has the attempt to tell of the lines
                    return
                logger.warning(
                    "could not send %s to the log stream %s", counted(len(batch), "line"), self._stream, exc_info=True
                )
                refused += len(batch)
            else:
                refused = 0

    def _take_batch(self) -> list[InputLogEventTypeDef]:
        dropped: list[InputLogEventTypeDef] = []
        if self._dropped and self._lines:
            were = counted(self._dropped, "line was", "lines were")
            text = f"[{were} dropped here: they came faster than the log takes them]"
            dropped.append({"timestamp": self._lines[0]["timestamp"], "message": text})
            self._dropped = 0
        batch = take_batch(self._lines)
        self._buffered -= sum(map(_size, batch))
        return dropped + batch


def take_batch(events: deque[InputLogEventTypeDef]) -> list[InputLogEventTypeDef]:
    """Take as many of the first events as one request may have; empty if no events are left."""
    batch: list[InputLogEventTypeDef] = []
    size = 0
    while events and len(batch) < MAX_BATCH_EVENTS and size < MAX_BATCH_BYTES:
        batch.append(events.popleft())
        size += _size(batch[-1])
    return batch


def make_stream(client: CloudWatchLogsClient, group: str, stream: str) -> None:
    """Make a stream and its group if absent."""
    _make(client, client.create_log_group, logGroupName=group)
    _make(client, client.create_log_stream, logGroupName=group, logStreamName=stream)


def _make(client: CloudWatchLogsClient, create: Callable[..., Any], **names: str) -> None:
    try:
        create(**names)
    except client.exceptions.ResourceAlreadyExistsException:
        return
    except (ClientError, BotoCoreError):
        logger.warning("the log stream %s could not be made", names, exc_info=True)


def _lines(output: BinaryIO) -> Iterator[str]:
    """Yield the lines of ``output`` as soon as each is complete, over-long ones in pieces."""
    rest = b""
    while chunk := output.read(_READ_BYTES):
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            yield from _pieces(line)
        while len(rest) >= MAX_LINE_BYTES:
            end = _end_of_piece(rest)
            yield _text(rest[:end])
            rest = rest[end:]
    if rest:
        yield _text(rest)


def _pieces(line: bytes) -> Iterator[str]:
    while len(line) > MAX_LINE_BYTES:
        end = _end_of_piece(line)
        yield _text(line[:end])
        line = line[end:]
    yield _text(line)


def _end_of_piece(line: bytes) -> int:
    """Return where to cut an over-long line: a progress bar between two states, so no number is split."""
    return line.rfind(b"\r", 0, MAX_LINE_BYTES) + 1 or MAX_LINE_BYTES


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")


def _size(event: InputLogEventTypeDef) -> int:
    return len(event["message"].encode()) + _EVENT_BYTES


class EarlierLogs:
    """The lines of one log group that were in the store when the platform started.

    They are sent to CloudWatch when a client first asks for them, not at the platform's start: most logs are never read
    again, and moto keeps all its data in memory.
    """

    def __init__(self, group: str, store: RecordStore, client: CloudWatchLogsClient) -> None:
        self._group = group
        self._store = store
        self._client = client
        # Guards `_jobs`. Held while a job's lines are sent, so a second request waits until they are there. Taken
        # before the store's lock.
        self._lock = threading.Lock()
        self._jobs = set(store.jobs_with_lines(group))
        self._until = store.last_position()  # later lines, of jobs that go on, are sent as they come

    def bring(self, streams: str) -> None:
        """Return once all streams whose names, ``JOB/HOST-TIME``, begin with ``streams`` are in CloudWatch."""
        with self._lock:
            for job in [job for job in self._jobs if f"{job}/".startswith(streams) or streams.startswith(f"{job}/")]:
                self._bring(job)
                self._jobs.remove(job)

    def forget(self, stream: str | None) -> None:
        """Forget the lines of a deleted stream, or of the whole group if None."""
        with self._lock:
            self._store.delete_lines(self._group, stream)
            self._jobs.intersection_update(self._store.jobs_with_lines(self._group))

    def _bring(self, job: str) -> None:
        streams: defaultdict[str, deque[InputLogEventTypeDef]] = defaultdict(deque)
        for line in self._store.lines(self._group, job, until=self._until):
            streams[line.stream].append({"timestamp": line.time, "message": line.line})
        for stream, events in streams.items():
            make_stream(self._client, self._group, stream)
            while batch := take_batch(events):
                self._client.put_log_events(logGroupName=self._group, logStreamName=stream, logEvents=batch)
