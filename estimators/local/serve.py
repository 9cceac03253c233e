"""The server's own process: `python -m estimators.local.serve LIFELINE`, started and watched by `ServerProcess`.

It reads its settings as one line of JSON from its standard input, and answers with one line on its standard output. On
SIGTERM, or as soon as its parent is gone, it ends every job, removes its directory, and exits. If it is killed, the
reaper removes the directory once the last process that holds the lifeline, a descriptor, has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from botocore.config import Config

from estimators.docker.docker_program import DockerError, require_engine
from estimators.local.access import ACCOUNT_ID, Access, bypassed_hosts
from estimators.local.api.bounded_server import MAX_CONNECTIONS
from estimators.local.chaos import Chaos
from estimators.local.chaos.chaos import PLATFORM_AGENT
from estimators.local.directory_reaper import remove_tree
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.engine.records import NOTHING_KEPT, RecordStore, RecordStoreError
from estimators.local.errors import INSTALL, LocalPlatformError
from estimators.local.executors import Executor, HostStartError, ProcessExecutor
from estimators.local.executors.docker import Docker, DockerExecutor, bridge_address
from estimators.local.executors.process import inherited_environment
from estimators.local.executors.settings import Processes
from estimators.local.executors.slurm import SlurmExecutor, own_address
from estimators.local.executors.warm_hosts import WarmHosts
from estimators.local.private_directory import make_private
from estimators.local.server_process import ServerSettings
from estimators.local.storage import Gateway, SeaweedFS
from smddp.process.inherited import reset_inherited
from smddp.process.log_format import start_log
from smddp.process.warm_parent import VARIABLE

logger = logging.getLogger(__name__)

ENGINE_S3 = Config(
    max_pool_connections=64, read_timeout=120, retries={"mode": "standard"}, user_agent_extra=PLATFORM_AGENT
)
"""Several jobs read at once, each in several threads. S3 is on this machine: two minutes of silence are a failure. Not
less: the join of an upload's parts is silent, for seconds a GB, and can't be asked for again."""
ENGINE_REQUESTS = Config(user_agent_extra=PLATFORM_AGENT)

OPEN_FILES = 4 * 2 * MAX_CONNECTIONS + 256
"""Four servers (API and S3, on 127.0.0.1 and on Docker's bridge), each of whose connections takes a second descriptor:
the file of a large body, or the connection to SeaweedFS. The rest is for jobs, logs and the process's own clients."""


class _Stop(Exception):  # noqa: N818 - not an error: it unwinds whatever the main thread is doing
    """SIGTERM has arrived."""


def main() -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    reset_inherited()
    lifeline = Lifeline(int(sys.argv[1]))
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _stop)
    settings = ServerSettings.from_json(sys.stdin.readline())
    start_log()
    with contextlib.suppress(_Stop), contextlib.ExitStack() as stack:
        try:
            access = _start(settings, lifeline, stack)
        except (LocalPlatformError, HostStartError) as error:
            _tell({"error": str(error)})
        except RecordStoreError as error:
            _tell({"error": f"{error.message} Move its directory away: the jobs are forgotten then."})
        else:
            _tell({"endpoint_url": access.endpoint_url, "s3_endpoint_url": access.s3_endpoint_url})
            _await_end(parent)
    remove_tree(Path(settings.run_directory))


def _stop(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stop


def _start(settings: ServerSettings, lifeline: Lifeline, stack: contextlib.ExitStack) -> Access:
    """Start everything; `stack` ends it in reverse order, the jobs first."""
    run_directory, client_directory = Path(settings.run_directory), Path(settings.client_directory)
    tempfile.tempdir = str(run_directory)  # so that nothing of this process's own stays in /tmp
    open_files = _raise_open_files()
    storage = None
    if settings.storage_directory is not None:
        storage = SeaweedFS(
            data=Path(settings.storage_directory), run=run_directory, keys=settings.keys, lifeline=lifeline
        )
        stack.callback(storage.close)
        storage.launch()
    chaos = Chaos()
    listener, access = _open("127.0.0.1", settings.port, settings, storage, chaos, stack)
    listeners = [listener]
    executor: Executor
    if isinstance(settings.executor, Processes):
        warm = None
        if settings.executor.runs_here and os.environ.get(VARIABLE) != "0" and sys.platform == "linux":
            warm = WarmHosts(inherited_environment(sys.executable, hosts=1))
            stack.callback(warm.close)
        executor = ProcessExecutor(
            lifeline=lifeline, open_files=open_files, python=str(settings.executor.python), warm=warm
        )
        environment = access.client_environment(client_directory, bypasses=bypassed_hosts(os.environ))
    elif isinstance(settings.executor, Docker):
        executor = DockerExecutor(settings.executor, lifeline=lifeline)
        address = _bridge_address()
    else:
        executor = SlurmExecutor(settings.executor)
        address = settings.executor.address or own_address()
    if not isinstance(settings.executor, Processes):
        listener, inside = _open(address, 0, settings, storage, chaos, stack)
        listeners.append(listener)
        environment = inside.container_environment()
    try:
        from estimators.local.api.server import HttpServer
    except ModuleNotFoundError as error:
        raise LocalPlatformError(f"The module {error.name!r} is missing. {INSTALL}") from error
    from estimators.local.engine import Engine, Platform

    access.write_files(client_directory)
    clients = access.boto_session()
    s3 = clients.client("s3", config=ENGINE_S3)
    store = _open_store(settings)
    stack.callback(store.close)
    platform = Platform(
        directory=run_directory / "jobs",
        rescue=run_directory.parent,
        s3=s3,
        logs=clients.client("logs", config=ENGINE_REQUESTS),
        cloudwatch=clients.client("cloudwatch", config=ENGINE_REQUESTS),
        executor=executor,
        container_environment=environment,
        region=access.region,
        grace_seconds=settings.grace_seconds,
        store=store,
        chaos=chaos,
    )
    engine = Engine(platform, account_id=ACCOUNT_ID)
    for listener in listeners:
        server = HttpServer(listener, engine=engine, keys=settings.keys, body_directory=run_directory, chaos=chaos)
        server.start()
        stack.callback(server.close)
    stack.callback(engine.close)
    if storage is not None:
        storage.wait_until_ready()
        storage.watch(engine.fail)
    _create_bucket(s3, access)
    engine.go_on()
    return access


def _open_store(settings: ServerSettings) -> RecordStore:
    """Open the store of job records, beside the objects on disk."""
    if settings.storage_directory is None:
        return NOTHING_KEPT
    directory = Path(settings.storage_directory).parent / "records"
    make_private(directory)
    return RecordStore(directory / "jobs.sqlite")


def _raise_open_files() -> int:
    """Raise this process's limit of open files to its maximum; return the user's limit, which jobs get.

    Programs that use select(), or that close every possible descriptor, need a low limit.
    """
    users, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < OPEN_FILES:
        logger.warning("%d files may be open here (ulimit -Hn); all connections at once need %d", most, OPEN_FILES)
    return users


def _open(
    address: str,
    port: int,
    settings: ServerSettings,
    storage: SeaweedFS | None,
    chaos: Chaos,
    stack: contextlib.ExitStack,
) -> tuple[socket.socket, Access]:
    """Listen at one of this machine's addresses; return the socket, and the access to the platform through it."""
    listener = stack.enter_context(_listen(address, port))
    endpoint_url = s3_endpoint_url = f"http://{address}:{listener.getsockname()[1]}"
    if storage is not None:
        gateway = Gateway(
            connect=storage.connect,
            keys=settings.keys,
            chaos=chaos,
            address=address,
            port=settings.s3_port if address == "127.0.0.1" else 0,
        )
        gateway.start()
        stack.callback(gateway.close)
        s3_endpoint_url = gateway.endpoint_url
    access = Access(
        endpoint_url=endpoint_url, s3_endpoint_url=s3_endpoint_url, keys=settings.keys, region=settings.region
    )
    return listener, access


def _create_bucket(s3: Any, access: Access) -> None:
    """Create the default bucket, unless the storage has kept it from an earlier run."""
    with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists):
        if access.region == "us-east-1":  # S3 refuses this one region as a LocationConstraint
            s3.create_bucket(Bucket=access.default_bucket)
        else:
            s3.create_bucket(
                Bucket=access.default_bucket, CreateBucketConfiguration={"LocationConstraint": access.region}
            )


def _bridge_address() -> str:
    """Return the address at which containers reach this process."""
    try:
        require_engine()
        return bridge_address()
    except DockerError as error:
        raise LocalPlatformError(str(error)) from error


def _listen(address: str, port: int) -> socket.socket:
    try:
        return socket.create_server((address, port), backlog=128)
    except OSError as error:
        raise LocalPlatformError(f"Port {port} of {address} can't be opened: {error.strerror}.") from error


def _tell(answer: dict[str, str]) -> None:
    """Answer the parent, once; later prints go to the log."""
    with contextlib.suppress(BrokenPipeError):  # the parent is gone; `_await_end` notices it
        print(json.dumps(answer), flush=True)  # noqa: T201 - the protocol with the parent
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _await_end(parent: int) -> None:
    """Wait until the parent is gone: its pipe closes, or, if a fork of it still has the pipe, its ID changes."""
    pipe = sys.stdin.fileno()
    while os.getppid() == parent:
        readable, _, _ = select.select([pipe], [], [], 0.5)
        if readable and not os.read(pipe, 1):
            break
    logger.info("the parent is gone")


if __name__ == "__main__":
    main()
    logging.shutdown()
    with contextlib.suppress(OSError):  # of a full disk
        sys.stdout.flush()
    os._exit(0)  # nothing is left to end; the interpreter would free moto's modules, in half a second
