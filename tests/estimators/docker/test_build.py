from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from estimators.docker.build import FROM_USER, RECIPE, TrainingImage, build, build_context, explain
from estimators.docker.docker_program import DockerError, docker
from smddp import __version__
from tests.docker.images import find_base

FAKE_DOCKER = """#!/bin/sh
[ "$1" = build ] || exit 0
printf '%s\\n' "$@" > "$SAID"
echo "#7 [training 2/9] RUN something"
echo "#7 0.1 the index is $PIP_INDEX_URL, the progress $BUILDKIT_PROGRESS" >&2
exit 9
"""


@pytest.fixture
def tag() -> Iterator[str]:
    name = f"smddp-tests:{uuid.uuid4().hex}"
    yield name
    subprocess.run(["docker", "rmi", "--force", name], capture_output=True, check=False)


def recipe(directory: Path, text: str) -> Path:
    """A recipe of the test's own."""
    (directory / "Dockerfile").write_text(f"ARG BASE\nFROM $BASE AS smddp\n{text}\n")
    return directory


def test_the_context_holds_all_that_the_dockerfile_copies() -> None:
    with build_context() as context:
        copied = [
            name
            for line in (context / "Dockerfile").read_text().splitlines()
            if line.startswith("COPY ") and "--from" not in line
            for name in line.split()[1:-1]
        ]
        assert {"smddp", "requirements.txt", "constraints.txt"} < set(copied)
        assert all((context / name).exists() for name in copied)
        names = {path.name for path in context.rglob("*")}
        assert "checkpointer.py" in names
        assert "__pycache__" not in names
        required = {Requirement(line).name for line in (context / "requirements.txt").read_text().splitlines()}
        assert {"torch", "safetensors", "boto3"} <= required
        assert not required & {"sagemaker", "pytest", "moto"}
    assert not context.exists()


def test_gives_docker_what_was_asked_for_and_the_users_way_to_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"
    program.write_text(FAKE_DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    for name in FROM_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@packages/simple")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    image = TrainingImage(tag="mine:1", target="toolkit", base="debian:12", torch="torch==2.8.0", network="host")
    with pytest.raises(DockerError, match=r"exit code 9\.\n    #7 \[training 2/9\] RUN something") as failure:
        build(image)
    assert "the index is https://me:secret@packages/simple, the progress plain" in str(failure.value)
    said = (tmp_path / "said").read_text().splitlines()
    assert [said[index + 1] for index, word in enumerate(said) if word == "--build-arg"] == [
        *("BASE=debian:12", "TORCH=torch==2.8.0", f"VERSION={__version__}"),
        *("PIP_INDEX_URL", "https_proxy"),
    ]
    assert " ".join(said).startswith("build --force-rm --target toolkit --tag mine:1 --network host ")


def test_pins_are_the_tested_versions_but_the_bases_own_of_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text('# tested\nPyTest==1.0; python_version >= "3.11"\nnowhere_to_be_found==2.0\n')
    pins = RECIPE / "pins.py"
    subprocess.run([sys.executable, str(pins), str(file)], check=True)
    assert file.read_text() == f"# tested\nPyTest=={pytest.__version__}\nnowhere_to_be_found==2.0\n"


@pytest.mark.docker
def test_builds_on_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    text = 'ARG PIP_INDEX_URL\nARG VERSION\nCOPY smddp /smddp\nRUN echo "from $PIP_INDEX_URL"\nLABEL v=$VERSION'
    monkeypatch.setattr("estimators.docker.build.RECIPE", recipe(tmp_path, text))
    monkeypatch.setenv("PIP_INDEX_URL", f"https://{uuid.uuid4().hex}/simple")  # new, so nothing comes from a cache
    build(TrainingImage(tag=tag, base=find_base()))
    lines = capfd.readouterr().out.splitlines()
    configuration = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", tag))
    assert configuration["Labels"]["v"] == __version__
    assert not any("PIP_INDEX_URL" in variable for variable in configuration["Env"])
    assert any(line.endswith('RUN echo "from $PIP_INDEX_URL"') for line in lines)
    assert any(line.endswith(f"from {os.environ['PIP_INDEX_URL']}") for line in lines)
    assert "trainer.py" in docker("run", "--rm", tag, "ls", "/smddp/training").split()


@pytest.mark.docker
def test_a_failed_step_speaks_and_leaves_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setattr("estimators.docker.build.RECIPE", recipe(tmp_path, f"RUN echo the reason is {mark} && exit 7"))
    with pytest.raises(DockerError, match=rf"RUN echo .*\n(.*\n)*    .*the reason is {mark}"):
        build(TrainingImage(tag=tag, base=find_base()))
    assert mark not in docker("ps", "--all", "--no-trunc", "--format", "{{.Command}}")


@pytest.mark.docker
def test_a_base_that_is_nowhere(tag: str) -> None:
    with pytest.raises(DockerError, match=r"The base smddp-tests/nowhere is not on this machine, and can't be pulled"):
        build(TrainingImage(tag=tag, base="smddp-tests/nowhere"))


@pytest.mark.docker
def test_ctrl_c_ends_the_build(tmp_path: Path, tag: str) -> None:
    mark = uuid.uuid4().hex
    directory = recipe(tmp_path, f"RUN echo {mark} && sleep 100")
    program = (
        "from pathlib import Path; from estimators.docker import build, command; "
        f"build.RECIPE = Path({str(directory)!r}); command.app()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "build", "--base", find_base(), "--tag", tag],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while mark not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "smddp image: stopped. The next build continues after the last step that ended.\n"
    deadline = time.monotonic() + 60  # the engine ends the build by itself, once its client is gone
    while mark in docker("ps", "--all", "--no-trunc", "--format", "{{.Command}}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def explanation(*lines: str) -> str:
    return explain(lines, 1, base="python:9")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("OSError: [Errno 28] No space left on device", "docker system df"),
        ("OSError: Could not find a suitable TLS CA certificate bundle, invalid path: /ca.pem", "PIP_CERT"),
        ("SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get issuer", "certificate authority"),
        ("Temporary failure resolving 'deb.debian.org'", "--network host"),
        ("/bin/sh: 1: apt-get: not found", "Debian or Ubuntu"),
        ("ERROR: ResolutionImpossible: for help visit https://pip.pypa.io", "--torch"),
    ],
)
def test_says_what_to_do(line: str, remedy: str) -> None:
    message = explanation("Step 5/9 : RUN something", line)
    assert message.startswith("docker build ended with exit code 1.\n    Step 5/9 : RUN something\n")
    assert line in message
    assert remedy in message.splitlines()[-1]


@pytest.mark.parametrize(
    "lines",
    [
        ("Step 2/9 : FROM ${BASE} AS training", "manifest for python:9 not found: manifest unknown"),
        (
            "#2 [internal] load metadata for docker.io/library/python:9",
            "#2 ERROR: python:9: not found",
        ),
        (
            "#3 [internal] load .dockerignore",
            "------",
            " > [internal] load metadata for docker.io/library/python:9:",
            "------",
            "ERROR: failed to solve: python:9: failed to resolve source metadata for docker.io/library/python:9",
        ),
    ],
)
def test_says_that_the_base_is_not_to_be_had(lines: tuple[str, ...]) -> None:
    assert "The base python:9 is not on this machine, and can't be pulled." in explanation(*lines)


def test_an_unknown_cause_speaks_for_itself() -> None:
    assert explanation("Step 5/9 : RUN something", "what is this") == (
        "docker build ended with exit code 1.\n    Step 5/9 : RUN something\n    what is this"
    )
