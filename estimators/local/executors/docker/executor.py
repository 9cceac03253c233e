"""Run each host of a job as a container, and the hosts of a job in a network of their own, by the docker program.

A container sees what it would see on AWS: the image's own program as PID 1, its directory at ``/opt/ml``, the other
hosts by the platform's names, and nothing of this process's environment.
"""

from __future__ import annotations

import fcntl
import re
import socket
import struct

from estimators.docker import docker_program
from estimators.docker.docker_program import DockerError, docker
from estimators.local.directory_reaper_process import Lifeline
from estimators.local.executors.docker.cluster import DockerCluster
from estimators.local.executors.docker.settings import Docker
from estimators.local.executors.executor import ClusterSpec, NoImageError

_SHOWN = 8
_SHOWN_CHARACTERS = 100
_IDENTITY = re.compile(r"sha256:[0-9a-f]{64}")
_SIOCGIFADDR = 0x8915  # linux/sockios.h


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
    return (", ".join(names[:_SHOWN]) or "none") + (", …" if len(names) > _SHOWN else "")


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
