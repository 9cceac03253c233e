"""Run each host of a job as a container, and the hosts of a job in a network of their own, by the docker program.

A container sees what it would see on AWS: the image's own program as PID 1, its directory at ``/opt/ml``, the other
hosts by the platform's names, and nothing of this process's environment. ``container_reaper.py`` removes the network
and its containers, however this process ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import struct
import uuid
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from pathlib import PurePath, PurePosixPath
from types import TracebackType

from estimators.docker import docker_program
from estimators.docker.docker_program import DockerError, bind, docker
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.executors.docker.container import HostContainer, create, not_started
from estimators.local.executors.docker.container_reaper import LABEL
from estimators.local.executors.docker.container_reaper_process import ContainerReaperProcess
from estimators.local.executors.executor import ClusterSpec, HandOverError, HostSpec, NoImageError
from estimators.local.executors.settings import Docker
from smddp.display_text import shown_names

logger = logging.getLogger(__name__)

_SHOWN = 8
_SHOWN_CHARACTERS = 100
_IDENTITY = re.compile(r"sha256:[0-9a-f]{64}")
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_ML_ROOT = "/opt/ml"
_CUT_OFF = ("--internal", "--opt", "com.docker.network.bridge.inhibit_ipv4=true")
"""Options of a network without a way out, in which this machine itself has no address either."""
_SUBNET_TRIES = 20


class DockerCluster:
    """A `HostCluster` of containers.

    ``lifeline`` belongs to the directory that they write in. ``orphan_seconds`` is their time to end after SIGTERM when
    this process is gone.
    """

    interface = "eth0"

    def __init__(
        self, spec: ClusterSpec, settings: Docker, lifeline: Lifeline | None = None, *, orphan_seconds: int = 0
    ) -> None:
        self._spec = spec
        self._lifeline = lifeline
        self._orphan_seconds = orphan_seconds
        self._unsure = False
        self._settings = settings
        self._roots = {host: str(root.absolute()) for host, root in spec.roots.items()}
        self._name = f"smddp-{uuid.uuid4().hex[:12]}"
        self._labels = (f"--label={LABEL}={self._name}", f"--label=smddp.job={spec.name}")

    def known_as(self, host: str) -> str:
        """Return the host's name, which is in every host's ``/etc/hosts``."""
        return host

    def ml_root(self, host: str) -> PurePath:  # noqa: ARG002  # the same for all
        """Return ``/opt/ml``."""
        return PurePosixPath(_ML_ROOT)

    def start(self, host: HostSpec) -> HostContainer:
        """Start the host's program, in the image's own directory.

        Raise HostStartError with Docker's reason, or its subclass `ExecutorError` if Docker itself is at fault.
        """
        name = f"{self._name}-{host.name}"
        entrypoint = (f"--entrypoint={host.entrypoint[0]}",) if host.entrypoint else ()
        options = (
            f"--hostname={host.name}",
            f"--network={self._name}",
            f"--mount={bind(self._roots[host.name], _ML_ROOT)}",
            *(f"--mount={bind(str(source.absolute()), target)}" for target, source in self._spec.mounts.items()),
            "--log-driver=none",  # the attached docker command reads it all
            *self._labels,
            *self._limits(),
            *entrypoint,
        )
        words = (*(host.entrypoint[1:] if host.entrypoint else host.default_command), *host.arguments)
        environment = {"OMP_NUM_THREADS": str(self._threads()), **host.environment}
        try:
            # Docker's own name service forgets a host when it ends, maybe before another host has looked it up.
            addresses = self._network.result()
            names = (f"--add-host={other}:{address}" for other, address in addresses.items())
            at = (f"--ip={addresses[host.name]}", *names)
            create(name, (*options, *at, self._spec.image, *words), environment, keep=self._reaper.alive)
        except DockerError as error:
            self._unsure = True
            raise not_started(f"{host.name}: its container could not be made: {error}") from error
        return HostContainer(name, host.name, self._settings)

    def __enter__(self) -> DockerCluster:
        self._reaper = ContainerReaperProcess(
            self._name,
            self._lifeline,
            self._spec.image,
            self._roots.values(),
            shared=map(str, self._spec.mounts.values()),
            orphan_seconds=self._orphan_seconds,
        )
        self._maker = ThreadPoolExecutor(1)  # it takes as long as bringing the input, so both run at once
        self._network = self._maker.submit(self._make_network)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Return once the containers are removed and their files handed over; the network is removed later.

        Raise HandOverError if the files are not handed over and no other error is on its way.
        """
        self._maker.shutdown()
        self._reaper.begin(unsure=self._unsure or self._network.exception() is not None)
        try:
            self._reaper.await_end()
        except HandOverError as problem:
            if error is None:
                raise
            logger.warning("%s: %s", self._name, problem)

    def _make_network(self) -> dict[str, IPv4Address]:
        """Make the network, and return each host's address in it."""
        for _ in range(_SUBNET_TRIES):
            # 1. Docker takes a host's address only in a subnet that it was given. So make a network, read the subnet
            #    that Docker chose, and remove the network.
            # 2. Make it again with this subnet. If another network has got the subnet meanwhile, start again.
            self._docker_network("create", *self._network_options(), self._name)
            subnets = self._docker_network("inspect", "--format={{range .IPAM.Config}}{{.Subnet}} {{end}}", self._name)
            self._docker_network("rm", self._name)
            subnet = next((subnet for subnet in subnets.split() if "." in subnet), "")
            # The first address is the gateway's.
            addresses = (
                dict(zip(self._roots, islice(IPv4Network(subnet).hosts(), 1, None), strict=False)) if subnet else {}
            )
            if len(addresses) < len(self._roots):
                raise DockerError(f"Docker's subnet {subnets!r} has no IPv4 addresses for {len(self._roots)} hosts.")
            try:
                self._docker_network("create", *self._network_options(), f"--subnet={subnet}", self._name)
            except DockerError as error:
                if "overlap" not in str(error):
                    raise
                continue  # another network has got it meanwhile
            return addresses
        raise DockerError(f"Docker gave {_SUBNET_TRIES} subnets for a network, and each to somebody else, too.")

    def _network_options(self) -> tuple[str, ...]:
        return (*(_CUT_OFF if self._spec.network_isolation else ()), *self._labels)

    def _docker_network(self, *arguments: str) -> str:
        return docker("network", *arguments, timeout=docker_program.SECONDS, keep=[self._reaper.alive])

    def _limits(self) -> list[str]:
        settings = self._settings
        shared = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return [
            f"--shm-size={shared}",  # as on any Linux; Docker's own 64 MiB are too little for a DataLoader's workers
            *(["--gpus=all"] if settings.gpus else []),
            *([f"--cpus={settings.cpus:g}"] if settings.cpus is not None else []),
            *([f"--memory={settings.memory}", f"--memory-swap={settings.memory}"] if settings.memory else []),
        ]

    def _threads(self) -> int:
        """Return how many threads each program may use, so that programs do not compete for cores."""
        cores = len(os.sched_getaffinity(0)) / len(self._roots)
        return max(1, int(min(cores, self._settings.cpus or cores)))


class DockerExecutor:
    """An `Executor` of containers.

    ``lifeline`` belongs to the directory that the containers write in. It stays open until they are removed and the
    files of other users are handed over, even if this process is killed. ``orphan_seconds`` is the containers' time to
    end after SIGTERM when this process is gone.
    """

    def __init__(self, settings: Docker, *, lifeline: Lifeline | None = None, orphan_seconds: int = 0) -> None:
        self._settings = settings
        self._orphan_seconds = orphan_seconds
        self._lifeline = lifeline

    @property
    def cannot_pipe(self) -> None:
        """None: named pipes reach the hosts."""

    @property
    def python(self) -> None:
        """None: a job's image is run."""

    @property
    def no_opt_ml(self) -> None:
        """None: containers have ``/opt/ml``."""

    def find_image(self, wanted: str) -> str:
        """Return the ID of the local image for a TrainingImage.

        Raise NoImageError, with the way to map one, if no local image fits; DockerError if Docker does not answer.
        """
        return find_image(self._settings, wanted)

    def cluster(self, spec: ClusterSpec) -> DockerCluster:
        """Prepare a cluster."""
        return DockerCluster(spec, self._settings, self._lifeline, orphan_seconds=self._orphan_seconds)


def find_image(settings: Docker, wanted: str) -> str:
    """Return the ID of the local image for a TrainingImage: it stays valid if a later build takes the name.

    Raise NoImageError, with the way to map one, if no local image fits; DockerError if Docker does not answer.
    """
    pattern = settings.pattern_for(wanted)
    name = wanted if pattern is None else settings.images[pattern]
    try:
        return _identity(name)
    except DockerError as error:
        if "no such image" not in str(error).lower() and "invalid reference format" not in str(error):
            raise
    here = f"Images here: {_images_here()}."
    if pattern is not None:
        raise NoImageError(
            f"{wanted} is mapped (by {pattern!r}) to {name}, and there is no such image on this machine. Build it "
            f"(`smddp image build`), pull it, or map to another one. {here}"
        )
    rules = (
        f"none of the patterns {', '.join(map(repr, settings.images))} matches it"
        if settings.images
        else "nothing maps it"
    )
    raise NoImageError(
        f"{wanted} is no image on this machine, and {rules}. Map it: "
        f'LocalSageMaker(executor=Docker(images={{"{wanted}": "IMAGE"}})) or `smddp local up --docker --image '
        f"'{wanted}=IMAGE'`; * stands for anything, and `smddp image build` builds an image. {here}"
    )


def _identity(name: str) -> str:
    # After "--", Docker takes no name in a request for an option.
    said = docker("image", "inspect", "--format", "{{.Id}}", "--", name, timeout=docker_program.SECONDS)
    if not _IDENTITY.fullmatch(said):
        raise DockerError(f"docker image failed: asked for the ID of {name!r}, it said {said[:_SHOWN_CHARACTERS]!r}")
    return said


def _images_here() -> str:
    listed = docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", timeout=docker_program.SECONDS).split()
    names = [name for name in listed if "<none>" not in name]
    return shown_names(names, most=_SHOWN) or "none"


def bridge_address() -> str:
    """Return the IPv4 address of Docker's default bridge, where a server on this machine must listen for containers.

    Containers on other networks reach it, too, except isolated ones. It is not 0.0.0.0, so no other machine knows the
    address. But Linux accepts packets for it on any interface, so a neighbour that routes them here reaches it as well:
    the signature of each request keeps strangers out.

    Raise DockerError if it has none, or the engine is not on this very machine.
    """
    # Ask for the device, because Docker does not always know the gateway of this one network.
    form = '{{index .Options "com.docker.network.bridge.name"}}'
    device = docker("network", "inspect", "--format", form, "bridge", timeout=docker_program.SECONDS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", device.encode()))
        except OSError as error:
            raise DockerError(
                f"This machine has no network interface {device!r} with an IPv4 address ({error.strerror}), which is "
                "the Docker engine's bridge: the engine is elsewhere, in a virtual machine (Docker Desktop) or "
                "rootless. The local platform needs one that shares this machine's files and addresses."
            ) from error
    return socket.inet_ntoa(answer[20:24])
