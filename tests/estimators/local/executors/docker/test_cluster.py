"""Hosts as containers: what a program sees, how it is signalled, how it ends, and that nothing stays behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from estimators.docker import docker_program
from estimators.docker.docker_program import docker
from estimators.hosts.failure import Exit
from estimators.local.executors import (
    ExecutorError,
    HostProcess,
    HostSpec,
    HostStartError,
)
from estimators.local.executors.docker import Docker, bridge_address, container_reaper_process
from estimators.local.executors.docker.executor import DockerCluster

Enter = Callable[..., DockerCluster]
USER = 54321

pytestmark = pytest.mark.docker


def start(hosts: DockerCluster, *argv: str, name: str = "algo-1", **environment: str) -> HostProcess:
    return hosts.start(HostSpec(name=name, entrypoint=argv, environment=environment))


def python(*programs: str) -> tuple[str, ...]:
    return ("python3", "-u", "-c", "".join(map(textwrap.dedent, programs)))


MEETS = """
    import socket, time
    for _ in range(100):
        try:
            socket.create_connection(("algo-2", 7777)).close()
            break
        except OSError:
            time.sleep(0.1)
    else:
        print("never met")
"""


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
    deadline = time.monotonic() + 60
    while left := left_of(job):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def fake_docker(directory: Path, script: str) -> str:
    """A PATH on which `docker` is a shell script."""
    directory.mkdir()
    (directory / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "docker").chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


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
            MEETS,
            f"""
            try:
                socket.create_connection(({bridge_address()!r}, 1), 5)
            except ConnectionRefusedError:
                print("reached")
            """,
        ),
    )
    assert said(host) == "reached\n"
    server.kill()
    said(server)


def test_a_host_is_known_by_its_name_before_it_starts_and_when_it_has_ended(enter: Enter) -> None:
    hosts = enter("algo-1", "algo-2", "algo-3")
    assert said(start(hosts, "true", name="algo-2")) == ""
    looks = "import socket\nprint(*(socket.gethostbyname(f'algo-{n}').rpartition('.')[2] for n in (1, 2, 3)))"
    assert said(start(hosts, *python(looks))) == "2 3 4\n"


def test_a_network_is_made_though_its_subnet_is_given_to_somebody_else_first(
    prepare: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its network is made again with its addresses, another one takes them, once."""
    real, other = shutil.which("docker"), f"smddp-test-{os.getpid()}"
    path = fake_docker(
        tmp_path / "bin",
        f'''
        case "$1 $2 $*" in "network create "*--subnet=*)
            if mkdir "$0.taken" 2>/dev/null; then
                for word in "$@"; do
                    case "$word" in --subnet=*) {real} network create "$word" {other} >/dev/null; esac
                done
            fi
        esac
        exec {real} "$@"''',
    )
    monkeypatch.setenv("PATH", path)
    try:
        with prepare("algo-1", "algo-2") as hosts:
            assert said(start(hosts, "getent", "hosts", "algo-2")).split()[1] == "algo-2"
        assert docker("network", "inspect", other)
    finally:
        docker("network", "rm", other)


def test_isolated_hosts_reach_each_other_and_nothing_else(enter: Enter) -> None:
    hosts = enter("algo-1", "algo-2", network_isolation=True)
    server = start(hosts, "python3", "-u", "-m", "http.server", "7777", name="algo-2")
    host = start(
        hosts,
        *python(
            MEETS,
            f"""
            own = socket.gethostbyname("algo-1")
            gateway = own.rpartition(".")[0] + ".1"
            for address in (gateway, {bridge_address()!r}):
                try:
                    socket.create_connection((address, 1), 1)
                except ConnectionRefusedError:
                    print("reached", address)
                except OSError:
                    pass
            """,
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
    with pytest.raises(HostStartError, match=r'algo-1: its container could not be started: .*"train".*not found') as it:
        hosts.start(HostSpec(name="algo-1", arguments=("one", "two words"), environment={}))
    assert not isinstance(it.value, ExecutorError)
    (created,) = docker("ps", "-aq", "--filter", f"label=smddp.job={job}").split()
    assert json.loads(docker("inspect", "--format", "{{json .Config.Cmd}}", created)) == ["train", "one", "two words"]


def test_signals_reach_process_1_alone(enter: Enter) -> None:
    host = start(
        enter(),
        *python(
            """
            import signal, subprocess, sys, time
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            def stop(*_):
                print("child still runs:", child.poll() is None)
                sys.exit(9)
            signal.signal(signal.SIGTERM, stop)
            print("ready")
            while True: time.sleep(0.1)
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


def test_a_kill_that_docker_notes_late_is_known(
    enter: Enter, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = "{ sleep 2; echo 'kill 9'; sleep 1; echo 'die '; exec sleep 600; }"
    fake_docker(tmp_path / "bin", f'[ "$1" = events ] && {notes}; exec {shutil.which("docker")} "$@"')
    monkeypatch.setattr(docker_program, "program", lambda: str(tmp_path / "bin" / "docker"))
    host = start(enter(), "sleep", "60")
    docker("kill", container_of(job))
    said(host)
    assert host.wait() == Exit(code=137, lost="its container was killed from outside (exit code 137)")


def test_a_docker_that_does_not_tell_who_ended_a_container_is_told(
    enter: Enter, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_docker(tmp_path / "bin", f'[ "$1" = events ] && exit 1; exec {shutil.which("docker")} "$@"')
    monkeypatch.setattr(docker_program, "program", lambda: str(tmp_path / "bin" / "docker"))
    host = start(enter(), "sleep", "60")
    docker("kill", container_of(job))
    said(host)
    end = host.wait()
    assert end is not None
    assert end.lost is not None
    assert end.lost.startswith("its container ended with 137")
    assert "who ended it is not known, because Docker's events do not tell its end" in caplog.text


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


@pytest.fixture
def home(open_directory: Path) -> Path:
    """Of the other user."""
    return open_directory / "home"


@pytest.fixture
def as_another_user(home: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a Python program as a user who may use Docker and is not root; it works in its home."""
    docker_group = Path("/var/run/docker.sock").stat().st_gid
    (home / "jobs" / "root").mkdir(parents=True)
    for path in (home, *home.rglob("*")):
        os.chown(path, USER, docker_group)
    become = ("setpriv", f"--reuid={USER}", f"--regid={docker_group}", "--clear-groups")
    read_anything = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # the venv may be root's alone

    def begin(program: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*become, *read_anything, sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "HOME": str(home)},
            start_new_session=True,
        )

    return begin


WRITE = "umask 077; mkdir -p /opt/ml/a/b; touch /opt/ml/a/b/file; ln -s /etc/passwd /opt/ml/a/link; echo written"


def program_with_a_cluster(job: str, image: str, home: Path, *then: str, script: str = WRITE) -> str:
    return "\n".join(
        [
            "from pathlib import Path",
            "from estimators.local.directory_reaper_process import DirectoryReaperProcess",
            "from estimators.local.executors import ClusterSpec, HandOverError, HostSpec",
            "from estimators.local.executors.docker import Docker, DockerExecutor",
            f"home = Path({str(home)!r})",
            'mounts = {"/mine": home / "shared"} if (home / "shared").exists() else {}',
            'roots = {"algo-1": home / "jobs" / "root"}',
            f"spec = ClusterSpec(name={job!r}, image={image!r}, roots=roots, mounts=mounts)",
            "def run():",
            '    reaper = DirectoryReaperProcess(home / "jobs")',
            "    with DockerExecutor(Docker(), lifeline=reaper.lifeline).cluster(spec) as cluster:",
            f'        argv = ("sh", "-c", {script!r})',
            '        host = cluster.start(HostSpec(name="algo-1", entrypoint=argv, environment={}))',
            "        print(host.output.readline().decode(), flush=True)",
            "        host.wait()",
            *then,
        ]
    )


@pytest.mark.root
def test_what_a_container_wrote_belongs_to_the_user_of_the_platform(
    as_another_user: Callable[..., subprocess.Popen[str]], image: str, job: str, home: Path
) -> None:
    look = "print(sorted((path.name, path.lstat().st_uid) for path in (home / 'jobs' / 'root').rglob('*')))"
    said, problems = as_another_user(program_with_a_cluster(job, image, home, "run()", look)).communicate()
    assert said.endswith(f"{[(name, USER) for name in ('a', 'b', 'file', 'link')]}\n"), said + problems
    await_nothing_left(job)


@pytest.mark.root
def test_of_a_directory_that_hosts_share_the_user_gets_what_the_hosts_wrote(
    as_another_user: Callable[..., subprocess.Popen[str]], image: str, job: str, home: Path
) -> None:
    (home / "shared").mkdir()
    (home / "shared" / "roots own").touch()
    write = "touch /mine/written; ls /mine"
    look = "print(sorted((path.name, path.lstat().st_uid) for path in (home / 'shared').iterdir()))"
    said, problems = as_another_user(
        program_with_a_cluster(job, image, home, "run()", look, script=write)
    ).communicate()
    assert said == f"roots own\n\n{[('roots own', 0), ('written', USER)]}\n", said + problems
    await_nothing_left(job)


@pytest.mark.root
def test_files_that_can_not_be_handed_over_are_an_error_that_says_why(
    as_another_user: Callable[..., subprocess.Popen[str]], image: str, job: str, home: Path, tmp_path: Path
) -> None:
    fake_docker(tmp_path / "bin", f'[ "$1" = run ] && echo no room >&2 && exit 1; exec {shutil.which("docker")} "$@"')
    then = (
        "from estimators.local.executors.docker import container_reaper_process",
        f"container_reaper_process.program = lambda: {str(tmp_path / 'bin' / 'docker')!r}",
        "try: run()",
        "except HandOverError as error: print('told:', error)",
    )
    said, problems = as_another_user(program_with_a_cluster(job, image, home, *then)).communicate()
    assert "told: what the hosts wrote as other users could not be given to the user who" in said, problems
    assert said.endswith(": no room\n")


@pytest.mark.root
def test_when_the_platform_is_killed_its_directory_goes_with_what_others_wrote_in_it(
    as_another_user: Callable[..., subprocess.Popen[str]], image: str, job: str, home: Path
) -> None:
    program = program_with_a_cluster(job, image, home, "run()", script=f"{WRITE}; sleep 60")
    platform = as_another_user(program)
    assert platform.stdout is not None
    assert platform.stdout.readline() == "written\n", platform.communicate()
    os.killpg(platform.pid, signal.SIGKILL)
    platform.wait()
    await_nothing_left(job)
    deadline = time.monotonic() + 30
    while (home / "jobs").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_gpus_are_asked_of_docker(enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    fake_docker(tmp_path / "bin", f'[ "$1" = create ] && echo "$@" > {asked}; exec {shutil.which("docker")} "$@"')
    monkeypatch.setattr(docker_program, "program", lambda: str(tmp_path / "bin" / "docker"))
    with suppress(HostStartError):  # a machine without GPUs
        start(enter(gpus=True), "true")
    assert " --gpus=all " in asked.read_text()


def test_a_limit_that_docker_refuses_is_the_requests_fault(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "__post_init__", lambda _: None)
    with pytest.raises(HostStartError, match=r"could not be made: .*memory limit") as refusal:
        start(enter(memory="1m"), "true")
    assert not isinstance(refusal.value, ExecutorError)


@pytest.mark.parametrize(
    "script", ["exec sleep 600", "echo Cannot connect to the Docker daemon >&2; exit 1"], ids=["hangs", "away"]
)
def test_a_docker_that_hangs_or_is_away_is_said_to_be(
    prepare: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_docker(tmp_path / "bin", script)
    monkeypatch.setattr(docker_program, "SECONDS", 0.3)
    monkeypatch.setattr(docker_program, "program", lambda: str(tmp_path / "bin" / "docker"))
    began = time.monotonic()
    with pytest.raises(ExecutorError, match=r"did not end within|Cannot connect"), prepare() as hosts:
        start(hosts, "true")
    assert time.monotonic() - began < 60


def test_a_reaper_whose_docker_hangs_is_not_waited_for(
    prepare: Enter, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "hangs"
    hangs = f'[ "$1" = rm ] && while [ -e {flag} ]; do sleep 0.1; done; exec {shutil.which("docker")} "$@"'
    fake_docker(tmp_path / "bin", hangs)
    monkeypatch.setattr(container_reaper_process, "program", lambda: str(tmp_path / "bin" / "docker"))
    monkeypatch.setattr(container_reaper_process, "REMOVED_SECONDS", 0.3)
    try:
        with prepare() as hosts:
            start(hosts, "sleep", "60")
            flag.touch()
        assert "Docker has not removed the containers of" in caplog.text
    finally:
        flag.unlink(missing_ok=True)
    await_nothing_left(job)


def test_a_docker_that_hangs_does_not_hang_the_platform(
    enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = start(enter(), "sleep", "600")
    path = fake_docker(tmp_path / "bin", "exec sleep 600")
    monkeypatch.setattr(docker_program, "SECONDS", 0.3)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", path)
        host.kill()
        assert said(host) == ""
        assert host.wait() == Exit(code=137)
