"""Hosts as containers: what a program sees, how it is signalled, how it ends, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.docker.cli import docker
from estimators.local.executors import Exit, HostProcess, HostSpec, HostStartError
from estimators.local.executors.docker import bridge_address, container
from estimators.local.executors.docker.cluster import DockerCluster

Enter = Callable[..., DockerCluster]

pytestmark = pytest.mark.docker


def start(hosts: DockerCluster, *argv: str, name: str = "algo-1", **environment: str) -> HostProcess:
    return hosts.start(HostSpec(name=name, entrypoint=argv, environment=environment))


def python(program: str) -> tuple[str, ...]:
    return ("python3", "-u", "-c", textwrap.dedent(program))


def said(host: HostProcess) -> str:
    with host.output:
        text = b"".join(iter(lambda: host.output.read(4096), b"")).decode()
    assert host.wait(10) is not None
    return text


def await_line(host: HostProcess) -> str:
    return host.output.readline().decode().strip()


def left_of(job: str) -> list[str]:
    """Containers and networks that are still there."""
    label = f"label=smddp.job={job}"
    return [*docker("ps", "-aq", "--filter", label).split(), *docker("network", "ls", "-q", "--filter", label).split()]


def await_nothing_left(job: str) -> None:
    deadline = time.monotonic() + 15
    while left := left_of(job):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def container_of(job: str) -> str:
    return docker("ps", "-q", "--filter", f"label=smddp.job={job}")


def test_a_program_sees_what_it_would_on_aws_and_nothing_of_this_process(
    enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the user's own")
    monkeypatch.setenv("PIP_INDEX_URL", "http://a-mirror")
    given = {
        "TEXT": "two words # and\nanother = line",
        "EMPTY": "",
        "UMLAUT": "ü",
        "CARRIAGE": "returns\r",
        "DOCKER_HOST": "unix:///nowhere\n",  # nor is anything of it meant for docker itself
        "DOCKER_CONFIG": "/nowhere\n",
    }
    host = start(
        enter(),
        *python(
            """
            import json, os, socket
            open("/opt/ml/output/written", "w").write("by the program")
            print(json.dumps([os.getpid(), socket.gethostname(), os.listdir("/sys/class/net"), dict(os.environ)]))
            """
        ),
        **given,
    )
    pid, name, interfaces, environment = json.loads(said(host))
    assert (pid, name) == (1, "algo-1")
    assert DockerCluster.interface in interfaces
    assert (tmp_path / "algo-1" / "output" / "written").read_text() == "by the program"
    assert {name: environment.pop(name) for name in given} == given
    assert set(environment) - {"LC_CTYPE"} <= {"PATH", "HOSTNAME", "HOME", "OMP_NUM_THREADS"}


def test_hosts_reach_each_other_by_name_and_the_platform(enter: Enter) -> None:
    hosts = enter("algo-1", "algo-2")
    server = start(hosts, "python3", "-u", "-m", "http.server", "7777", name="algo-2")
    host = start(
        hosts,
        *python(
            f"""
            import socket, time
            for _ in range(100):
                try:
                    socket.create_connection(("algo-2", 7777)).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                print("never met")
            try:
                socket.create_connection(({bridge_address()!r}, 1), 5)
            except ConnectionRefusedError:
                print("reached")
            """
        ),
    )
    assert said(host) == "reached\n"
    server.kill()
    said(server)


def test_isolated_hosts_reach_each_other_and_nothing_else(enter: Enter) -> None:
    hosts = enter("algo-1", "algo-2", network_isolation=True)
    server = start(hosts, "python3", "-u", "-m", "http.server", "7777", name="algo-2")
    host = start(
        hosts,
        *python(
            f"""
            import socket, struct, time
            for _ in range(100):
                try:
                    socket.create_connection(("algo-2", 7777)).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                print("never met")
            own = socket.gethostbyname("algo-1")
            gateway = own.rpartition(".")[0] + ".1"
            for address in (gateway, {bridge_address()!r}):
                try:
                    socket.create_connection((address, 1), 1)
                except ConnectionRefusedError:
                    print("reached", address)
                except OSError:
                    pass
            """
        ),
    )
    assert said(host) == ""
    server.kill()
    said(server)


def test_all_that_it_says_arrives_however_fast_it_ends(enter: Enter) -> None:
    host = start(enter(), "sh", "-c", "seq 20000; echo err >&2; exit 3")
    # Docker carries the two streams apart: in a burst, one may come in the middle of a line of the other.
    assert said(host).replace("err\n", "") == "".join(f"{number}\n" for number in range(1, 20001))
    assert host.wait() == Exit(code=3)
    host.signal(signal.SIGTERM)
    host.kill()
    assert host.wait() == Exit(code=3)


def test_the_images_own_train_runs_with_the_requests_arguments(enter: Enter, image: str, job: str) -> None:
    hosts = enter()
    with pytest.raises(HostStartError, match=r'algo-1: its container could not be started: .*"train".*not found'):
        hosts.start(HostSpec(name="algo-1", arguments=("one", "two words"), environment={}))
    (created,) = docker("ps", "-aq", "--filter", f"label=smddp.job={job}").split()
    assert json.loads(docker("inspect", "--format", "{{json .Config.Cmd}}", created)) == ["train", "one", "two words"]


def test_signals_reach_process_1_alone(enter: Enter) -> None:
    host = start(
        enter(),
        *python(
            """
            import signal, subprocess, sys
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            def stop(*_):
                print("child still runs:", child.poll() is None)
                sys.exit(9)
            signal.signal(signal.SIGTERM, stop)
            print("ready")
            signal.pause()
            """
        ),
    )
    assert await_line(host) == "ready"
    host.signal(signal.SIGTERM)
    assert said(host) == "child still runs: True\n"
    assert host.wait() == Exit(code=9)


def test_a_program_without_a_handler_ignores_sigterm_and_is_killed_by_us(enter: Enter) -> None:
    host = start(enter(), *python("print('up'); import time; time.sleep(60)"))
    await_line(host)
    host.signal(signal.SIGTERM)
    assert host.wait(1) is None
    host.kill()
    said(host)
    assert host.wait() == Exit(code=137)


@pytest.mark.parametrize("command", [("kill",), ("rm", "--force")], ids=lambda command: command[0])
def test_a_container_that_others_end_is_lost(enter: Enter, job: str, command: tuple[str, ...]) -> None:
    host = start(enter(), "sleep", "60")
    docker(*command, container_of(job))
    said(host)
    end = host.wait()
    assert end is not None
    assert end.code == 137
    assert end.lost is not None and end.lost.startswith(
        ("its container was killed from outside", "its container is gone")
    )


def test_a_program_that_chose_the_exit_code_of_a_kill_is_not_said_to_be_killed(enter: Enter) -> None:
    host = start(enter(), "sh", "-c", "exit 137")
    assert said(host) == ""
    assert host.wait() == Exit(
        code=137, lost="its container ended with 137 (its first process was killed, or chose that exit code itself)"
    )


def test_limits_hold_and_a_lack_of_memory_is_told(enter: Enter) -> None:
    hosts = enter("algo-1", "algo-2", memory="64m", cpus=0.5)
    host = start(hosts, *python("print('x' * 10, flush=True); len(bytearray(500_000_000))"))
    told = start(hosts, "sh", "-c", "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us", name="algo-2")
    assert said(host) == "xxxxxxxxxx\n"
    end = host.wait()
    assert end == Exit(code=137, shortage="ran out of memory: its limit is 64m")
    assert "50000" in said(told)


def test_containers_are_gone_when_the_cluster_is_left_and_the_network_soon(prepare: Enter, job: str) -> None:
    with prepare("algo-1", "algo-2") as hosts:
        start(hosts, "true")
        start(hosts, "sleep", "60", name="algo-2")
        assert len(left_of(job)) == 3
    assert docker("ps", "-aq", "--filter", f"label=smddp.job={job}") == ""
    await_nothing_left(job)


def test_a_cluster_in_which_nothing_started_leaves_nothing(prepare: Enter, job: str) -> None:
    with prepare():
        pass
    await_nothing_left(job)


def test_nothing_is_left_when_this_process_is_killed(image: str, job: str, tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                f"""
                from pathlib import Path
                from estimators.local.executors import ClusterSpec, HostSpec
                from estimators.local.executors.docker import Docker, DockerExecutor
                spec = ClusterSpec(name={job!r}, image={image!r}, roots={{"algo-1": Path({str(tmp_path)!r})}})
                with DockerExecutor(Docker()).cluster(spec) as cluster:
                    argv = ("sh", "-c", "echo up; sleep 60")
                    host = cluster.start(HostSpec(name="algo-1", entrypoint=argv, environment={{}}))
                    print(host.output.readline(), flush=True)
                    host.wait()
                """
            ),
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert starter.stdout is not None
    assert b"up" in starter.stdout.readline()
    assert len(left_of(job)) == 2
    os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()
    await_nothing_left(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_a_container_wrote_belongs_to_the_user_of_the_platform(image: str, job: str, tmp_path: Path) -> None:
    uid, gid = 54321, Path("/var/run/docker.sock").stat().st_gid
    tmp_path.chmod(0o755)  # /tmp/pytest-of-… is closed to others
    root = tmp_path / "root"
    root.mkdir()
    os.chown(root, uid, gid)
    program = f"""
        import os
        from pathlib import Path
        from estimators.local.executors import ClusterSpec, HostSpec
        from estimators.local.executors.docker import Docker, DockerExecutor
        root = Path({str(root)!r})
        spec = ClusterSpec(name={job!r}, image={image!r}, roots={{"algo-1": root}})
        with DockerExecutor(Docker()).cluster(spec) as cluster:
            write = "umask 077; mkdir -p /opt/ml/a/b; touch /opt/ml/a/b/file; ln -s /etc/passwd /opt/ml/a/link"
            host = cluster.start(HostSpec(name="algo-1", entrypoint=("sh", "-c", write), environment={{}}))
            print(host.output.read().decode(), host.wait())
        for path in root.rglob("*"):
            assert path.lstat().st_uid == os.getuid() == {uid}, path
        print("all of", len(list(root.rglob("*"))))
    """
    read_anything = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # the venv may be root's alone
    done = subprocess.run(
        [
            *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *read_anything),
            *(sys.executable, "-c", textwrap.dedent(program)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": str(root)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all of 4\n"), done.stdout + done.stderr
    await_nothing_left(job)


def test_a_docker_that_hangs_does_not_hang_the_platform(
    enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start(enter(), "sleep", "600")
    hanging = tmp_path / "bin" / "docker"
    hanging.parent.mkdir()
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(container, "_SECONDS", 0.3)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{hanging.parent}:{os.environ['PATH']}")
        host.kill()
        assert said(host) == ""
        assert host.wait() == Exit(code=137)
