"""One run of `weed`, from its start to its end: its files, its options, and its view of the machine.

Its components demand random tokens or certificates, or have their HTTP interface switched off. Where namespaces are
allowed, nobody else reaches them at all: it has its own network, and its own /tmp for sockets whose names can't be
chosen. The one entrance is the socket of its S3, in a directory closed to other users.
"""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path, PurePath
from typing import IO, BinaryIO

from estimators.hosts.failure import Exit
from estimators.local.api.signature import KeyPair
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.errors import INSTALL, LocalPlatformError
from estimators.local.executors import SupervisedProcess, SupervisedProgram
from estimators.local.private_directory import PRIVATE

logger = logging.getLogger(__name__)

_COMPONENTS = ("master", "volume", "filer", "s3", "admin")
_GRPC_OFFSET = 10_000  # SeaweedFS puts a component's gRPC port this far above its HTTP port
_STOP_SECONDS = 3.0  # it has put everything away by then, and may wait 30 s for idle connections of its own
_MOST_VOLUMES = 10_000
_HAS_VOLUMES = b"added volume server"
"""Text in the log once objects can be read. S3 answers before that, for 5 s if the volumes came too early."""
_VOLUMES_SECONDS = 15.0
"""Seconds after which it is used without such a line: a newer SeaweedFS may word it otherwise."""
_INSIDE = PurePath("/opt/ml")
"""Directory of a supervised program with namespaces, as the program sees it."""


def find_program() -> str:
    """Return the path of `weed`; raise LocalPlatformError if SeaweedFS is not installed."""
    beside_python = str(Path(sys.executable).parent)  # a virtual environment need not be activated
    program = shutil.which("weed", path=os.pathsep.join([beside_python, *os.get_exec_path()]))
    if program is None:
        raise LocalPlatformError(f"SeaweedFS (`weed`), which keeps the objects on disk, is missing. {INSTALL}")
    return program


def write_configuration(directory: Path, keys: KeyPair) -> None:
    """Make the directory that `weed` runs in, once for all its runs."""
    for name in ("data", "tmp"):
        (directory / name).mkdir(parents=True, mode=0o700)
    (directory / "weed").touch()
    _write_certificates(directory)
    identity = {
        "name": "smddp",
        "credentials": [{"accessKey": keys.access_key, "secretKey": keys.secret_key}],
        "actions": ["Admin"],
    }
    (directory / "seaweedfs.json").touch(mode=0o600)
    (directory / "seaweedfs.json").write_text(json.dumps({"identities": [identity]}))


class SeaweedFSProcess:
    """A `weed` that runs or ran, in a ``directory`` made by `write_configuration`.

    ``lock`` and ``lifeline`` stay open until it has ended; the lifeline also lists the sockets outside the directory.
    Raise HostStartError with the reason if it can't be started, LocalPlatformError if there are no free ports.
    """

    def __init__(
        self,
        program: str,
        *,
        data: Path,
        directory: Path,
        log: BinaryIO,
        isolated: bool,
        lock: IO[str],
        lifeline: Lifeline | None,
    ) -> None:
        self._directory = directory
        self._log = log
        self._log_path = Path(log.name)
        self._log_start = self._log_path.stat().st_size
        self._began = time.monotonic()
        self._has_volumes = False
        self._keep = (lock.fileno(),) if lifeline is None else (lock.fileno(), lifeline.fileno())
        self._binds = {str(_INSIDE / "weed"): program, str(_INSIDE / "data"): str(data), "/tmp": str(directory / "tmp")}  # noqa: S108
        self._ports = dict(zip(_COMPONENTS, range(18_000, 18_005), strict=True)) if isolated else _free_ports()
        self.isolated = isolated
        """Whether `weed` runs in namespaces of its own."""
        if lifeline is not None:
            for path in self.sockets_outside:
                lifeline.also_remove(path)
        if isolated:
            self._process = self._start(str(_INSIDE / "weed"), _INSIDE, _INSIDE / "data")
        else:
            self._process = self._start(program, directory, data)

    @property
    def endpoint_url(self) -> str:
        """The URL of its S3 on 127.0.0.1: on this machine's loopback, or on its own if it is isolated."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int:
        """The process ID of `weed`."""
        return self._process.pid

    @property
    def sockets_outside(self) -> tuple[Path, ...]:
        """The sockets that `weed` makes in this machine's /tmp if it has no namespaces."""
        if self.isolated:
            return ()
        names = (f"seaweedfs-{name}-grpc-{port + _GRPC_OFFSET}.sock" for name, port in self._ports.items())
        return tuple(Path("/tmp", name) for name in names)  # noqa: S108

    def connect(self) -> socket.socket:
        """Return a connection to its S3; raise OSError if nobody answers, or the objects can't be read yet."""
        self._require_volumes()
        connection = socket.socket(socket.AF_UNIX)
        # By a descriptor, because the path of a socket is limited to 108 bytes.
        descriptor = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:
            connection.connect(f"/proc/self/fd/{descriptor}/s3.sock")
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(descriptor)
        return connection

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how it ended, or None after ``timeout`` seconds."""
        return self._process.wait(timeout)

    def stop(self) -> None:
        """End `weed`, and remove its sockets outside its directory."""
        self._process.signal(signal.SIGTERM)
        if self._process.wait(_STOP_SECONDS) is None:
            self._process.kill()
            self._process.wait()
        self.remove_sockets()

    def remove_sockets(self) -> None:
        """Remove the sockets outside its directory, once `weed` has ended."""
        for path in self.sockets_outside:
            with suppress(FileNotFoundError, PermissionError):  # another user may have taken the name
                path.unlink()

    def _require_volumes(self) -> None:
        if self._has_volumes:
            return
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            text = log.read()
        if _HAS_VOLUMES not in text:
            if time.monotonic() - self._began < _VOLUMES_SECONDS:
                raise ConnectionRefusedError("SeaweedFS has not found its volumes yet")
            logger.warning("SeaweedFS does not say that it has found its volumes: it is used as it is")
        self._has_volumes = True

    def _start(self, program: str, home: PurePath, data: PurePath) -> SupervisedProcess:
        # Remove the sockets of an earlier run that was killed: `weed` does not listen where one exists.
        for name in ("s3.sock", "filer.sock"):
            (self._directory / name).unlink(missing_ok=True)
        return SupervisedProcess(
            SupervisedProgram(
                name="storage",
                argv=(program, "-logtostderr=true", "mini", *_options(data, self._ports)),
                environment=_environment(home),
                directory=str(home),
                isolated=self.isolated,
                ml_root=str(self._directory),
                binds=self._binds,
                private_network=True,
            ),
            log=self._log,
            keep=self._keep,
            umask=PRIVATE,
        )


def _environment(home: PurePath) -> dict[str, str]:
    """Return this process's variables and random tokens, without the settings of AWS's clients or another SeaweedFS."""
    tokens = {
        f"WEED_JWT_{name}_KEY": secrets.token_hex(32)
        for name in ("SIGNING", "SIGNING_READ", "FILER_SIGNING", "FILER_SIGNING_READ")
    }
    inherited: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WEED_"))
    }
    return {**inherited, **tokens, "HOME": str(home)}


def _options(data: PurePath, ports: Mapping[str, int]) -> list[str]:
    origin = f"http://127.0.0.1:{ports['s3']}"
    return [
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{component}.port={port}" for component, port in ports.items()),
        *(f"-{component}.port.grpc={port + _GRPC_OFFSET}" for component, port in ports.items()),
        "-s3.config=seaweedfs.json",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",  # else a DeleteBucket takes all objects with it
        f"-s3.allowedOrigins={origin}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.localSocket=s3.sock",
        "-filer.localSocket=filer.sock",
        f"-filer.allowedOrigins={origin}",
        "-disableHttp=true",
        "-admin.ui=false",
        "-webdav=false",
        # By default `weed` counts a GiB of free disk for each volume, and a bucket takes at least one volume: fifty
        # empty buckets would fill the disk of a laptop.
        f"-volume.max={_MOST_VOLUMES}",
        "-volume.preStopSeconds=0",
        "-master.telemetry=false",
    ]


def _free_ports() -> dict[str, int]:
    """Return a free port for each component, with its gRPC port, all below the range that the kernel hands out."""
    for _ in range(100):
        first = random.randrange(10_000, 22_000)  # noqa: S311 - any free ones will do
        ports = {component: first + index for index, component in enumerate(_COMPONENTS)}
        if all(_is_free(port) and _is_free(port + _GRPC_OFFSET) for port in ports.values()):
            return ports
    raise LocalPlatformError("No ten free ports between 10000 and 32000 on 127.0.0.1 for SeaweedFS.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


# Certificates for SeaweedFS's components, so that they talk only to programs with the one key made here.
#
# SeaweedFS's gRPC asks for no credentials of its own. With these files every connection, in either direction, is TLS
# with a certificate of one authority. The authority signs once, for this server, and its key is not stored.
_CERTIFIED = ("master", "volume", "filer", "s3", "admin", "worker", "client", "msg_broker", "msg_agent")
"""Components that read a certificate of their own from security.toml."""
_AUTHORITY = "smddp-authority"
_LIFETIME = timedelta(days=3650)  # longer than a platform runs
_CLOCK_SKEW = timedelta(days=1)


def _write_certificates(directory: Path) -> None:
    """Write the authority's certificate, a signed certificate with its key, and the security.toml that names them.

    SeaweedFS runs in ``directory``, and looks for security.toml there; nobody else may read it.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    except ModuleNotFoundError as error:
        raise LocalPlatformError(f"The module {error.name!r} is missing. {INSTALL}") from error

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> bytes:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name(_AUTHORITY))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(signing_key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )

    signing_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    (directory / "authority.crt").write_bytes(certificate(_AUTHORITY, signing_key, authority=True))
    (directory / "component.crt").write_bytes(certificate("smddp-component", key, authority=False))
    (directory / "component.key").touch(mode=0o600)
    (directory / "component.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    sections = (f'[grpc.{name}]\ncert = "component.crt"\nkey = "component.key"\n' for name in _CERTIFIED)
    (directory / "security.toml").write_text('[grpc]\nca = "authority.crt"\n' + "".join(sections))
