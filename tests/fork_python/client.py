"""What stands for ``python``: it asks the fork server for the program, and lives as long, with its signals and its end.

Where the server can't serve (options of Python, another user), it becomes the real Python. ``fork_python`` puts the two
paths in.
"""

import contextlib
import os
import select
import signal
import socket
import sys

PYTHON, SERVER = "@PYTHON@", "@SERVER@"
UNHEEDED = {"PYTHONDEVMODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONWARNINGS"}


def program(words):
    """What is to be run, if the server can."""
    content = {"unbuffered": False}
    while words[:1] == ["-u"]:
        content["unbuffered"], words = True, words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        return {**content, "kind": "module", "program": words[1], "argv": ["-m", *words[2:]], "path": [os.getcwd()]}
    if words[:1] == ["-c"] and len(words) > 1:
        return {**content, "kind": "text", "program": words[1], "argv": ["-c", *words[2:]], "path": [""]}
    if words and not words[0].startswith("-") and os.path.isfile(words[0]):
        home = os.path.dirname(os.path.realpath(words[0]))
        return {**content, "kind": "script", "program": words[0], "argv": words, "path": [home]}
    return None


def inherited():
    """The descriptors besides the streams that this program was given on purpose."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # it was the listing's own
            continue
    return found


def main():
    content = program(sys.argv[1:])
    kept = inherited()
    server = socket.socket(socket.AF_UNIX)
    try:
        if content is None or UNHEEDED & set(os.environ):
            raise OSError("not for the server")
        server.connect(SERVER)
    except OSError:
        os.execv(PYTHON, [PYTHON, *sys.argv[1:]])
    # A handler would run between two instructions, and not in a call that blocks if the signal came just before it. So
    # the numbers go through a pipe, which is looked at beside the server's word.
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    content["ignored"] = [n for n in signal.Signals if signal.getsignal(n) == signal.SIG_IGN and n != signal.SIGPIPE]
    content["blocked"] = [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    forwarded = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    for signum in forwarded - set(content["ignored"]):
        signal.signal(signum, lambda *_: None)
    content.update(
        executable=sys.argv[0],
        directory=os.getcwd(),
        environ={**os.environ, "SMDDP_WARM": "0"},
        umask=os.umask(0),
        kept=kept,
    )
    os.umask(content["umask"])
    import json

    spaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "mnt", "uts", "pid")]
    socket.send_fds(server, [(json.dumps(content) + "\n").encode()], [0, 1, 2, *spaces, *kept])
    for descriptor in (0, 1, 2, *spaces, *kept):
        os.close(descriptor)  # the program alone has them: its end is their end
    status = b""
    while not status.endswith(b"\n"):
        ready, _, _ = select.select([server, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BrokenPipeError):  # the program has ended, and its status is there
                server.sendall(os.read(woken, 64))
        if server in ready:
            told = server.recv(64)
            if not told:
                os._exit(125)  # the server is gone
            status += told
    code = os.waitstatus_to_exitcode(int(status))
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
