"""R6: whatever S3 and the way to it do at any request, saving and loading come through or fail in time.

A failure leaves nothing behind: what stood there is what stands there, whole, and no multipart upload is left open.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.store import StoreError
from smddp.storage.s3_bucket import connect
from tests.torture.fault_proxy import Fault, FaultProxy
from tests.torture.outcome import Outcome
from tests.torture.s3_server import Server, s3_server

PART_SIZE = 5 * 2**20
"""Bytes: S3's least."""
BOUND_SECONDS = 60.0
"""How long a save or a load may take at most with the stores of this test, whose patience is 4 s."""

_RUN = "0123456789ab"
_LASTING = 1000  # requests: more than a case has


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One save or load, and what goes wrong in it."""

    is_save: bool
    replaces: bool
    fault: Fault
    first: int
    """The first request that it befalls."""
    count: int
    """How many requests it befalls from there on."""

    def __str__(self) -> str:
        what = ("replacing save" if self.replaces else "save") if self.is_save else "load"
        return f"{what}, {self.fault.name} at the requests {self.first} to {self.first + self.count - 1}"

    @property
    def must_succeed(self) -> bool:
        """Whether fewer requests fail than each is tried."""
        return self.fault is Fault.SLOW or (self.fault is not Fault.EXPIRED and self.count < 3)


def s3_faults(count: int, seed: int = 0) -> Outcome:
    """Save and load so many times, each with another fault at another request."""
    with tempfile.TemporaryDirectory() as directory, torturer(Path(directory)) as torturer_:
        return torturer_.outcome(count, seed)


class Torturer:
    """Runs cases, each under a prefix of its own, through a proxy before a server."""

    def __init__(self, server: Server, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._numbers = itertools.count()
        self._content = random.Random(0).randbytes(PART_SIZE * 2 + 12345)
        self._s3 = server.client()
        self._server = server
        self._bucket = f"torture-{uuid4().hex}"
        self._s3.create_bucket(Bucket=self._bucket)

    def outcome(self, count: int, seed: int) -> Outcome:
        """Run cases chosen by the seed."""
        chooser, failures, came_through = random.Random(seed), [], 0
        requests = {is_save: self._requests_of(is_save=is_save) for is_save in (True, False)}
        for _ in range(count):
            is_save = chooser.random() < 0.75
            case = Case(
                is_save=is_save,
                replaces=is_save and chooser.random() < 0.3,
                fault=chooser.choice(list(Fault)),
                first=chooser.randrange(requests[is_save]),
                count=chooser.choice([1, 1, 1, 2, _LASTING]),
            )
            error, wrong = self.run(case)
            came_through += error is None
            failures += [f"{case}: {line}" for line in wrong]
        notes = f"{came_through} came through, {count - came_through} failed as they should"
        return Outcome(done=count, unit="faults of S3", notes=notes, failures=tuple(failures))

    def run(self, case: Case) -> tuple[StoreError | None, list[str]]:
        """Run one case.

        Returns:
            What it failed with, and what of that was wrong.
        """
        direct, through, step = *self._stores(), 7
        files = {name: self._content[: len(self._content) if name.startswith("model") else 99] for name in _NAMES}
        old, new = f"{_RUN}-0001", f"{_RUN}-0002"
        if case.replaces or not case.is_save:
            save(direct, step, old, files, replacing=None)
        before = direct.read_manifest(step)
        self._proxy.begin(lambda n: case.fault if case.first <= n < case.first + case.count else None)
        error, wrong, started = None, [], time.monotonic()
        try:
            if case.is_save:
                save(through, step, new, files, replacing=before)
            elif load(through, step, old, files) != files:
                wrong.append("read other bytes than were written")
        except StoreError as raised:
            error = raised
        except Exception as raised:
            wrong.append(f"raised {type(raised).__name__}: {raised}")
        if (seconds := time.monotonic() - started) > BOUND_SECONDS:
            wrong.append(f"took {seconds:.0f} s")
        self._proxy.begin()
        if error is not None and case.must_succeed:
            wrong.append(f"failed: {error}")
        return error, wrong + self._left_behind(case, direct, step, files, before, error)

    def _left_behind(
        self,
        case: Case,
        direct: S3Store,
        step: int,
        files: Mapping[str, bytes],
        before: bytes | None,
        error: StoreError | None,
    ) -> list[str]:
        wrong = []
        after = direct.read_manifest(step)
        if case.is_save and error is None and after != manifest_of(f"{_RUN}-0002"):
            wrong.append(f"the save returned, but there stands {after!r}")
        if after != before and after != manifest_of(f"{_RUN}-0002"):
            wrong.append(f"there stands {after!r}, which nobody wrote")
        standing = next((each for each in (f"{_RUN}-0001", f"{_RUN}-0002") if after == manifest_of(each)), None)
        if standing is not None and load(direct, step, standing, files) != files:
            wrong.append(f"{standing} is committed, but its files are not whole")
        # A server that answers no more does not let anything be aborted; the next run does it.
        if case.count == _LASTING and error is not None:
            direct.abort_orphans(older_than=timedelta(0))
        prefix = str(direct).removeprefix(f"s3://{self._bucket}/") + "/"
        if left := self._s3.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix).get("Uploads"):
            wrong.append(f"left {len(left)} multipart uploads open")
        direct.remove(step)
        return wrong

    def _requests_of(self, *, is_save: bool) -> int:
        """Count the requests of a save, or a load, without faults."""
        direct, through = self._stores()
        files = dict.fromkeys(_NAMES, self._content)
        if not is_save:
            save(direct, 1, f"{_RUN}-0001", files, replacing=None)
        self._proxy.begin()
        if is_save:
            save(through, 1, f"{_RUN}-0001", files, replacing=None)
        else:
            load(through, 1, f"{_RUN}-0001", files)
        count = len(self._proxy.requests)
        direct.remove(1)
        return count

    def _stores(self) -> tuple[S3Store, S3Store]:
        """A store that goes to the server, and one to the same place that goes through the proxy."""
        uri = f"s3://{self._bucket}/{next(self._numbers)}"
        return self._store(uri, self._server.endpoint_url), self._store(uri, self._proxy.endpoint_url)

    def _store(self, uri: str, endpoint_url: str) -> S3Store:
        is_direct = endpoint_url != self._proxy.endpoint_url
        with patch.dict(os.environ, self._server.environ(endpoint_url)):
            client = connect(timeout=30.0 if is_direct else 1.0)
        return S3Store(uri, client, part_size=PART_SIZE, connections=3, patience=4.0)


_NAMES = ("model.safetensors", "state.json", "digests.json")


def manifest_of(attempt: str) -> bytes:
    """The least that a store takes for a manifest."""
    return f'{{"directory": "{attempt}"}}'.encode()


def save(store: S3Store, step: int, attempt: str, files: Mapping[str, bytes], *, replacing: bytes | None) -> None:
    """Do what a save does with its store."""
    for name, content in files.items():
        store.write(step, attempt, name, [memoryview(content)[:1000], memoryview(content)[1000:]])
    store.commit(step, attempt, manifest_of(attempt), replacing=replacing)


def load(store: S3Store, step: int, attempt: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Do what a load does with its store; the newest step must be this one."""
    assert next(store.newest_first()) == step
    assert store.read_manifest(step) == manifest_of(attempt)
    contents = {}
    for name in files:
        content = bytearray(store.size(step, attempt, name) or 0)
        store.read_into(step, attempt, name, 0, memoryview(content))
        contents[name] = bytes(content)
    return contents


@contextmanager
def torturer(directory: Path) -> Iterator[Torturer]:
    """Start a server and a proxy for cases."""
    with s3_server(directory) as server, FaultProxy(server.endpoint_url).running() as proxy:
        yield Torturer(server, proxy)
