"""A host that another one's mpirun starts ranks on: what its line says, and stops, without ssh."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from estimators.docker.docker_program import docker
from smddp.errors import DistributedError
from smddp.launch import mpi_host
from smddp.launch.mpi_host import connect
from smddp.process.process_tree import catches, started
from tests.docker.images import build_images

SERVE = """
import sys
from smddp.launch import mpi_host
mpi_host.LINE, mpi_host.SSHD = "line", "./sshd"
mpi_host.refuse_loopback = lambda host: None
mpi_host.Path.mkdir = lambda *_, **__: None  # of /run/sshd, which is root's
sys.exit(mpi_host.main(["--first", "algo-1"]))
"""

RANK = """#!/bin/sh
while [ ! -e launch ]; do sleep 0.05; done
OMPI_COMM_WORLD_RANK=0 sh -c '
    sleep 0.3  # it hears nothing yet
    trap "echo told >rank; exit 0" TERM USR2
    echo up >rank
    while :; do sleep 0.05; done'
sleep 300
"""

SCRIPT = """
import json, os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
rank, world = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
where = [os.uname().nodename, os.environ["SM_CURRENT_HOST"]]
sys.stdout.write(json.dumps([rank, world, *where, os.environ["ODD"], os.environ["MINE"], sys.argv[1:]]) + "\\n")
mode = json.loads(os.environ["SM_HPS"])["mode"]
while mode != "end":
    time.sleep(0.05)
    if mode == "fail" and rank == 3:
        sys.exit(9)
    if stop:
        time.sleep(0.3)
        sys.exit(75)
"""
ODD = "$(touch /tmp/odd); \"'\n;end"
HOSTS = ("algo-1", "algo-2")


@pytest.fixture
def host(start, tmp_path):
    """The host, whose sshd starts a rank once there is a file ``launch``; and the other end of its line."""
    (tmp_path / "sshd").write_text(RANK)
    (tmp_path / "sshd").chmod(0o700)
    return serve(start, tmp_path)


def serve(start, tmp_path):
    process = start("-c", SERVE)
    await_that((tmp_path / "line").is_fifo)
    await_that(lambda: catches(process.pid, signal.SIGUSR2))  # the last handler that it sets
    return process


def await_that(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def begin(line: Path) -> int:
    end = os.open(line, os.O_WRONLY)
    os.write(end, b"begun\n")
    return end


def test_a_stop_before_there_are_ranks_is_told_to_them_once_they_can_hear_it(host, tmp_path):
    end = begin(tmp_path / "line")
    host.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    (tmp_path / "launch").touch()
    await_that(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text() == "told\n")
    os.write(end, b'75 ""\n')
    os.close(end)
    assert host.wait(timeout=30) == 75


def test_sigusr1_reaches_the_ranks_and_is_no_stop_here(host, tmp_path):
    end = begin(tmp_path / "line")
    (tmp_path / "launch").touch()
    await_that(lambda: (tmp_path / "rank").exists() and (tmp_path / "rank").read_text() == "up\n")
    host.send_signal(signal.SIGUSR2)
    await_that(lambda: (tmp_path / "rank").read_text() == "told\n")
    os.write(end, b'0 ""\n')
    os.close(end)
    assert host.wait(timeout=30) == 0


def test_what_a_rank_leaves_behind_ends_though_orted_waits_for_its_output(start, tmp_path):
    left = "import os, sys\nif os.fork(): sys.exit()\nos.setsid()\nopen('left', 'w').write(str(os.getpid()))\n"
    (tmp_path / "left.py").write_text(left + "import time; time.sleep(600)")
    (tmp_path / "sshd").write_text(f"#!/bin/sh\nOMPI_COMM_WORLD_RANK=0 {sys.executable} left.py\nexec sleep 600")
    (tmp_path / "sshd").chmod(0o700)
    host = serve(start, tmp_path)
    end = begin(tmp_path / "line")
    await_that(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text())
    await_that(lambda: started(int((tmp_path / "left").read_text())) is None)
    os.write(end, b'0 ""\n')
    os.close(end)
    assert host.wait(timeout=30) == 0


def test_a_stop_before_the_first_host_has_come_ends_this_one(host):
    host.send_signal(signal.SIGTERM)
    assert host.wait(timeout=30) == 143


@pytest.mark.parametrize(("stop", "code"), [(True, 143), (False, 1)])
def test_a_first_host_that_ends_without_a_word_is_lost_unless_a_stop_came(host, tmp_path, stop, code):
    end = begin(tmp_path / "line")
    if stop:
        host.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    os.close(end)
    assert host.wait(timeout=30) == code
    assert ("algo-1, which runs mpirun, was lost" in host.stderr.read()) is not stop


def test_a_rank_that_failed_elsewhere_is_the_reason_here_too(start, tmp_path, monkeypatch):
    monkeypatch.setenv("SM_OUTPUT_DIR", str(tmp_path / "output"))
    (tmp_path / "output").mkdir()
    (tmp_path / "sshd").write_text("#!/bin/sh\nsleep 300\n")
    (tmp_path / "sshd").chmod(0o700)
    host = serve(start, tmp_path)
    end = begin(tmp_path / "line")
    os.write(end, b'1 "ValueError: bad (rank 1 of 2 on algo-1)\\nTraceback"\n')
    os.close(end)
    assert host.wait(timeout=30) == 1
    assert (tmp_path / "output" / "failure").read_text() == "ValueError: bad (rank 1 of 2 on algo-1)\nTraceback"


class Hosts:
    """Two containers in a network of their own, each with the job's /opt/ml."""

    def __init__(self, base: Path, image: str) -> None:
        self._base = base
        self._image = image
        self._name = f"smddp-mpi-{uuid.uuid4().hex[:8]}"
        docker("network", "create", self._name)

    def start(self, mode: str) -> None:
        parameters = {"mode": mode, "odd": ODD, "sagemaker_program": "train.py", "sagemaker_mpi_enabled": True}
        parameters |= {"sagemaker_mpi_num_of_processes_per_host": 2, "sagemaker_mpi_custom_mpi_options": "-x MINE=1"}
        for host in HOSTS:
            ml = self._base / host
            (ml / "input" / "config").mkdir(parents=True)
            (ml / "code").mkdir()
            (ml / "code" / "train.py").write_text(SCRIPT)
            resources = {"hosts": HOSTS, "current_host": host, "network_interface_name": "eth0"}
            encoded = {name: json.dumps(value) for name, value in parameters.items()}
            (ml / "input" / "config" / "hyperparameters.json").write_text(json.dumps(encoded))
            (ml / "input" / "config" / "resourceconfig.json").write_text(json.dumps(resources))
            place = ["--network", self._name, "--hostname", host, "--network-alias", host, "-v", f"{ml}:/opt/ml"]
            docker("run", "-d", "--name", self.container(host), *place, "-e", f"ODD={ODD}", self._image, "train")

    def container(self, host: str) -> str:
        return f"{self._name}-{host}"

    def log(self, host: str) -> str:
        return docker("logs", self.container(host))

    def ranks(self) -> list[list[object]]:
        """What the ranks have said until now."""
        return sorted(json.loads(line) for line in self.log("algo-1").splitlines() if line.startswith("["))

    def codes(self) -> list[str]:
        return docker("wait", *map(self.container, HOSTS)).split()

    def failure(self, host: str) -> str | None:
        path = self._base / host / "output" / "failure"
        return path.read_text() if path.exists() else None

    def remove(self) -> None:
        docker("rm", "-f", "-v", *map(self.container, HOSTS))
        docker("network", "rm", self._name)


@pytest.fixture(scope="module")
def image() -> str:
    return build_images().smddp


@pytest.fixture
def hosts(tmp_path: Path, image: str) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, image)
    yield hosts
    hosts.remove()


def await_ranks(hosts: Hosts) -> None:
    deadline = time.monotonic() + 60
    while len(hosts.ranks()) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.docker
class TestTwoContainers:
    def test_each_rank_has_its_own_host_s_environment_and_no_shell_sees_a_word_of_it(self, hosts):
        hosts.start("end")
        assert hosts.codes() == ["0", "0"]
        arguments = ["--mode", "end", "--odd", ODD]
        assert hosts.ranks() == [[rank, 4, *2 * [HOSTS[rank // 2]], ODD, "1", arguments] for rank in range(4)]
        for host in HOSTS:
            assert "tmp/odd" not in docker("diff", hosts.container(host))

    def test_a_stop_on_both_hosts_reaches_every_rank(self, hosts):
        hosts.start("run")
        await_ranks(hosts)
        docker("kill", "--signal", "TERM", *map(hosts.container, HOSTS))
        assert hosts.codes() == ["75", "75"]
        assert [hosts.failure(host) for host in HOSTS] == [None, None]

    def test_a_failing_rank_ends_both_hosts_with_its_code_and_reason(self, hosts):
        hosts.start("fail")
        assert hosts.codes() == ["9", "9"]
        reason = "Rank 3 of 4 on algo-2 ended with code 9, and said no reason."
        assert [hosts.failure(host) for host in HOSTS] == [reason, reason]

    @pytest.mark.parametrize(("lost", "left"), [HOSTS, HOSTS[::-1]])
    def test_a_lost_host_ends_the_other_soon_with_a_reason_that_names_it(self, hosts, lost, left):
        hosts.start("run")
        await_ranks(hosts)
        began = time.monotonic()
        docker("kill", hosts.container(lost))
        assert sorted(hosts.codes()) == ["1", "137"]
        assert time.monotonic() - began < 30
        assert re.fullmatch(rf"{lost}.* was lost: its container or its host has ended, or .*\.", hosts.failure(left))


def test_a_host_that_does_not_answer_is_named_in_time(monkeypatch):
    monkeypatch.setattr(mpi_host, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(mpi_host, "refuse_loopback", lambda host: None)
    monkeypatch.setattr(mpi_host, "SSH", ("sh", "-c", "echo no route to $0 >&2; exit 255"))
    with pytest.raises(DistributedError, match=r"algo-7 did not answer within 0 s \(no route to algo-7\)"):
        connect(["algo-7"])


def test_a_host_without_an_address_is_named():
    with pytest.raises(DistributedError, match=r"nowhere\.invalid has no address here"):
        connect(["nowhere.invalid"])


def test_a_host_that_has_not_begun_to_listen_gets_no_file_in_the_line_s_place(monkeypatch, tmp_path):
    monkeypatch.setattr(mpi_host, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(mpi_host, "LINE", f"{tmp_path}/line")
    monkeypatch.setattr(mpi_host, "refuse_loopback", lambda host: None)
    monkeypatch.setattr(mpi_host, "SSH", ("timeout", "5", "sh", "-c", 'exec sh -c "$1"'))
    with pytest.raises(DistributedError, match="algo-7 did not answer"):
        connect(["algo-7"])
    assert not (tmp_path / "line").exists()


def test_hosts_that_are_this_machine_are_refused(monkeypatch):
    with pytest.raises(DistributedError, match=r"localhost is 127\.0\.0\.1: .* LocalSageMaker\(executor=Docker\(\)\)"):
        connect(["localhost"])
