"""Hosts as processes: what a program sees, how it is signalled, and that nothing of it stays behind."""

from __future__ import annotations

import fnmatch
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
import uuid
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators.local.executors import (
    ClusterSpec,
    HostProcess,
    HostSpec,
    HostStartError,
    ProcessExecutor,
    SupervisedProcess,
    SupervisedProgram,
    host_supervisor,
    process,
    supervised_process,
)
from estimators.local.executors.process import (
    INHERITED,
    addresses_in,
    inherited_environment,
)
from tests.estimators.local.processes import processes_with

Start = Callable[..., HostProcess]

BOTH_WAYS = pytest.mark.parametrize(
    "isolated", [pytest.param(True, marks=pytest.mark.namespaces, id="namespaces"), pytest.param(False, id="fallback")]
)
NAMESPACES = pytest.mark.parametrize("isolated", [pytest.param(True, marks=pytest.mark.namespaces)])


@pytest.fixture
def start(isolated: bool, tmp_path: Path) -> Start:
    executor = ProcessExecutor(isolated=isolated)

    def start_host(*argv: str, name: str = "algo-1", **environment: str) -> HostProcess:
        roots = {host: tmp_path / host for host in dict.fromkeys([name, "algo-2"])}
        (roots[name] / "code").mkdir(parents=True, exist_ok=True)
        with executor.cluster(ClusterSpec(name="job", image="image", roots=roots)) as cluster:
            return cluster.start(HostSpec(name=name, entrypoint=argv, environment=environment))

    return start_host


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-u", "-c", textwrap.dedent(program))


def said(host: HostProcess) -> str:
    with host.output:
        text = b"".join(iter(lambda: host.output.read(4096), b"")).decode()
    host.wait()
    return text


def exit_code(host: HostProcess) -> int:
    end = host.wait()
    assert end is not None
    return end.code


def is_inherited(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in INHERITED)


def await_line(host: HostProcess) -> str:
    return host.output.readline().decode().strip()


def await_none_alive(token: str) -> None:
    deadline = time.monotonic() + 60
    while processes_with(token):
        assert time.monotonic() < deadline, f"still alive: {processes_with(token)}"
        time.sleep(0.01)


@BOTH_WAYS
def test_a_signal_arrives_that_the_starting_thread_blocks(start: Start) -> None:
    program = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
        print("up")
        time.sleep(20)
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        host = start(*python(program))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    assert await_line(host) == "up"
    host.signal(signal.SIGTERM)
    assert exit_code(host) == 4


@BOTH_WAYS
def test_lines_of_the_two_streams_do_not_mix(start: Start) -> None:
    program = """
        import os, signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.write(1, b"acc=9")
        os.write(2, b"3 warnings\\n")
        signal.sigwait([signal.SIGUSR1])
        os.write(1, b"1\\nacc=92")
    """
    host = start(*python(program))
    assert await_line(host) == "3 warnings"  # while the other line waits for its end
    host.signal(signal.SIGUSR1)
    assert said(host) == "acc=91\nacc=92\n"


@NAMESPACES
def test_a_program_sees_its_own_directory_at_opt_ml(start: Start, tmp_path: Path) -> None:
    host = start("sh", "-c", "pwd; echo written > /opt/ml/file")
    assert said(host) == "/opt/ml/code\n"
    assert (tmp_path / "algo-1" / "file").read_text() == "written\n"


@NAMESPACES
def test_the_rest_of_opt_stays_visible(start: Start) -> None:
    seen = said(start("ls", "-A", "/opt")).split()
    assert sorted(seen) == sorted({*(path.name for path in Path("/opt").iterdir()), "ml"})


@NAMESPACES
def test_two_hosts_have_different_directories_at_the_same_path(start: Start) -> None:
    writers = [start("sh", "-c", f"echo {name} > /opt/ml/me; cat /opt/ml/me", name=name) for name in ("one", "two")]
    assert [said(host) for host in writers] == ["one\n", "two\n"]


@NAMESPACES
def test_a_host_has_the_jobs_names_and_its_own(start: Start) -> None:
    host = start(*python("import socket as s; print(s.gethostname(), *map(s.gethostbyname, ['algo-1', 'algo-2']))"))
    name, *addresses = said(host).split()
    assert name == "algo-1"
    networks = [address.rpartition(".") for address in addresses]
    assert networks[0][0] == networks[1][0] != "127.0.0"
    assert [number for _, _, number in networks] == ["1", "2"]


@NAMESPACES
@pytest.mark.skipif(not Path("/etc/environment").exists(), reason="this machine has no /etc/environment")
def test_what_a_program_adds_to_the_environment_of_logins_is_its_hosts_alone(start: Start) -> None:
    before = Path("/etc/environment").read_text()
    assert said(start("sh", "-c", "echo MINE=1 >> /etc/environment && tail -n 1 /etc/environment")) == "MINE=1\n"
    assert Path("/etc/environment").read_text() == before


@NAMESPACES
def test_the_program_is_process_1(start: Start) -> None:
    assert said(start("sh", "-c", "echo $$; cat /proc/1/comm")) == "1\nsh\n"


@NAMESPACES
def test_nothing_of_it_is_seen_outside(start: Start) -> None:
    before = Path("/etc/hosts").read_text(), Path("/opt").stat().st_dev, Path("/opt/ml").exists()
    host = start("sh", "-c", "echo started; sleep 10")
    await_line(host)
    assert (Path("/etc/hosts").read_text(), Path("/opt").stat().st_dev, Path("/opt/ml").exists()) == before
    host.kill()
    said(host)


@NAMESPACES
def test_as_process_1_a_program_without_a_handler_ignores_sigterm_as_in_a_container(start: Start) -> None:
    host = start(*python("print('up'); import time; time.sleep(30)"))
    await_line(host)
    host.signal(signal.SIGTERM)
    assert host.wait(0.2) is None
    host.kill()
    said(host)
    assert exit_code(host) == 128 + signal.SIGKILL


@BOTH_WAYS
def test_a_stop_waits_for_a_program_that_still_starts(start: Start, isolated: bool) -> None:
    # Without namespaces SIGTERM ends the program at once: it must not set its handler first, however late SIGTERM is.
    late = f"""
    import signal, sys, time
    print("up")
    time.sleep({1 if isolated else 30})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    time.sleep(30)
    """
    host = start(*python(late))
    await_line(host)
    host.signal(signal.SIGTERM)
    said(host)
    assert exit_code(host) == (7 if isolated else 128 + signal.SIGTERM)


@BOTH_WAYS
def test_a_signal_reaches_a_program_that_waits_for_it(start: Start, isolated: bool) -> None:
    waiting = """
    import signal
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    print("ready")
    print(signal.sigwait([signal.SIGTERM]).name)
    """
    host = start(*python(waiting))
    await_line(host)
    host.signal(signal.SIGTERM)
    assert said(host) == "SIGTERM\n"


KILLED_EARLY = """if True:
    import os, signal, sys, time
    sys.path.insert(0, sys.argv[1])
    import host_supervisor
    call, supervisor = host_supervisor._call, os.getpid()
    def kill_first(name, *arguments):
        if name == "prctl":
            os.kill(supervisor, signal.SIGKILL)
            while os.getppid() == supervisor:
                time.sleep(0.01)
        call(name, *arguments)
    host_supervisor._call = kill_first
    program = {"argv": ["touch", sys.argv[2]], "directory": "/", "environment": dict(os.environ), "open_files": None}
    host_supervisor._start({**program, "isolated": False, "delivered": [], "given": []}, status=3)
"""


def test_a_supervisor_that_is_killed_as_it_forks_leaves_no_program(tmp_path: Path) -> None:
    place = str(Path(host_supervisor.__file__).parent)
    mark = tmp_path / "ran"
    process = subprocess.run([sys.executable, "-c", KILLED_EARLY, place, str(mark)], stdout=subprocess.PIPE)
    assert process.returncode == -signal.SIGKILL  # and all have closed the pipe
    assert not mark.exists()


@pytest.mark.parametrize("isolated", [False])
def test_without_namespaces_the_program_is_told_where_its_directory_is(start: Start, tmp_path: Path) -> None:
    root = tmp_path / "algo-1"
    assert said(start("sh", "-c", 'echo "$SAGEMAKER_BASE_DIR"; pwd')) == f"{root}\n{root}/code\n"


@BOTH_WAYS
def test_the_environment_is_what_was_given_and_nothing_else(
    start: Start, isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the user's own")
    names = {line.partition("=")[0] for line in said(start("env", GIVEN="1")).splitlines()}
    assert "GIVEN" in names
    own = {"SAGEMAKER_BASE_DIR", "LC_CTYPE", "TMPDIR", "OMP_NUM_THREADS", "SMDDP_MASTER_PORT"}
    assert {name for name in names - own - {"GIVEN"} if not is_inherited(name)} == set()


@BOTH_WAYS
@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -KILL $$; sleep 5", 137)])
def test_the_exit_code_is_the_programs(start: Start, isolated: bool, command: str, code: int) -> None:
    if isolated and code == 137:  # process 1 can't be killed from inside its namespace: only its child
        command = "sh -c 'kill -KILL $$'"
    host = start("sh", "-c", command)
    said(host)
    assert exit_code(host) == code


@BOTH_WAYS
def test_standard_error_comes_with_standard_output_and_standard_input_is_empty(start: Start, isolated: bool) -> None:
    program = """
        import os, signal, sys
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.write(1, b"out\\n")
        signal.sigwait([signal.SIGUSR1])
        os.write(2, b"err\\n")
        signal.sigwait([signal.SIGUSR1])
        os.write(1, sys.stdin.buffer.read() + b"end\\n")
    """
    host = start(*python(program))
    for line in ("out", "err"):
        assert await_line(host) == line
        host.signal(signal.SIGUSR1)
    assert said(host) == "end\n"


@BOTH_WAYS
def test_a_signal_reaches_the_program_alone(start: Start, isolated: bool) -> None:
    host = start(
        *python(
            """
            import signal, subprocess, sys, time
            child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(30)"])
            def stop(*_):
                print("child still runs:", child.poll() is None)
                sys.exit(9)
            signal.signal(signal.SIGTERM, stop)
            print("ready")
            while True: time.sleep(0.1)
            """
        )
    )
    assert await_line(host) == "ready"
    host.signal(signal.SIGTERM)
    assert said(host) == "child still runs: True\n"
    assert exit_code(host) == 9


@pytest.mark.parametrize("isolated", [False])
def test_orders_are_not_closed_while_a_signal_is_written(start: Start) -> None:
    class Orders:
        closed = was_closed_meanwhile = False

        def write(self, message: bytes) -> int:
            writing.set()
            time.sleep(0.3)
            self.was_closed_meanwhile = self.closed
            return len(message)

        def close(self) -> None:
            self.closed = True

    writing, orders = threading.Event(), Orders()
    host = start(*python("input()"))
    assert isinstance(host, SupervisedProcess)
    host.kill()
    host._orders.close()
    host._orders = orders  # type: ignore[assignment]
    signalling = threading.Thread(target=host.signal, args=(signal.SIGUSR1,))
    signalling.start()
    assert writing.wait(60)
    host.wait()
    signalling.join()
    assert not orders.was_closed_meanwhile
    assert orders.closed
    host.signal(signal.SIGUSR1)  # nothing is written any more
    host.output.close()


@BOTH_WAYS
def test_signals_to_a_host_that_has_ended_do_nothing(start: Start, isolated: bool) -> None:
    host = start("true")
    said(host)
    host.signal(signal.SIGTERM)
    host.kill()
    assert exit_code(host) == 0


@BOTH_WAYS
def test_what_the_program_started_ends_with_it(start: Start, isolated: bool) -> None:
    token = f"token-{uuid.uuid4().hex}"
    sleeper = f"setsid {sys.executable} -S -c 'import time; time.sleep(60)' {token} &"
    host = start("sh", "-c", f"{sleeper} while ! grep -qz {token} /proc/[0-9]*/cmdline 2>/dev/null; do :; done; exit 3")
    said(host)
    assert exit_code(host) == 3
    assert processes_with(token) == []


@BOTH_WAYS
@pytest.mark.parametrize("program", ["no-such-program", "./no-such-program", "/etc/hosts"])
def test_a_program_that_cannot_be_started_is_named(start: Start, isolated: bool, program: str) -> None:
    with pytest.raises(HostStartError, match=f"algo-1: {program} could not be started: .+"):
        start(program)


@BOTH_WAYS
def test_a_host_dies_when_the_process_that_started_it_is_killed(isolated: bool, tmp_path: Path) -> None:
    token = f"token-{uuid.uuid4().hex}"
    (tmp_path / "code").mkdir()
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                f"""
                import sys
                from pathlib import Path
                from estimators.local.executors import ClusterSpec, HostSpec, ProcessExecutor
                sleep = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
                command = f"setsid {{sys.executable}} -c 'import time; time.sleep(60)' {token} & exec " + " ".join(
                    [sys.executable, "-u", "-c", repr(sleep), "{token}"])
                spec = ClusterSpec(name="job", image="image", roots={{"algo-1": Path({str(tmp_path)!r})}})
                host = ProcessExecutor(isolated={isolated}).cluster(spec).__enter__().start(HostSpec(
                    name="algo-1", entrypoint=("bash", "-c", command), environment={{}}))
                print(host.output.read(100), flush=True)
                host.wait()
                """
            ),
        ],
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    assert b"up" in starter.stdout.readline()
    assert len(processes_with(token)) >= 2
    starter.kill()
    starter.communicate()
    await_none_alive(token)


@BOTH_WAYS
def test_a_host_dies_with_its_keeper(start: Start, isolated: bool) -> None:
    token = f"token-{uuid.uuid4().hex}"
    host = start(*python("print('up'); import time; time.sleep(60)"), token)
    await_line(host)
    status = Path(f"/proc/{host.pid}/status").read_text()
    supervisor = int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))
    os.kill(supervisor, signal.SIGKILL)
    said(host)
    assert exit_code(host) == 128 + signal.SIGKILL
    await_none_alive(token)


ADOPTING = """if True:
    import os, sys
    from pathlib import Path
    from estimators.local.executors import ClusterSpec, HostSpec, ProcessExecutor
    from smddp.process.process_tree import adopt_orphans
    adopt_orphans()
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    spec = ClusterSpec(name="job", image="image", roots={"algo-1": Path(sys.argv[1])})
    with ProcessExecutor(isolated=sys.argv[2] == "True").cluster(spec) as cluster:
        (Path(sys.argv[1]) / "code").mkdir(parents=True)
        host = cluster.start(HostSpec(name="algo-1", entrypoint=("sleep", "60"), environment={}))
        os.kill(int(children.read_text()), 9)
        print(host.wait().code, repr(children.read_text()))
"""


@BOTH_WAYS
def test_a_killed_keeper_and_its_program_are_reaped_where_orphans_are_adopted(isolated: bool, tmp_path: Path) -> None:
    words = [sys.executable, "-c", ADOPTING, str(tmp_path / "algo-1"), str(isolated)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert told.stdout == f"{128 + signal.SIGKILL} ''\n", told.stderr


def test_where_namespaces_are_barred_it_says_so_and_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "why_no_namespaces", lambda: "unshare: Operation not permitted")
    with caplog.at_level(logging.WARNING):
        assert not ProcessExecutor().isolated
    assert "user namespaces are barred here (unshare: Operation not permitted)" in caplog.text


@pytest.mark.namespaces
def test_namespaces_are_used_where_they_are_allowed() -> None:
    assert ProcessExecutor().isolated


@pytest.mark.parametrize("isolated", [False])
def test_a_host_that_hangs_while_it_starts_is_given_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = f"token-{uuid.uuid4().hex}.py"
    (tmp_path / token).write_text("import time; time.sleep(60)")
    monkeypatch.setattr(supervised_process, "SUPERVISOR", str(tmp_path / token))
    monkeypatch.setattr(supervised_process, "START_SECONDS", 0.2)
    with pytest.raises(HostStartError, match=r"algo-1: true could not be started: it did not run within 0\.2 seconds"):
        start("true")
    await_none_alive(str(tmp_path / token))


@pytest.mark.namespaces
def test_a_private_network_is_loopback_alone_and_a_bind_hides_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "bound").write_text("bound")
    (tmp_path / "ml").mkdir()
    (tmp_path / "ml" / "file").touch()
    program = python(
        """
        import socket
        print([line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line])
        print(open("/opt/ml/file").read())
        with socket.create_server(("127.0.0.1", 80)) as server:
            socket.create_connection(server.getsockname()).close()
        """
    )
    host = SupervisedProcess(
        SupervisedProgram(
            name="alone",
            argv=program,
            environment={"PATH": os.environ["PATH"]},
            directory="/",
            isolated=True,
            ml_root=str(tmp_path / "ml"),
            binds={"/opt/ml/file": str(tmp_path / "bound")},
            private_network=True,
        )
    )
    assert said(host).splitlines() == ["['lo']", "bound"]
    assert exit_code(host) == 0


HOSTS = ("algo-1", "algo-2", "algo-3")


@pytest.mark.parametrize("network", [0, 255 * 256 - 1])
def test_each_host_has_an_address_that_can_be_bound(network: int) -> None:
    addresses = addresses_in(network, HOSTS)
    assert tuple(addresses) == HOSTS
    assert len(set(addresses.values())) == 3
    for address in addresses.values():
        assert not address.startswith("127.0.")
        with socket.socket() as listener:
            listener.bind((address, 0))


def test_open_clusters_have_networks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_NETWORKS", 3)
    monkeypatch.setattr(process, "_networks", set())
    spec = ClusterSpec(name="job", image="image", roots={"algo-1": tmp_path})
    executor = ProcessExecutor(isolated=False)
    with executor.cluster(spec) as one, executor.cluster(spec) as two:
        with executor.cluster(spec) as three:
            assert len({cluster.known_as("algo-1") for cluster in (one, two, three)}) == 3
            with pytest.raises(HostStartError, match="3 jobs run"), executor.cluster(spec):
                pass
            last = three.known_as("algo-1")
        with executor.cluster(spec) as again:
            assert again.known_as("algo-1") == last


def test_an_open_cluster_holds_the_port_of_its_hosts(tmp_path: Path) -> None:
    spec = ClusterSpec(name="job", image="image", roots={"a": tmp_path})
    with ProcessExecutor(isolated=False).cluster(spec) as cluster:
        assert cluster.master_port == cluster.master_port
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", cluster.master_port))
        port = cluster.master_port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_the_users_aws_credentials_never_reach_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    assert "secret" not in inherited_environment(sys.executable, hosts=1).values()


def test_another_python_runs_the_hosts_and_finds_no_package_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smddp").mkdir()  # in the other's environment
    (tmp_path / "smddp" / "container.py").write_text("import sys; print(*sys.path, sys.prefix)")
    venv.create(tmp_path / "other", symlinks=True)
    site = next((tmp_path / "other" / "lib").glob("python3*/site-packages"))
    (site / "own.pth").write_text(f"{tmp_path}\n")
    monkeypatch.setenv("PYTHONPATH", "/packages/of/this/python")
    executor = ProcessExecutor(isolated=False, python=str(tmp_path / "other" / "bin" / "python"))
    (tmp_path / "algo-1" / "code").mkdir(parents=True)
    spec = ClusterSpec(name="job", image="image", roots={"algo-1": tmp_path / "algo-1"})
    with executor.cluster(spec) as cluster:
        seen = said(cluster.start(HostSpec(name="algo-1", environment={}))).split()
    assert seen[-1] == str(tmp_path / "other")
    assert str(site) in seen
    assert not {"/packages/of/this/python", sysconfig.get_path("purelib")} & {*seen}


def test_hosts_share_the_cores_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert inherited_environment(sys.executable, hosts=2)["OMP_NUM_THREADS"] == "4"
    assert inherited_environment(sys.executable, hosts=16)["OMP_NUM_THREADS"] == "1"


def test_hosts_share_the_gpus_of_the_machine_and_those_of_a_type_without_see_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: one'\necho 'GPU 1: two'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    roots = {name: tmp_path / name for name in ("algo-1", "algo-2", "algo-3")}
    spec = ClusterSpec(name="job", image="image", roots=roots, without_gpus=frozenset({"algo-2"}))
    program = python("import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['SMDDP_HOST_GPUS'])")
    with ProcessExecutor(isolated=False).cluster(spec) as cluster:
        seen = []
        for name, root in roots.items():
            (root / "code").mkdir(parents=True)
            seen.append(said(cluster.start(HostSpec(name=name, entrypoint=program, environment={}))))
    assert [each.strip() for each in seen] == ["0 1", "0", "1 1"]


def test_what_a_program_needs_to_run_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LC_ALL", "C")
    found = inherited_environment(sys.executable, hosts=1)
    assert (found["CUDA_VISIBLE_DEVICES"], found["LC_ALL"]) == ("1", "C")


def test_a_program_finds_this_python_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ContainerEntrypoint that runs ``python`` or ``torchrun`` means the image's, which this Python stands for."""
    monkeypatch.setenv("PATH", "/somewhere")
    found = inherited_environment(sys.executable, hosts=1)
    assert found["PATH"].endswith(":/somewhere")
    assert Path(shutil.which("python3", path=found["PATH"]) or "").parent == Path(sys.executable).parent
