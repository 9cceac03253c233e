"""What other users of the machine can do to a platform: nothing."""

import os
import stat
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from estimators.local import LocalSageMaker
from estimators.local.errors import LocalPlatformError
from tests.estimators.local.processes import listening, processes_of
from tests.estimators.local.strangers import STRANGER, openable, run_as_stranger

DISK = pytest.param("disk", marks=[pytest.mark.seaweedfs, pytest.mark.namespaces])
OBJECT = b"print('what a job will run')" * 100


@pytest.fixture(params=["memory", DISK])
def platform(request, open_directory):
    with LocalSageMaker(open_directory / "platform", storage=request.param) as platform:
        platform.boto_session.client("s3").put_object(Bucket=platform.default_bucket, Key="sourcedir", Body=OBJECT)
        yield platform


@pytest.mark.root
@pytest.mark.slow
def test_reach_no_file_no_socket_and_no_variable_of_a_platform(platform, open_directory):
    secret = platform.environment["AWS_SECRET_ACCESS_KEY"]
    processes = processes_of(platform.server_pid)
    sockets = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "seaweedfs" in line}
    files = list((open_directory / "platform").rglob("*"))
    assert any(secret in path.read_text(errors="replace") for path in files if path.is_file())
    environments = [f"/proc/{process}/environ" for process in processes]
    assert openable([*files, *environments, *sockets]) == []
    for process in processes:
        assert secret not in Path(f"/proc/{process}/cmdline").read_text()


@pytest.mark.root
@pytest.mark.slow
def test_find_two_ports_at_most_and_both_demand_a_signature(platform):
    endpoints = {urlsplit(platform.endpoint_url), urlsplit(platform.environment["AWS_ENDPOINT_URL_S3"])}
    ports = listening(processes_of(platform.server_pid))
    assert ports == {("127.0.0.1", endpoint.port) for endpoint in endpoints}
    for address, port in ports:
        for path in ("/", f"/{platform.default_bucket}/sourcedir", "/status"):
            for method in ("GET", "PUT", "POST", "DELETE"):
                answer = urllib3.request(method, f"http://{address}:{port}{path}", body=b"", retries=False)
                assert answer.status >= 400, (port, method, path)
    kept = platform.boto_session.client("s3").get_object(Bucket=platform.default_bucket, Key="sourcedir")
    assert kept["Body"].read() == OBJECT


@pytest.mark.root
@pytest.mark.seaweedfs
def test_who_own_the_storage_directory_are_refused(tmp_path):
    (tmp_path / "storage").mkdir()
    os.chown(tmp_path / "storage", STRANGER, STRANGER)
    with pytest.raises(LocalPlatformError, match=rf"belongs to user {STRANGER}, .*sudo chown -R 0"):
        LocalSageMaker(tmp_path, storage="disk").start()


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_are_shut_out_of_a_storage_directory_that_was_open(tmp_path):
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage").chmod(0o777)
    with LocalSageMaker(tmp_path, storage="disk"):
        assert stat.S_IMODE((tmp_path / "storage").stat().st_mode) == 0o700


A_PLATFORM = """
    import logging
    from estimators.local import LocalSageMaker
    with LocalSageMaker(arguments[0], storage=arguments[1]) as platform:
        s3 = platform.boto_session.client("s3")
        s3.put_object(Bucket=platform.default_bucket, Key="a", Body=b"kept")
        answer = s3.get_object(Bucket=platform.default_bucket, Key="a")["Body"].read().decode()
"""


@pytest.mark.root
@pytest.mark.parametrize("storage", ["memory", DISK])
@pytest.mark.slow
def test_run_platforms_of_their_own_without_root(storage, open_directory):
    os.chown(open_directory, STRANGER, STRANGER)
    assert run_as_stranger(A_PLATFORM, str(open_directory / "own"), storage, HOME=str(open_directory)) == "kept"
    assert {path.name for path in (open_directory / "own").iterdir()} <= {"access", "records", "storage"}


def test_who_may_rename_in_the_platforms_directory_keep_it_from_starting(open_directory):
    open_directory.chmod(0o777)
    with pytest.raises(LocalPlatformError, match="can be written to by other users"):
        LocalSageMaker(open_directory).start()


@pytest.mark.parametrize("by", ["owner", "link"])
def test_who_own_the_platforms_directory_keep_it_from_starting(open_directory, by):
    place = open_directory / "platform"
    if by == "owner":
        place.mkdir()
    else:
        (open_directory / "elsewhere").mkdir()
        place.symlink_to(open_directory / "elsewhere")
    os.chown(place, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(LocalPlatformError, match=f"{place} belongs to user {STRANGER}"):
        LocalSageMaker(place).start()
