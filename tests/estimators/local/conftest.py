import fcntl
import functools
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from estimators.local import LocalSageMaker
from tests.estimators.local import submitted_jobs


@pytest.fixture(scope="module")
def platform(fork_server):
    """A running platform, shared by the tests of a module."""
    with ExitStack() as stack:
        with fork_server.in_use():  # by it, and by the hosts of its jobs
            platform = stack.enter_context(LocalSageMaker(grace_seconds=10))
        yield platform


@pytest.fixture(scope="module")
def job_request(platform):
    """A function that makes CreateTrainingJob's request for a shell script run on each host."""

    return functools.partial(submitted_jobs.job_request, platform)


@pytest.fixture
def open_directory():
    """A directory that everybody may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="smddp-test-"))
    directory.chmod(0o755)
    yield directory
    # The reaper of a platform that could not remove its files tries it again and again, and may be the quicker one.
    shutil.rmtree(directory, ignore_errors=True)
    assert not directory.exists()


@pytest.fixture
def port_7777(tmp_path_factory):
    """For a job whose hosts meet at SageMaker's fixed port: they are one machine's, so one such job runs at a time."""
    with (tmp_path_factory.getbasetemp().parent / "port-7777").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
