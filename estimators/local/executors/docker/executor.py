"""Run each host of a job as a container, and the hosts of a job in a network of their own, by the docker program.

A container sees what it would see on AWS: the image's own program as PID 1, its directory at ``/opt/ml``, the other
hosts by the platform's names, and nothing of this process's environment.
"""

from __future__ import annotations

from estimators.local.directory_reaper_process import Lifeline
from estimators.local.executors.docker import images
from estimators.local.executors.docker.cluster import DockerCluster
from estimators.local.executors.docker.settings import Docker
from estimators.local.executors.executor import ClusterSpec


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
    def runs_images(self) -> bool:
        """True: a job's image is run."""
        return True

    @property
    def no_opt_ml(self) -> None:
        """None: containers have ``/opt/ml``."""

    def find_image(self, wanted: str) -> str:
        """Return the ID of the local image for a TrainingImage.

        Raise NoImageError, with the way to map one, if no local image fits; DockerError if Docker does not answer.
        """
        return images.find_image(self._settings, wanted)

    def cluster(self, spec: ClusterSpec) -> DockerCluster:
        """Prepare a cluster."""
        return DockerCluster(spec, self._settings, self._lifeline, orphan_seconds=self._orphan_seconds)
