import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.local import LocalSageMaker, Processes, running_jobs
from estimators.local.errors import LocalPlatformError
from estimators.source_code.tree import Tree
from estimators.training_job import TrainingJob
from tests.estimators.local.processes import is_alive, processes_of, processes_with, running
from tests.estimators.local.submitted_jobs import await_end, await_that


def test_needs_to_be_started():
    platform = LocalSageMaker()
    with pytest.raises(LocalPlatformError, match="not running"):
        platform.endpoint_url  # noqa: B018
    platform.stop()


def test_starts_once_at_a_time(platform):
    with pytest.raises(LocalPlatformError, match=r"running already: use it, or call stop\(\) first"):
        platform.start()


CLOSED = """
import json, os, sys
closed = json.loads(sys.argv[1])
for number in closed:
    os.close(number)
from estimators.local import LocalSageMaker
with LocalSageMaker() as platform:
    found = platform.boto_session.client("s3").list_buckets()["Buckets"]
    os.write(int(sys.argv[2]), str(len(found)).encode())
"""


@pytest.mark.parametrize("closed", [[0], [0, 1, 2]], ids=str)
def test_starts_in_a_program_whose_standard_streams_are_closed(closed):
    reading, writing = os.pipe()
    command = [sys.executable, "-c", CLOSED, json.dumps(closed), str(writing)]
    with os.fdopen(reading, "rb") as answer:
        with subprocess.Popen(command, pass_fds=[writing]) as program:
            os.close(writing)
            assert answer.read() == b"1"
        assert program.returncode == 0


@pytest.mark.parametrize("directory", ["state", "."])
def test_no_file_of_a_platform_is_uploaded_with_code_around_it(tmp_path, directory):
    (tmp_path / "train.py").touch()
    with LocalSageMaker(tmp_path / directory):
        assert Tree.of(tmp_path).files == ["train.py"]


def test_refuses_a_storage_that_there_is_not():
    with pytest.raises(ValueError, match="'memory' or 'disk'"):
        LocalSageMaker(storage="tape")


def test_refuses_an_executor_that_is_none():
    with pytest.raises(ValueError, match="executor='slurm': give a Docker, a Processes or a Slurm"):
        LocalSageMaker(executor="slurm")
    with pytest.raises(ValueError, match="python='python3': give the absolute path of a Python, such as '/"):
        Processes(python="python3")


@pytest.mark.parametrize("region", ["", "no region!", "a" * 64])
def test_refuses_a_region_that_is_no_name_of_one(region):
    with pytest.raises(ValueError, match=r"region=.*: give the name of an AWS region, such as 'us-east-1'"):
        LocalSageMaker(region=region)


@pytest.mark.parametrize("below", ["", "below"])
def test_a_directory_that_is_a_file_is_an_error_with_its_name(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(LocalPlatformError, match=rf"{tmp_path / 'file' / below}.* is no directory"):
        LocalSageMaker(tmp_path / "file" / below).start()


def test_offers_a_bucket_and_a_role(platform):
    platform.boto_session.client("s3").put_object(Bucket=platform.default_bucket, Key="a", Body=b"b")
    assert platform.role.startswith("arn:aws:iam::123456789012:role/")


def test_its_session_for_the_sdk_uses_its_bucket(platform):
    assert platform.session.default_bucket() == platform.default_bucket
    assert platform.session.boto_session is platform.boto_session
    assert platform.boto_session.kept_in is None


@pytest.fixture
def problems(platform, tmp_path):
    (tmp_path / "train.py").write_text("import smddp\n")

    def plan(**parameters):
        job = {"instance_type": "ml.m5.large", "instance_count": 2, **parameters}
        return Estimator(
            entry_point=tmp_path / "train.py", role=platform.role, sagemaker_session=platform.session, **job
        ).plan()

    return lambda **parameters: [str(problem) for problem in plan(**parameters).problems]


NO_SSH = (
    "distribution: hosts that are processes of one machine have no ssh of their own, which mpi needs between hosts. "
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "distribution", "are_processes", "refused"),
    [(2, "mpi", True, True), (1, "mpi", True, False), (2, None, True, False), (2, "mpi", False, False)],
)
def test_mpi_between_hosts_without_ssh_is_refused_before_a_job_is_sent(
    platform, problems, monkeypatch, hosts, distribution, are_processes, refused
):
    assert platform.boto_session.hosts_are_processes
    monkeypatch.setattr(platform.boto_session, "hosts_are_processes", are_processes)
    found = problems(instance_count=hosts, distribution=distribution)
    assert any(problem.startswith(NO_SSH) for problem in found) == refused, found


@pytest.mark.slow
def test_the_remedy_for_hosts_without_ssh_is_one_that_the_sdk_accepts(problems):
    others = "no distribution (smddp.run joins the hosts, one rank on each)"
    containers = "or one instance, or containers as hosts: LocalSageMaker(executor=Docker())."
    assert problems(distribution="mpi") == [f"{NO_SSH}Use {others}, {containers}"]
    with_torchrun = [f"{NO_SSH}Use distribution='torchrun' or {others}, {containers}"]
    assert problems(distribution="mpi", instance_type="ml.g5.12xlarge") == with_torchrun
    assert problems(distribution="mpi", image_uri="mine") == with_torchrun
    (refused,) = problems(distribution="torchrun")  # for a CPU, and mpi would be refused, too
    assert f"Use {others} or another instance_type, or give an image_uri" in refused


def test_plays_any_region(tmp_path):
    with LocalSageMaker(tmp_path / "made", region="eu-west-3") as platform:
        assert platform.default_bucket == "sagemaker-eu-west-3-123456789012"
        s3 = platform.boto_session.client("s3")
        assert s3.get_bucket_location(Bucket=platform.default_bucket)["LocationConstraint"] == "eu-west-3"
        assert list((tmp_path / "made").iterdir())
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.slow
def test_stops_at_once_in_the_middle_of_a_job_and_leaves_nothing(job_request, tmp_path, caplog):
    marker = f"4{uuid.uuid4().int % 10**8}"
    with LocalSageMaker(tmp_path) as platform:
        start_job(platform, job_request("long", f"trap '' TERM; sleep {marker} & wait; wait"))
        await_process(marker)
        started = time.monotonic()
    assert time.monotonic() - started < 10
    assert "the local platform ends, and long with it, unfinished. Its objects were in memory" in caplog.text
    assert not processes_with(marker)
    assert not list(tmp_path.iterdir())
    platform.stop()


@pytest.mark.slow
def test_has_files_for_all_connections_and_leaves_its_jobs_the_users_limit(job_request, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = tmp_path / "limit"
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (900, before[1]))
        with LocalSageMaker() as platform:
            assert resource.prlimit(platform.server_pid, resource.RLIMIT_NOFILE) == (before[1], before[1])
            start_job(platform, job_request("asks", f"echo $(ulimit -Sn) $(ulimit -Hn) > {said}"))
            await_end(platform, "asks")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert said.read_text().split() == ["900", str(before[1])]


def start_job(platform, request):
    platform.boto_session.client("sagemaker").create_training_job(**request)


def await_process(marker: str) -> None:
    await_that(lambda: processes_with(marker))


PARENT = """if True:
    import json, os, sys, time
    from estimators.local import LocalSageMaker
    platform = LocalSageMaker(sys.argv[1], storage=(sys.argv[2:] or ["memory"])[0]).start()
    platform.boto_session.client("sagemaker").create_training_job(**json.loads(os.environ["REQUEST"]))
    heavy = [name for name in ("moto", "flask", "werkzeug", "sagemaker", "torch") if name in sys.modules]
    fork = os.fork()  # such as a data loader's worker: it holds every pipe of its parent, and lives on
    if fork == 0:
        time.sleep(60)
        os._exit(0)
    print(json.dumps({"server": platform.server_pid, "fork": fork, "heavy": heavy}), flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_nothing_survives_a_parent_that_was_killed_in_the_middle_of_a_job(job_request, tmp_path):
    marker = f"4{uuid.uuid4().int % 10**8}"
    request = json.dumps(job_request("long", f"sleep {marker} & wait"))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "platform")],
        env={**os.environ, "REQUEST": request},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    told = json.loads(parent.stdout.readline())
    try:
        assert told["heavy"] == []
        assert os.getsid(told["server"]) == told["server"]  # Ctrl-C does not reach it
        await_process(marker)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + 60
        while processes_with(marker) or is_alive(told["server"]) or list((tmp_path / "platform").iterdir()):
            assert time.monotonic() < deadline, (processes_with(marker), list((tmp_path / "platform").iterdir()))
            time.sleep(0.1)
    finally:
        os.kill(told["fork"], signal.SIGKILL)
        parent.stdout.close()


@pytest.mark.parametrize("storage", ["memory", pytest.param("disk", marks=pytest.mark.seaweedfs)])
@pytest.mark.slow
def test_nothing_survives_a_parent_that_was_killed_while_it_started(storage, tmp_path):
    starting = f"from estimators.local import LocalSageMaker as L; L({str(tmp_path)!r}, storage={storage!r}).start()"
    parent = subprocess.Popen([sys.executable, "-c", starting])
    started = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    await_that(lambda: list(tmp_path.glob("*/aws-config")), pause=0.001)  # the server has been told what to do
    children = [int(child) for child in started.read_text().split()]
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while any(map(is_alive, children)) or list(tmp_path.glob("smddp-local-*")):
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.1)


@pytest.mark.parametrize("storage", ["memory", pytest.param("disk", marks=pytest.mark.seaweedfs)])
@pytest.mark.slow
def test_nothing_survives_a_server_and_a_parent_that_were_killed_together(storage, job_request, tmp_path):
    marker = f"4{uuid.uuid4().int % 10**8}"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "platform"), storage],
        env={**os.environ, "REQUEST": json.dumps(job_request("long", f"sleep {marker} & wait"))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    told = json.loads(parent.stdout.readline())
    try:
        await_process(marker)
        platform = [parent.pid, *processes_of(told["server"])]
        os.kill(told["server"], signal.SIGKILL)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 60
        kept = {"access", "records", "storage"} if storage == "disk" else set()
        while any(map(is_alive, platform)) or {path.name for path in (tmp_path / "platform").iterdir()} != kept:
            assert time.monotonic() < deadline, list((tmp_path / "platform").rglob("*"))
            time.sleep(0.05)
    finally:
        os.kill(told["fork"], signal.SIGKILL)
        parent.stdout.close()


def test_a_port_that_is_taken_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            LocalPlatformError, match=f"Port {port} of 127.0.0.1 can't be opened: Address already in use"
        ):
            LocalSageMaker(port=port).start()


def test_a_missing_moto_is_an_error_that_says_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "moto.py").write_text("raise ModuleNotFoundError(\"No module named 'moto'\", name='moto')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LocalPlatformError, match=r"'moto' is missing.*pip install 'smddp\[local\]'"):
        LocalSageMaker().start()


def test_modules_in_the_current_directory_are_none_of_its_business(monkeypatch, tmp_path):
    for name in ("moto", "json", "signal"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.chdir(tmp_path)
    with LocalSageMaker("relative") as platform:
        platform.boto_session.client("sagemaker").list_training_jobs()


def test_a_crash_at_the_start_shows_the_end_of_the_log_and_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path / "boto3.py").write_text("raise RuntimeError('the reason')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LocalPlatformError, match=r"(?s)did not start\. The end of its log:.*RuntimeError: the reason"):
        LocalSageMaker(tmp_path / "platform").start()
    assert not list((tmp_path / "platform").iterdir())


def test_interrupting_a_job_that_there_is_not_is_an_error(platform):
    with pytest.raises(ClientError, match="no-such-job"):
        platform.interrupt("no-such-job")


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_objects_on_disk_outlive_the_platform_with_the_models_of_its_jobs(job_request, tmp_path):
    for attempt in range(2):
        with LocalSageMaker(tmp_path, storage="disk") as platform:
            s3 = platform.boto_session.client("s3")
            assert platform.environment["AWS_ENDPOINT_URL_S3"] == s3.meta.endpoint_url != platform.endpoint_url
            if attempt == 0:
                start_job(platform, job_request("kept", "echo yes > /opt/ml/model/kept"))
                await_end(platform, "kept")
            s3.head_object(Bucket=platform.default_bucket, Key="out/kept/output/model.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["access", "records", "storage"]


SAVES_WHEN_STOPPED = (
    "trap 'echo saved > /opt/ml/checkpoints/last; exit 0' TERM; touch /opt/ml/checkpoints/first; "
    "while :; do sleep 0.1; done"
)


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_job_that_runs_when_its_platform_ends_saves_a_checkpoint_first(job_request, tmp_path, caplog):
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        checkpoints = {"S3Uri": f"s3://{platform.default_bucket}/checkpoints"}
        start_job(platform, job_request("busy", SAVES_WHEN_STOPPED, CheckpointConfig=checkpoints))
        await_object(platform, "checkpoints/first")
    assert "busy may save a checkpoint within 120 s" in caplog.text
    assert f"busy is Stopped; its checkpoints are in {checkpoints['S3Uri']}" in caplog.text
    with LocalSageMaker(tmp_path, storage="disk") as platform:
        await_object(platform, "checkpoints/last", seconds=0)
        assert platform.boto_session.kept_in == str(tmp_path)


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_second_platform_on_a_directory_is_refused_in_one_line(tmp_path, caplog):
    first, second = (LocalSageMaker(tmp_path, storage="disk") for _ in range(2))
    with first, pytest.raises(LocalPlatformError, match="in use by another local platform"):
        second.start()
    assert "another program listens" not in caplog.text


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_second_interruption_ends_running_jobs_at_once(job_request, tmp_path, monkeypatch):
    marker = f"4{uuid.uuid4().int % 10**8}"
    platform = LocalSageMaker(tmp_path, storage="disk").start()
    start_job(platform, job_request("deaf", f"trap '' TERM; sleep {marker} & wait; wait"))
    await_process(marker)
    monkeypatch.setattr(running_jobs, "_stop", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        platform.stop()
    assert not processes_with(marker)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["access", "records", "storage"]


# The program presses Ctrl-C the second time itself, when the server is to end: a signal from outside may come when the
# program has ended.
INTERRUPTED = """
import signal, sys
from estimators.local import LocalSageMaker
from estimators.local.server_process import ServerProcess
from estimators.training_job import TrainingJob
from tests.estimators.local.submitted_jobs import job_request

end = ServerProcess._end

def interrupt(server):
    ServerProcess._end = end
    signal.raise_signal(signal.SIGINT)

ServerProcess._end = interrupt
with LocalSageMaker() as platform:
    request = job_request(platform, "deaf", f"trap '' TERM; echo trapped; sleep {sys.argv[1]} & wait; wait")
    platform.boto_session.client("sagemaker").create_training_job(**request)
    TrainingJob.attach("deaf", platform.session).wait()
"""


@pytest.mark.slow
def test_each_ctrl_c_in_a_block_is_one_line_and_nothing_is_left(fork_python):
    marker = f"4{uuid.uuid4().int % 10**8}"
    command = [sys.executable, "-c", INTERRUPTED, marker]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert any("trapped" in line for line in program.stdout)
    program.send_signal(signal.SIGINT)
    first, _, rest = program.stderr.read().partition("\n")
    assert program.wait(60) == 130
    assert first.startswith("the local platform ends, and deaf with it, unfinished. ")
    assert rest == "Ctrl-C: the local platform ended at once, and its jobs saved nothing more\n"
    assert not processes_with(marker)


WITHOUT_A_BLOCK = """
import os, sys
from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import job_request
sagemaker = LocalSageMaker().start()
client = sagemaker.boto_session.client("sagemaker")
client.create_training_job(**job_request(sagemaker, "left", "sleep 60"))
if os.fork() == 0:
    sys.exit()  # calls what is to be called at the exit, as the parent does later
assert os.wait()[1] == 0
assert client.describe_training_job(TrainingJobName="left")["TrainingJobStatus"] == "InProgress"
if sys.argv[1] == "stop":
    sagemaker.stop()
if sys.argv[1] == "raise":
    raise ValueError("of the script")
"""


@pytest.mark.parametrize("end", ["return", "raise", "stop"])
@pytest.mark.slow
def test_a_program_that_ends_without_a_stop_says_which_jobs_end_with_it(fork_python, monkeypatch, tmp_path, end):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", WITHOUT_A_BLOCK, end]
    program = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (
        program.stderr.count("the local platform ends, and left with it, unfinished. Its objects were in memory") == 1
    )
    assert (program.returncode, "ValueError: of the script" in program.stderr) == (
        (1, True) if end == "raise" else (0, False)
    )
    await_that(lambda: not list(tmp_path.iterdir()))  # the program has waited for the reaper, but not for ever


ON_DISK_WITHOUT_A_BLOCK = """
import signal, sys
from estimators.local import LocalSageMaker, running_jobs
from tests.estimators.local.submitted_jobs import await_that, job_request
sagemaker = LocalSageMaker(sys.argv[1], storage="disk", grace_seconds=10).start()
request = job_request(sagemaker, "busy", "trap 'exit 0' TERM; echo trapped; while :; do sleep 0.1; done")
client = sagemaker.boto_session.client("sagemaker")
client.create_training_job(**request)
await_that(lambda: client.describe_training_job(TrainingJobName="busy")["SecondaryStatus"] == "Training")
if sys.argv[2] == "Ctrl-C":
    running_jobs._stop = lambda *_: signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("wait", "busy is Stopped; it had no checkpoint_s3_uri: it begins anew\n"),
        ("Ctrl-C", "Ctrl-C: the local platform ended at once, and its jobs saved nothing more\n"),
    ],
)
@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_program_that_ends_without_a_stop_stops_its_jobs_on_disk(fork_python, tmp_path, ending, said):
    command = [sys.executable, "-c", ON_DISK_WITHOUT_A_BLOCK, str(tmp_path), ending]
    program = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    first, _, rest = program.stderr.partition("\n")
    assert first.startswith("the local platform ends: busy may save a checkpoint within 10 s.")
    assert (program.returncode, rest) == (0, said)


@pytest.mark.slow
def test_a_platform_that_has_ended_is_named_by_what_is_asked_of_it(tmp_path):
    (tmp_path / "train.py").write_text("print('hello')\n")
    with LocalSageMaker() as platform:
        session, role = platform.session, platform.role
    with pytest.raises(EstimatorError, match="gone can't be reached, because its local platform has ended"):
        TrainingJob("gone", session).status  # noqa: B018
    job = Estimator(tmp_path / "train.py", role=role, instance_type="ml.m5.xlarge", sagemaker_session=session)
    with pytest.raises(EstimatorError, match="The local platform of the session has ended: start one"):
        job.fit()


INTERRUPTED_EARLY = """
import signal, sys
from estimators.local import LocalSageMaker
from estimators.local.server_process import ServerProcess
from estimators.sdk import sessions
interrupt = lambda *_, **__: signal.raise_signal(signal.SIGINT)
setattr(*{"start": (ServerProcess, "_tell"), "session": (sessions, "session")}[sys.argv[1]], interrupt)
with LocalSageMaker() as platform:
    platform.session
"""


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("start", "Ctrl-C: the local platform was not started, and nothing of it is left\n"),
        ("session", "Ctrl-C: the session of the SageMaker SDK was not made\n"),
    ],
)
def test_ctrl_c_before_a_job_is_one_line(fork_python, when, told):
    command = [sys.executable, "-c", INTERRUPTED_EARLY, when]
    program = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (program.returncode, program.stderr) == (130, told)


def test_a_job_that_is_stopped_while_jobs_are_listed_is_named_once(monkeypatch, caplog):
    def ask(_access, operation, _request):
        if operation == "DescribeTrainingJob":
            return {"TrainingJobStatus": "Stopped"}
        if operation == "StopTrainingJob":
            listed.clear()
        return {f"{operation.removeprefix('List')[:-1]}Summaries": listed if operation == "ListTrainingJobs" else []}

    listed = [{"TrainingJobName": "both"}]  # in the list of each status that is asked for
    monkeypatch.setattr(running_jobs, "ask", ask)
    running_jobs.end(None, grace_seconds=1.0)
    assert [record.message.count("both") for record in caplog.records] == [1, 1]


def await_object(platform, key: str, *, seconds: float = 60) -> None:
    s3 = platform.boto_session.client("s3")
    await_that(lambda: s3.list_objects_v2(Bucket=platform.default_bucket, Prefix=key).get("Contents"), seconds=seconds)


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_the_sdk_uploads_code_to_the_disk(tmp_path):
    (tmp_path / "hello.py").write_text("print('hello')")
    with LocalSageMaker(tmp_path / "platform", storage="disk") as platform:
        job = Estimator(
            "hello.py",
            source_dir=tmp_path,
            role=platform.role,
            instance_type="ml.m5.xlarge",
            sagemaker_session=platform.session,
        ).fit()
        assert job.status == "Completed"


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_job_fails_with_the_reason_when_the_storage_is_given_up(job_request, tmp_path):
    with LocalSageMaker(tmp_path, storage="disk", grace_seconds=1) as platform:
        start_job(platform, job_request("long", "sleep 60"))
        await_state(platform, "long", "Training")
        killed: set[int] = set()
        deadline = time.monotonic() + 30
        while len(killed) < 4:
            assert time.monotonic() < deadline
            for storage in set(running(platform.server_pid, "/weed")) - killed:
                killed.add(storage)
                os.kill(storage, signal.SIGKILL)
        await_end(platform, "long")
        job = platform.boto_session.client("sagemaker").describe_training_job(TrainingJobName="long")
        assert job["TrainingJobStatus"] == "Failed"
        assert (
            "SeaweedFS, which keeps the objects, ended with exit code 137, the last of 4 failures"
            in job["FailureReason"]
        )


def await_state(platform, name: str, state: str) -> None:
    client = platform.boto_session.client("sagemaker")
    await_that(lambda: client.describe_training_job(TrainingJobName=name)["SecondaryStatus"] == state)


def test_a_server_that_died_is_noticed_by_its_clients_and_cleaned_up(tmp_path):
    platform = LocalSageMaker(tmp_path).start()
    os.kill(platform.server_pid, signal.SIGKILL)
    with pytest.raises(Exception, match="Could not connect"):
        platform.boto_session.client("s3").list_buckets()
    platform.stop()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_tree_that_is_deeper_than_the_stack_ends_no_platform(job_request, tmp_path):
    deep = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d; i=$((i + 1)); done; touch /opt/ml/made; sleep 60"
    with LocalSageMaker(tmp_path) as platform:
        start_job(platform, job_request("deep", f"cd /opt/ml/model; {deep}"))
        await_that(lambda: list(tmp_path.glob("smddp-local-*/jobs/deep/algo-1/made")))
    assert not list(tmp_path.iterdir())
