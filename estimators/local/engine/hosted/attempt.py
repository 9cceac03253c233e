"""The hosts of one attempt of a job while they run: started together, followed, and ended together."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic

from estimators.hosts.failure import Exit, tells_outcome
from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.hosted.job_faults import JobFaults
from estimators.local.engine.hosted.logs import HostLog
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.hosted.record import HostedRecord, Request_co
from estimators.local.engine.hosted.states import Ending
from estimators.local.engine.instance_groups import Host
from estimators.local.engine.transfers.folder_sync import FolderSync
from estimators.local.executors import HostCluster, HostProcess, HostSpec

AFTER_A_FAILURE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL of the other hosts once one has failed or is lost."""


class AttemptHosts(Generic[Request_co]):
    """Runs a job's hosts to their end, which the job decides."""

    def __init__(self, job: HostedRecord[Request_co], platform: Platform, faults: JobFaults) -> None:
        self._job = job
        self._request = job.request
        self._platform = platform
        self._faults = faults

    def run(
        self,
        trees: Mapping[str, HostTree],
        logs: Mapping[str, HostLog],
        cluster: HostCluster,
        syncs: Sequence[FolderSync],
    ) -> tuple[Ending, dict[str, Exit]]:
        """Run the hosts to their end; return the attempt's ending, and the hosts' exits in the order they ended."""
        # 1. All hosts start at once. Leaving the pool waits for every start, so the end below kills also a host that
        #    started while another one could not.
        # 2. One watcher a host follows its output, and reports its exit to the job.
        # 3. The job decides the ending; then SIGTERM, and SIGKILL after the grace period.
        # 4. At the end: no more faults, every host killed, every line read, every metric sent, no transfer in progress.
        #    Only then the ending is read, for a host's last exit may still change it.
        specs = self._specify(trees)
        self._job.begin_training(len(specs))
        running: dict[str, HostProcess] = {}
        faults = self._faults.begin_attempt(trees, logs[specs[0].name].say)
        watchers: list[threading.Thread] = []

        def start(spec: HostSpec) -> None:
            process = cluster.start(spec)
            running[spec.name] = process
            followed = (spec.name, trees[spec.name], process, logs[spec.name])
            watcher = threading.Thread(target=self._watch, args=followed, daemon=True)
            watcher.start()
            watchers.append(watcher)

        try:
            with ThreadPoolExecutor(len(specs)) as pool:
                list(pool.map(start, specs))
            for sync in syncs:
                sync.start()
            faults.start(lambda host: running[host].signal(signal.SIGKILL))
            self._end_hosts(running.values(), self._job.await_ending())
        finally:
            faults.end()
            for process in running.values():
                process.kill()
            for watcher in watchers:
                watcher.join()
            self._job.metrics.settle()
            for sync in syncs:
                sync.abandon()
        return self._job.end_training()

    def _specify(self, hosts: Iterable[str]) -> list[HostSpec]:
        environment = host_environment(
            names=self._job.names_for_programs,
            region=self._platform.region,
            platform=self._platform.container_environment,
            requested=self._request.environment,
        )
        return [
            HostSpec(
                name=host,
                entrypoint=self._request.entrypoint,
                default_command=self._job.default_command,
                directory=self._job.working_directory,
                arguments=self._request.arguments,
                environment=environment,
            )
            for host in hosts
        ]

    def _watch(self, name: str, tree: HostTree, process: HostProcess, log: HostLog) -> None:
        """Follow a host's output to its end, then report its exit to the job."""
        try:
            with process.output as output:
                log.follow(output)
        finally:
            end = process.wait()
            assert end is not None
            try:
                if end.lost and tells_outcome(tree):  # a program that wrote its outcome ended by itself
                    end = Exit(code=end.code)
                if end.lost:
                    log.say(f"[platform] {name} was lost: {end.lost}")
            finally:  # else the job would wait for this host for ever
                self._job.host_ended(name, end)
            log.close()

    def _end_hosts(self, running: Collection[HostProcess], ending: Ending) -> None:
        """Send SIGTERM to every program, and SIGKILL to those that do not end within the grace period."""
        if ending in (Ending.DONE, Ending.CLOSE):
            return
        for process in running:
            process.signal(signal.SIGTERM)
        grace = self._platform.grace_seconds
        if ending in (Ending.FAILED, Ending.LOST):
            grace = min(grace, AFTER_A_FAILURE_SECONDS)
        if not self._job.await_exits(grace):
            for process in running:
                process.kill()


# The environment of a host's program, besides the executor's own variables.
#
# Later lines win:
#
# 1. defaults that an image would set;
# 2. the platform's: the job's region, and the engine's ``container_environment`` (endpoint, keys);
# 3. the request's Environment;
# 4. variables that name the job, which the platform owns.
_IMAGE = {
    "PYTHONUNBUFFERED": "1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def host_environment(
    *, names: Mapping[str, str], region: str, platform: Mapping[str, str], requested: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of every host of a job, merged in the order above."""
    return {
        **_IMAGE,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        **platform,
        **requested,
        **names,
    }


def resource_config(hosts: Sequence[Host], host: Host, cluster: HostCluster) -> dict[str, Any]:
    """Return the part of a host's resourceconfig.json that all kinds of jobs share."""
    return {
        "current_host": cluster.known_as(host.name),
        "current_instance_type": host.instance_type,
        "hosts": known_names(hosts, cluster),
        "network_interface_name": cluster.interface,
    }


def known_names(hosts: Sequence[Host], cluster: HostCluster) -> list[str]:
    """Return the names by which hosts know each other, in the order of the platform's names."""
    return [cluster.known_as(host.name) for host in sorted(hosts, key=lambda one: one.name)]
