"""Lines as the two builders write them; the classic ones and the BuildKit ones build the same Dockerfile."""

from __future__ import annotations

from estimators.docker.build_log import LINES_KEPT, BuildLog

CLASSIC = """\
Sending build context to Docker daemon  942.1kB
Step 1/3 : ARG BASE
Step 2/3 : FROM ${BASE} AS training
 ---> d6d48d1c9ac3
Step 3/3 : RUN apt-get update -qq  && apt-get install -y     gcc
 ---> Running in 1b2c3d4e5f60
\x1b[91mE: Unable to locate package gcc
\x1b[0m\
\x1b[91mdebconf: delaying
\x1b[0mRemoving intermediate container 1b2c3d4e5f60
The command '/bin/sh -c apt-get update' returned a non-zero code: 100
"""

BUILDKIT = """\
#0 building with "default" instance using docker driver

#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 4.21kB done
#1 DONE 0.0s

#2 [internal] load metadata for docker.io/library/python:3.11-slim
#2 DONE 0.7s

#5 [training 1/9] FROM docker.io/library/python:3.11-slim@sha256:0a1b
#5 CACHED

#6 [internal] load build context
#6 transferring context: 1.05MB 0.1s done
#6 DONE 0.1s

#7 [training 2/9] RUN apt-get update -qq  && apt-get install -y     gcc
#7 2.412 E: Unable to locate package gcc
#8 [toolkit-wheel 1/2] RUN mkdir -p /opt/smddp/wheels
#8 0.310 working
#7 2.500 debconf: delaying
#7 ERROR: process "/bin/sh -c apt-get update" did not complete successfully: exit code: 100
"""


def read(text: str) -> BuildLog:
    log = BuildLog()
    for line in text.splitlines(keepends=True):
        log.read(line)
    return log


def test_classic_builder() -> None:
    log = read(CLASSIC)
    assert str(log.step) == "Step 3/3: RUN apt-get update -qq && apt-get install -y gcc"
    assert list(log.tail) == ["E: Unable to locate package gcc", "debconf: delaying"]


def test_buildkit_is_at_the_step_that_wrote_last() -> None:
    log = read(BUILDKIT)
    assert str(log.step) == "Step training 2/9: RUN apt-get update -qq && apt-get install -y gcc"
    assert list(log.tail)[-4:] == [
        "E: Unable to locate package gcc",
        "working",
        "debconf: delaying",
        'ERROR: process "/bin/sh -c apt-get update" did not complete successfully: exit code: 100',
    ]


def test_knows_the_step_that_needs_the_base() -> None:
    classic = read("Step 2/24 : FROM ${BASE} AS training\npull access denied for nothing\n")
    buildkit = read("#2 [internal] load metadata for docker.io/library/nothing:latest\n#2 ERROR: pull access denied\n")
    for log in (classic, buildkit):
        assert log.step is not None
        assert log.step.fetches_base
    other = read("#3 [training 2/9] RUN true\n").step
    assert other is not None
    assert not other.fetches_base


def test_settings_take_no_time() -> None:
    steps = [read(f"Step 1/9 : {does}\n").step for does in ("ARG A", "ENV A=1", "RUN true", "COPY a b")]
    assert [step.takes_time for step in steps if step] == [False, False, True, True]


def test_a_step_of_the_classic_builder_starts_with_no_lines() -> None:
    assert list(read("DEPRECATED: The legacy builder\nStep 1/2 : FROM base\n").tail) == []


def test_keeps_the_last_lines_only() -> None:
    log = read("".join(f"line {number}\n" for number in range(100)))
    assert list(log.tail) == [f"line {number}" for number in range(100 - LINES_KEPT, 100)]
