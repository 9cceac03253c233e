"""The process beside one host: it prepares the host's view of the machine, starts its program, and ends it.

The server of the platform's objects runs like a host, too: see ``estimators/local/storage``.

It is a separate program, ``python -I -S host_supervisor.py STATUS_FD [KEEP_FD…]``, and imports nothing of this project.
If a warm parent forks it, it forks the host's program, too, which begins with what the parent has imported:

1. Standard input brings one line of JSON (the program to start), then one byte for each signal to deliver. Its end
   means that the process which started the host is gone: the host dies with it.
2. The status descriptor returns one line of JSON: the program's process ID, or the reason why it could not be started,
   and whether namespaces are the reason.
3. The exit code is the program's. If the program was killed, the supervisor kills itself.

With namespaces, the program is PID 1 of its own process namespace (its children can't outlive it), ``/opt/ml`` is its
directory, and ``/etc/hosts`` and the host name are the job's; all without root, and invisible to the rest of the
machine. A private network has only its own loopback. Without namespaces, the supervisor collects the program's orphans
and kills them at the end.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x04000000, 0x10000000, 0x20000000
CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 0x1
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a machine under load. Any other error will keep a program from namespaces the next time, too."""
START_SECONDS = 15.0
"""Time limit in seconds for a program to set its signal handlers; see ``smddp.process.children``."""
LOOK_SECONDS = 0.05
OPT, ML, HOSTS, ENVIRONMENT = "/opt", "/opt/ml", "/etc/hosts", "/etc/environment"


class _NoNamespaces(Exception):  # noqa: N818  # as below
    """This machine allows no namespaces."""


class _NotStarted(Exception):  # noqa: N818  # it is told to the other side, never to a person as an error of ours
    """The forked child could not become the program."""


_libc = ctypes.CDLL(None, use_errno=True)


def main(descriptor: int, *kept: int) -> int:
    """Run one host from its start to its end, and return its program's exit code."""
    for own in (descriptor, *kept):  # the program must not inherit them
        os.set_inheritable(own, False)
    spec = json.loads(_read_line(0))
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    # A signal that was blocked when this process started would reach neither this process nor the program.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    for number in (signal.SIGCHLD, *spec["delivered"]):
        signal.signal(number, lambda *_: None)  # the wakeup pipe gets its number
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        if spec["isolated"]:
            _isolate(spec)
        program = _start(spec, descriptor)
    except (OSError, _NotStarted, _NoNamespaces) as error:
        no_namespaces = isinstance(error, _NoNamespaces)
        _tell(descriptor, {"error": _describe(error), "no_namespaces": no_namespaces})
        return 127
    _tell(descriptor, {"pid": program})
    os.close(descriptor)
    code = _wait(program, woken, spec["delivered"], is_init=spec["isolated"])
    _kill_children()
    if code == -signal.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    return 128 - code if code < 0 else code


def _isolate(spec: dict[str, Any]) -> None:
    try:
        _enter_namespaces(spec)
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise _NoNamespaces(_describe(error)) from error


def _enter_namespaces(spec: dict[str, Any]) -> None:
    # The order matters:
    # 1. Read the IDs before unshare: in the new user namespace they are not mapped yet.
    # 2. Deny setgroups before gid_map: without root, the kernel accepts the map only then.
    # 3. Make all mounts private before the first new one, so that none is visible outside.
    user, group = os.geteuid(), os.getegid()
    network = CLONE_NEWNET if spec["private_network"] else 0
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWPID | network)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    # 4. Open every source before the first mount, which may hide it: a source is mounted by its descriptor.
    binds = {target: os.open(source, os.O_PATH) for target, source in spec["binds"].items()}
    _mount_opt_ml(spec["ml_root"])
    for target, source in binds.items():
        _mount(f"/proc/self/fd/{source}", target, "", MS_BIND | MS_REC)
        os.close(source)
    if network:
        _raise_loopback()
    _mount_hosts(spec["hosts"])
    _mount_environment()
    name = spec["name"].encode()
    _call("sethostname", name, len(name))


def _mount_opt_ml(ml_root: str) -> None:
    """Put ``ml_root`` at /opt/ml, which need not exist: /opt becomes a private directory with its old entries."""
    # Open both first, and mount them by descriptor: the mount on /opt hides them, as ml_root may lie below /opt.
    opt, root = os.open(OPT, os.O_PATH | os.O_DIRECTORY), os.open(ml_root, os.O_PATH | os.O_DIRECTORY)
    entries = list(os.scandir(f"/proc/self/fd/{opt}"))
    _mount("tmpfs", OPT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for entry in entries:
        target = f"{OPT}/{entry.name}"
        if target == ML:
            continue
        if entry.is_symlink():
            Path(target).symlink_to(Path(entry.path).readlink())
            continue
        if entry.is_dir():
            Path(target).mkdir()
        else:
            Path(target).touch()
        _mount(entry.path, target, "", MS_BIND | MS_REC)
    Path(ML).mkdir()
    _mount(f"/proc/self/fd/{root}", ML, "", MS_BIND | MS_REC)
    os.close(opt)
    os.close(root)


def _raise_loopback() -> None:
    """Switch on the private network's one interface."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def _mount_hosts(hosts: dict[str, str]) -> None:
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {host}" for host, address in hosts.items())]
    _mount_file(HOSTS, ("\n".join(lines) + "\n").encode())


def _mount_environment() -> None:
    """Mount a private copy of /etc/environment, because a program that runs as root may write to the file."""
    if Path(ENVIRONMENT).exists():
        _mount_file(ENVIRONMENT, Path(ENVIRONMENT).read_bytes())


def _mount_file(target: str, content: bytes) -> None:
    """Replace a file's content, for this host alone."""
    file = Path(OPT, ".mounted")  # on the private /opt, and unlinked once it is mounted
    file.write_bytes(content)
    _mount(str(file), target, "", MS_BIND)
    file.unlink()


def _start(spec: dict[str, Any], status: int) -> int:
    """Fork and execute the program; return its process ID once it runs."""
    # A successful exec closes the child's end of this pipe, so an end without a reason means that the program runs.
    failed, failing = os.pipe2(os.O_CLOEXEC)
    program = os.fork()
    if program == 0:
        os.close(failed)
        _become(spec, failing, status)
    os.close(failing)
    with os.fdopen(failed, "rb") as report:
        reason = report.read()
    if reason:
        os.waitpid(program, 0)
        raise _NotStarted(reason.decode())
    return program


def _become(spec: dict[str, Any], failing: int, status: int) -> NoReturn:
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if _is_orphan(failing):
            os._exit(127)
        os.setsid()
        if spec["isolated"]:
            _mount_proc()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if status == 2:  # descriptor 2 is the supervisor's status: the program gets its output instead
            os.dup2(1, 2)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT, *spec["delivered"]):
            signal.signal(number, signal.SIG_DFL)
        if spec["open_files"] is not None:
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (spec["open_files"], most))
        os.chdir(spec["directory"])
        given = {name: os.environ[name] for name in spec["given"] if name in os.environ}
        _execute(spec["argv"], {**spec["environment"], **given}, failing)
    except (OSError, ValueError) as error:
        os.write(failing, _describe(error).encode(errors="replace"))
    finally:
        os._exit(127)


def _is_orphan(failing: int) -> bool:
    """Return whether the supervisor was killed before this process asked to die with it: its pipe has no reader.

    The parent's ID would not tell: in a PID namespace, a parent outside has none.
    """
    poller = select.poll()
    poller.register(failing, 0)
    return bool(poller.poll(0))


def _execute(argv: list[str], environment: dict[str, str], failing: int) -> NoReturn:
    # There if this process was forked from a warm parent. The program is then this Python, which has torch already.
    warm = sys.modules.get("smddp.process.warm_program")
    if warm is not None and argv[0] == sys.executable:
        if not (why := warm.why_not_execute(environment)):
            warm.execute(argv, environment, begun=failing)
        os.write(2, f"smddp: this host starts cold: {why}\n".encode())
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606
    except FileNotFoundError:
        searched = "" if "/" in argv[0] else f" in PATH ({environment.get('PATH', os.defpath)})"
        raise ValueError(f"no such program{searched}") from None


def _mount_proc() -> None:
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except PermissionError:
        # In a container whose own /proc is partly masked, the outer /proc stays: /proc/self is right in it.
        return


def _wait(program: int, woken: int, delivered: list[int], *, is_init: bool) -> int:
    """Deliver signals until the program has ended, and return its exit code; kill it when standard input ends.

    If a signal ended the program, the result is the signal's negative number. ``woken`` is the pipe with the numbers of
    received signals; ``delivered`` are those for the program. With ``is_init`` the program is PID 1 of a namespace,
    which ignores a signal unless it has a handler or waits for it: a signal that came too early comes again once there
    is a handler, within START_SECONDS.
    """
    control = [0]
    early: list[int] = []
    until = time.monotonic() + START_SECONDS
    while True:
        ended, result = os.waitpid(-1, os.WNOHANG)
        if ended == program:
            return os.waitstatus_to_exitcode(result)
        if ended:  # an orphan of the program
            continue
        ready, _, _ = select.select([*control, woken], [], [], LOOK_SECONDS if early else None)
        signals = [number for number in os.read(woken, 4096) if number in delivered] if woken in ready else []
        if 0 in ready:
            ordered = os.read(0, 64)
            signals += ordered or [signal.SIGKILL]
            control = control if ordered else []
        for number in signals:
            if is_init and not _catches(program, number):
                early.append(number)
            os.kill(program, number)
        # A program that was still starting ignored them. One that waits for them without a handler got them, and gets
        # no second one.
        for number in [number for number in early if _catches(program, number)]:
            early.remove(number)
            os.kill(program, number)
        if time.monotonic() > until:
            early.clear()


def _catches(program: int, number: int) -> bool:
    """Return whether a program that is PID 1 of its namespace has a handler for a signal."""
    # If the program's own /proc is mounted here, this process is outside its namespace and has no /proc/self. Otherwise
    # the outer /proc shows the program by its number here.
    seen = program if Path("/proc/self").exists() else 1
    try:
        status = Path(f"/proc/{seen}/status").read_text()
    except OSError:  # it has just ended
        return False
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def _kill_children() -> None:
    """Kill all descendants that are left, generation by generation: orphans become our children."""
    while True:
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    children = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            after_name = (process / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(after_name[1]) == os.getpid():
            children.append(int(process.name))
    return children


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    try:
        _call("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from None


def _call(name: str, *arguments: int | bytes) -> None:
    values = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in arguments]
    if getattr(_libc, name)(*values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        character = os.read(descriptor, 65536)
        if not character:
            sys.exit(127)
        line += character
    return line


def _tell(descriptor: int, answer: dict[str, Any]) -> None:
    os.write(descriptor, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
