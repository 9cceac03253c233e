"""``@smddp.hydra.main``: run a Hydra script as a rank of its job, as ``smddp.run`` runs any other."""

from __future__ import annotations

import functools
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

import hydra
from omegaconf import DictConfig

from smddp.distributed import current_membership
from smddp.hydra.composed import (
    ONE_RUN,
    ConfigFiles,
    agree,
    compose_config,
    own_part,
    recorded_values,
    to_overrides,
    write_files,
)
from smddp.job import Job
from smddp.training.run import run_with_config
from smddp.watch import Watch

_SHOW = {"-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "-i", "--info", "-sc", "--shell-completion"}


def main(
    config_path: str | None = None,
    config_name: str | None = None,
    version_base: str | None = None,
    *,
    preflight_collectives: bool = False,
    watch: bool | Watch = True,
) -> Callable[[Callable[..., None]], Callable[[], NoReturn]]:
    """Compose the config by Hydra and run the function as a rank of its job, in place of ``@hydra.main``.

    In a job, its hyperparameters are the overrides: ``{"lr": 0.1, "model.depth": 3, "optimizer": "adam"}``. Elsewhere
    overrides come from the command line, with Hydra's own options: ``lr=0.1 --config-name large``, ``--cfg job``. The
    function takes the parameters that `smddp.run` allows: ``job``, and any other for the config. The composed config is
    recorded as ``job.hyperparameters``, and so in each checkpoint; rank 0 writes it to ``job.output_data_dir/.hydra``.

    Args:
        config_path: The directory of the config files, relative to the script's; or ``pkg://`` and a package.
        config_name: The primary config, without ``.yaml``.
        version_base: The Hydra version whose defaults apply; None is the installed version.
        preflight_collectives: As for `smddp.run`.
        watch: As for `smddp.run`.

    Returns:
        A decorator. The decorated function takes no arguments and ends the process, as `smddp.run` does.

    Examples:
        >>> @main(config_path="conf", config_name="config")
        ... def train(config: DictConfig, job: Job) -> None:
        ...     print(config.lr, job.name)
    """

    def decorate(function: Callable[..., None]) -> Callable[[], NoReturn]:
        if not set(signature(function).parameters) - {"job"}:
            raise TypeError(
                f"{function.__name__}() has no parameter for its config: write {function.__name__}(config, job)"
            )
        script = Path(function.__code__.co_filename).absolute()
        files = ConfigFiles(path=_absolute(config_path, script.parent), name=config_name, version_base=version_base)

        @functools.wraps(function)
        def start() -> NoReturn:
            script_run = _ScriptRun(function, files, script)

            @functools.wraps(function)
            def on_each_rank(**arguments: Any) -> None:
                script_run.settle_config()
                function(**arguments)

            run_with_config(
                on_each_rank, script_run.read_config, preflight_collectives=preflight_collectives, watch=watch
            )

        return start

    return decorate


class _ScriptRun:
    """One run of a script: its config is composed before the ranks join, and compared afterwards."""

    def __init__(self, function: Callable[..., None], files: ConfigFiles, script: Path) -> None:
        self._function = function
        self._files = files
        self._script = script
        self._config: DictConfig | None = None
        """The composed config with Hydra's own part, or None before."""
        self._given: DictConfig | None = None
        """The config that the script's function gets."""

    def read_config(self, hint: Any, job: Job) -> tuple[DictConfig, Mapping[str, Any]]:
        """Compose the config from the job's hyperparameters, or from the command line outside of a job."""
        del hint  # a DictConfig, or a dataclass with the same keys
        files = self._files
        if job.on_sagemaker or job.hyperparameters:
            overrides = to_overrides(job.hyperparameters)
        elif _only_shows(sys.argv[1:]):
            self._show(job)
        else:
            given = _parse(sys.argv[1:])
            path = files.path if given.config_path is None else _absolute(given.config_path, self._script.parent)
            files = replace(files, path=path, name=given.config_name or files.name)
            overrides = list(given.overrides)
        self._config = compose_config(files, overrides, job, self._script.stem)
        self._given = own_part(self._config)
        return self._given, recorded_values(self._given)

    def settle_config(self) -> None:
        """Check that all ranks have composed the same config, and save it; all ranks must call it, after joining."""
        membership = current_membership()
        assert self._config is not None, "there is a parameter for the config"
        assert self._given is not None
        assert membership is not None, "run_with_config has joined"
        agree(self._given, membership)
        if membership.cluster.is_main:
            write_files(self._config)

    def _show(self, job: Job) -> NoReturn:
        """Let Hydra answer on rank 0, and end the process."""
        if job.cluster.is_main:
            hydra.main(self._files.path, self._files.name, self._files.version_base)(self._function)()
        raise SystemExit(0)


def _absolute(config_path: str | None, directory: Path) -> str | None:
    if config_path is None or config_path.startswith("pkg://"):
        return config_path
    return str((directory / config_path).resolve())


@dataclass(frozen=True, kw_only=True, slots=True)
class _CommandLine:
    """The arguments after the script's name."""

    overrides: tuple[str, ...]
    """``key=value``, and Hydra's other forms."""
    config_name: str | None
    """The value of --config-name, or None."""
    config_path: str | None
    """The value of --config-path, or None."""


def _only_shows(argv: Sequence[str]) -> bool:
    """Return whether Hydra should only show something, such as the config, and not train."""
    return any(word.partition("=")[0] in _SHOW for word in argv)


def _parse(argv: Sequence[str]) -> _CommandLine:
    """Parse Hydra's options; exit with code 2 and the reason for an unknown option or --multirun."""
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    given = parser.parse_intermixed_args(argv)
    if given.multirun:
        parser.error(f"--multirun: {ONE_RUN}")
    return _CommandLine(overrides=tuple(given.overrides), config_name=given.config_name, config_path=given.config_path)
