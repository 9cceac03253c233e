"""Find the local image for a job's TrainingImage."""

from __future__ import annotations

import re

from estimators.docker import docker_program
from estimators.docker.docker_program import DockerError, docker
from estimators.local.executors.docker.settings import Docker
from estimators.local.executors.executor import NoImageError

_SHOWN = 8
_SHOWN_CHARACTERS = 100
_IDENTITY = re.compile(r"sha256:[0-9a-f]{64}")


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
