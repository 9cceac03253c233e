"""The address of Docker's own bridge, where a server on this machine must listen for containers.

Containers on other networks reach it, too, except isolated ones. It is not 0.0.0.0, so no other machine knows the
address. But Linux accepts packets for it on any interface, so a neighbour that routes them here reaches it as well: the
signature of each request keeps strangers out.
"""

from __future__ import annotations

import fcntl
import socket
import struct

from estimators.docker import docker_program
from estimators.docker.docker_program import DockerError, docker

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def bridge_address() -> str:
    """Return the IPv4 address of Docker's default bridge.

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
