"""Whole jobs, with real processes: every way from Starting to an end."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.validate import ParamValidator

from estimators.local.engine import ApiError
from estimators.local.executors import ExecutorError, HandOverError, ProcessExecutor
from estimators.local.executors.process import ProcessCluster
from estimators.service_model import service_model
from tests.estimators.local.engine.whole_jobs import SPOT, TWO_HOSTS, Lines, await_line, kill_from_outside
from tests.estimators.local.processes import processes_with

FilesIn = Callable[[str, str], dict[str, bytes]]

ENDLESS = """
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: exit(3))
    print("up", flush=True)
    while True: time.sleep(1)
"""
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def channel(client: Any, prefix: str = "data/") -> list[dict[str, Any]]:
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://{client.bucket}/{prefix}"}
    return [{"ChannelName": "training", "DataSource": {"S3DataSource": source}}]


def left_over(engine_directory: Path) -> list[Path]:
    return list(engine_directory.iterdir())


def test_a_job_goes_through_all_states_and_completes(client: Any, tmp_path: Path) -> None:
    began = time.monotonic()
    job = client.run("print('hello')")
    assert client.path_of(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Completed", "Completed")
    assert 1 <= job["TrainingTimeInSeconds"] <= 60
    assert job["CreationTime"] <= job["TrainingStartTime"] <= job["TrainingEndTime"]
    assert "FailureReason" not in job
    assert time.monotonic() - began < 60


def test_creating_answers_at_once(client: Any) -> None:
    request = client.request(ENDLESS)
    began = time.monotonic()
    client.create(request)
    assert time.monotonic() - began < 30


def test_descriptions_fit_the_services_model(client: Any) -> None:
    shape = service_model().operation_model("DescribeTrainingJob").output_shape
    running = client.describe(client.submit(ENDLESS, **SPOT, CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"}))
    for job in (running, client.run("exit(1)"), client.run("pass", Tags=[{"Key": "a", "Value": "b"}])):
        report = ParamValidator().validate(job, shape)
        assert not report.has_errors(), report.generate_report()


def test_the_request_is_described(client: Any) -> None:
    request = client.request(HyperParameters={"a": "1"}, Environment={"B": "2"}, Tags=[{"Key": "k", "Value": "v"}])
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "loss", "Regex": "loss=(.*)"}]
    job = client.describe(client.create(request))
    for member in ("HyperParameters", "Environment", "AlgorithmSpecification", "ResourceConfig", "RoleArn"):
        assert job[member] == request[member]
    assert "Tags" not in job


def test_what_is_recorded_alone_is_told_in_the_log(client: Any, lines: Lines) -> None:
    name = client.submit("", RemoteDebugConfig={"EnableRemoteDebug": True})
    assert client.wait(name)["TrainingJobStatus"] == "Completed"
    assert lines(name) == ["[platform] Recorded alone, and not done here: RemoteDebugConfig"]


def test_lines_reach_the_log_of_their_host_before_the_job_completes(client: Any, lines: Lines) -> None:
    name = client.run(
        "import socket; print('hello from', socket.gethostname()); import sys; print('error', file=sys.stderr)",
        ResourceConfig=TWO_HOSTS,
    )["TrainingJobName"]
    for host in ("algo-1", "algo-2"):
        assert sorted(lines(name, host)) == ["error", f"hello from {host}"]


def test_hosts_meet_by_name(client: Any) -> None:
    job = client.run(
        """
        import os, socket, time
        port = int(os.environ["SMDDP_MASTER_PORT"])
        if socket.gethostname() == "algo-1":
            with socket.create_server(("algo-1", port)) as server:
                assert server.accept()[0].recv(5) == b"hello"
        else:
            for _ in range(500):
                try:
                    socket.create_connection(("algo-1", port)).sendall(b"hello")
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
        """,
        ResourceConfig=TWO_HOSTS,
    )
    assert job["TrainingJobStatus"] == "Completed", job


def test_inputs_configuration_and_environment_are_there(client: Any, s3: Any, lines: Lines) -> None:
    s3.put_object(Bucket=client.bucket, Key="data/a.txt", Body=b"content")
    job = client.run(
        """
        import json, os
        read = lambda path: open("/opt/ml/input/" + path).read()
        print(read("data/training/a.txt"), json.loads(read("config/hyperparameters.json")), os.getcwd())
        print(os.environ["GIVEN"], os.environ["TRAINING_JOB_NAME"])
        """,
        InputDataConfig=channel(client),
        HyperParameters={"lr": "0.1"},
        Environment={"GIVEN": "yes"},
    )
    name = job["TrainingJobName"]
    assert lines(name) == ["content {'lr': '0.1'} /opt/ml/code", f"yes {name}"]


def test_metrics_are_described_when_the_job_completes(client: Any) -> None:
    request = client.request("print('loss=2'); print('loss=0.5 acc=1')")
    request["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "loss", "Regex": r"loss=(\S+)"},
        {"Name": "never", "Regex": r"never=(\S+)"},
    ]
    job = client.wait(client.create(request))
    assert [(metric["MetricName"], metric["Value"]) for metric in job["FinalMetricDataList"]] == [("loss", 0.5)]


def test_arguments_follow_the_entrypoint(client: Any, lines: Lines) -> None:
    request = client.request("import sys; print(sys.argv[1:])")
    request["AlgorithmSpecification"]["ContainerArguments"] = ["--a", "b c"]
    name = client.wait(client.create(request))["TrainingJobName"]
    assert lines(name) == ["['--a', 'b c']"]


def test_model_and_output_are_uploaded(client: Any, files_in: FilesIn) -> None:
    job = client.run("open('/opt/ml/model/weights', 'w').write('w'); open('/opt/ml/output/data/plot', 'w').write('p')")
    prefix = f"output/{job['TrainingJobName']}/output/"
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{client.bucket}/{prefix}model.tar.gz"
    stored = files_in(client.bucket, prefix)
    assert sorted(stored) == ["model.tar.gz", "output.tar.gz"]
    with tarfile.open(fileobj=io.BytesIO(stored["model.tar.gz"])) as bundle:
        assert bundle.getnames() == ["weights"]


def test_nothing_is_left_when_a_job_has_ended(start_engine: Any, client_of: Any, tmp_path: Path) -> None:
    directory = tmp_path / "here"
    engine = start_engine(directory=directory)
    client = client_of(engine)
    name = client.run("import os; os.makedirs('/opt/ml/model/x/y'); os.chmod('/opt/ml/model/x', 0)")["TrainingJobName"]
    client.call("DeleteTrainingJob", TrainingJobName=name)
    assert left_over(directory) == []
    assert not Path("/opt/ml/model/x").exists()


# Failures


def test_a_failing_program_fails_the_job_with_its_own_words(client: Any) -> None:
    job = client.run("open('/opt/ml/output/failure', 'w').write('ValueError: label 41'); exit(3)")
    assert job["FailureReason"] == "AlgorithmError: ValueError: label 41, exit code: 3"
    assert client.path_of(job) == ["Starting", "Downloading", "Training", "Uploading", "Failed"]
    assert job["TrainingJobStatus"] == "Failed"


def test_a_failed_job_keeps_its_output_but_no_model(client: Any, files_in: FilesIn) -> None:
    job = client.run("open('/opt/ml/output/data/log', 'w').write('x'); exit(1)")
    assert list(files_in(client.bucket, f"output/{job['TrainingJobName']}/output/")) == ["output.tar.gz"]


def test_without_a_failure_file_the_last_lines_are_the_reason(client: Any) -> None:
    reason = client.run("raise RuntimeError('out of cheese')")["FailureReason"]
    assert "RuntimeError: out of cheese" in reason
    assert reason.endswith(", exit code: 1")


def test_a_signal_is_an_exit_code_of_128_and_more(client: Any) -> None:
    job = client.run("import os, subprocess; exit(128 - subprocess.run(['sh', '-c', 'kill -9 $$']).returncode)")
    assert job["FailureReason"].endswith("exit code: 137")


def test_one_failing_host_ends_the_others(client: Any, lines: Lines) -> None:
    began = time.monotonic()
    job = client.run(
        """
        import signal, socket, sys, time
        if socket.gethostname() == "algo-2":
            time.sleep(0.3)
            sys.exit("the root cause")
        def stop(*_):
            print("asked to stop", flush=True)
            open("/opt/ml/output/failure", "w").write("peer vanished")
            sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        while True: time.sleep(0.1)
        """,
        ResourceConfig=TWO_HOSTS,
    )
    assert lines(job["TrainingJobName"], "algo-1") == ["asked to stop"]
    assert job["FailureReason"] == "AlgorithmError: peer vanished, exit code: 1"
    assert time.monotonic() - began < 60


def test_a_host_that_ignores_the_others_failure_is_killed(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.local.engine.hosted.attempt.AFTER_A_FAILURE_SECONDS", 0.2)
    job = client.run(
        f"import socket; exit(1) if socket.gethostname() == 'algo-1' else None; {STUBBORN}", ResourceConfig=TWO_HOSTS
    )
    assert job["TrainingJobStatus"] == "Failed"


def test_the_job_waits_for_its_slowest_host(client: Any, lines: Lines) -> None:
    job = client.run(
        "import socket, time; time.sleep(0.5 * (socket.gethostname() == 'algo-2')); print('done')",
        ResourceConfig=TWO_HOSTS,
    )
    assert job["TrainingJobStatus"] == "Completed"
    assert lines(job["TrainingJobName"], "algo-2") == ["done"]


@pytest.mark.parametrize("program", ["no-such-program", "./train", "relative/train"])
def test_a_program_that_is_not_there_fails_with_its_name(client: Any, program: str) -> None:
    request = client.request(ResourceConfig=TWO_HOSTS)
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = [program]
    job = client.wait(client.create(request))
    assert job["FailureReason"].startswith("ClientError: algo-")
    assert f"{program} could not be started: no such program" in job["FailureReason"]


def test_missing_data_fails_before_anything_runs(client: Any, lines: Lines) -> None:
    job = client.run(InputDataConfig=channel(client, "nothing/"), RemoteDebugConfig={"EnableRemoteDebug": True})
    assert lines(job["TrainingJobName"]) == ["[platform] Recorded alone, and not done here: RemoteDebugConfig"]
    assert client.path_of(job) == ["Starting", "Downloading", "Failed"]
    assert job["FailureReason"].startswith('ClientError: Data download failed: channel "training": no S3 objects')
    assert "TrainingStartTime" not in job


@pytest.mark.parametrize(
    "members",
    [
        {"OutputDataConfig": {"S3OutputPath": "s3://no-such-bucket-anywhere/x"}},
        {"CheckpointConfig": {"S3Uri": "s3://no-such-bucket-anywhere/x"}},
    ],
    ids=lambda members: next(iter(members)),
)
def test_a_bucket_that_is_missing_fails_before_anything_runs(client: Any, members: dict[str, Any]) -> None:
    job = client.run(**members)
    assert client.path_of(job)[-2:] == ["Downloading", "Failed"]
    assert job["FailureReason"].startswith("ClientError: ")
    assert "the bucket no-such-bucket-anywhere does not exist" in job["FailureReason"]


def test_what_docker_could_not_do_is_no_fault_of_the_request(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise ExecutorError("algo-1: its container could not be made: Cannot connect to the Docker daemon")

    monkeypatch.setattr(ProcessCluster, "start", start)
    reason = client.run("")["FailureReason"]
    assert reason == "InternalServerError: algo-1: its container could not be made: Cannot connect to the Docker daemon"


def test_files_that_can_not_be_had_stay_where_the_reason_says(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        raise HandOverError("what the hosts wrote could not be given away: no room")

    monkeypatch.setattr(ProcessCluster, "__exit__", leave)
    job = client.run("open('/opt/ml/model/weights', 'w').write('all of them')")
    assert job["TrainingJobStatus"] == "Failed"
    reason, kept = job["FailureReason"].split("All files are kept in ")
    assert reason == "InternalServerError: what the hosts wrote could not be given away: no room. "
    assert Path(kept.rstrip("."), "algo-1", "model", "weights").read_text() == "all of them"


class Uploads:
    """An S3 client whose uploads of some keys fail."""

    def __init__(self, s3: Any, error: Exception, *keys: str) -> None:
        self._s3 = s3
        self._error = error
        self._keys = keys

    def upload_file(self, path: str, bucket: str, key: str) -> None:
        if key.endswith(self._keys):
            raise self._error
        self._s3.upload_file(path, bucket, key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)


def kept_in(reason: str) -> Path:
    return Path(reason.rpartition("All files are kept in ")[2].rstrip("."))


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject"),
        S3UploadFailedError("An error occurred (InternalError)"),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
        OSError(28, "No space left on device"),
        RecursionError("maximum recursion depth exceeded"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_can_not_be_uploaded_is_kept_where_the_reason_says(
    start_engine: Any, client_of: Any, s3: Any, files_in: FilesIn, error: Exception
) -> None:
    client = client_of(start_engine(s3=Uploads(s3, error, "model.tar.gz")))
    job = client.run("open('/opt/ml/model/weights', 'w').write('all'); open('/opt/ml/output/data/plot', 'w')")
    assert job["TrainingJobStatus"] == "Failed"
    assert Path(kept_in(job["FailureReason"]), "algo-1", "model", "weights").read_text() == "all"
    assert kept_in(job["FailureReason"]).stat().st_mode & 0o077 == 0
    assert [name.rpartition("/")[2] for name in files_in(client.bucket, "output/")] == ["output.tar.gz"]


def test_a_file_in_place_of_the_model_directory_fails_the_job_and_is_kept(client: Any, lines: Lines) -> None:
    job = client.run("import os; os.rmdir('/opt/ml/model'); open('/opt/ml/model', 'w').write('all')")
    assert job["TrainingJobStatus"] == "Failed"
    assert "Not a directory (/opt/ml/model)" in job["FailureReason"]
    assert Path(kept_in(job["FailureReason"]), "algo-1", "model").read_text() == "all"
    assert lines(job["TrainingJobName"]) == ["[platform] /opt/ml/model is no directory"]


def test_a_bucket_that_is_deleted_meanwhile_costs_no_model(client: Any, s3: Any, lines: Lines) -> None:
    name = client.submit(f"open('/opt/ml/model/weights', 'w').write('all')\n{textwrap.dedent(ENDLESS)}")
    await_line(lines, name, "up")
    s3.delete_bucket(Bucket=client.bucket)
    client.stop(name)
    job = client.wait(name)
    assert job["FailureReason"].startswith("ClientError: Model upload failed: ")
    assert "NoSuchBucket" in job["FailureReason"]
    assert Path(kept_in(job["FailureReason"]), "algo-1", "model", "weights").read_text() == "all"


def test_checkpoints_that_can_not_be_uploaded_hold_up_no_model(client: Any, lines: Lines, files_in: FilesIn) -> None:
    job = client.run(
        r"""
        import os
        open(b"/opt/ml/checkpoints/odd-\xff", "w").write("odd")
        os.symlink("/etc/passwd", b"/opt/ml/checkpoints/out-\xff")
        open("/opt/ml/checkpoints/zero", "w").write("0")
        open("/opt/ml/model/weights", "w").write("all")
        """,
        CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"},
    )
    assert job["TrainingJobStatus"] == "Failed"
    assert "the name is not UTF-8" in job["FailureReason"]
    assert (kept_in(job["FailureReason"]) / "algo-1" / "checkpoints" / os.fsdecode(b"odd-\xff")).exists()
    assert job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix(f"s3://{client.bucket}/") in files_in(
        client.bucket, ""
    )
    assert files_in(client.bucket, "c/") == {"zero": b"0"}
    told = lines(job["TrainingJobName"])
    assert sum("odd-" in line and "could not be copied" in line for line in told) == 1
    assert sum("out-" in line and "is passed over" in line for line in told) == 1


def test_a_failing_jobs_own_reason_comes_first_and_its_checkpoints_are_kept(
    start_engine: Any, client_of: Any, s3: Any
) -> None:
    client = client_of(start_engine(s3=Uploads(s3, OSError(5, "Input/output error"), "c/last")))
    job = client.run(
        r"""
        open("/opt/ml/checkpoints/last", "w").write("1")
        open("/opt/ml/output/failure", "w").write("odd \0")
        exit(4)
        """,
        CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"},
    )
    reason = job["FailureReason"]
    assert reason.startswith("AlgorithmError: odd \0, exit code: 4; ClientError: Checkpoint upload failed: ")
    assert Path(kept_in(reason), "algo-1", "checkpoints", "last").read_text() == "1"


def test_an_interrupted_job_whose_checkpoints_can_not_be_uploaded_keeps_them(
    start_engine: Any, client_of: Any, s3: Any, lines: Lines
) -> None:
    client = client_of(start_engine(s3=Uploads(s3, OSError(5, "Input/output error"), "c/last")))
    program = f"open('/opt/ml/checkpoints/last', 'w').write('1')\n{textwrap.dedent(ENDLESS)}"
    name = client.submit(program, **SPOT, CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"})
    await_line(lines, name, "up")
    client.engine.interrupt(name)
    job = client.wait(name)
    assert Path(kept_in(job["FailureReason"]), "algo-1", "checkpoints", "last").read_text() == "1"


def test_a_defect_of_the_platform_is_an_internal_error(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("estimators.local.engine.training.runner.lay_out", broken)
    job = client.run()
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"] == "InternalServerError: ZeroDivisionError: oops"
    assert "defect" in caplog.text


# Metrics


@pytest.mark.slow
def test_regexes_that_take_too_long_hold_up_no_stop_and_the_log_names_them(client: Any, lines: Lines) -> None:
    request = client.request(f"for _ in range(3000): print('a' * 22)\n{textwrap.dedent(ENDLESS)}")
    definitions = [{"Name": f"slow-{number}", "Regex": "(a*)*b" + str(number)} for number in range(3)]
    request["AlgorithmSpecification"]["MetricDefinitions"] = definitions
    name = client.create(request)
    deadline = time.monotonic() + 60
    while not any("The metric slow-0 is given up" in line for line in lines(name)):
        assert time.monotonic() < deadline, lines(name)
        time.sleep(0.02)
    client.stop(name)  # the others are still matched
    assert client.wait(name)["TrainingJobStatus"] == "Stopped"  # in a minute; with all lines matched: hours


# Stops


def test_a_stop_sends_sigterm_and_ends_as_stopped_with_the_model(client: Any, lines: Lines, files_in: FilesIn) -> None:
    name = client.submit(
        """
        import signal, sys, time
        def stop(*_):
            open("/opt/ml/model/weights", "w").write("w")
            sys.exit(75)
        signal.signal(signal.SIGTERM, stop)
        print("up", flush=True)
        while True: time.sleep(1)
        """,
        ResourceConfig=TWO_HOSTS,
    )
    await_line(lines, name, "up", "algo-1", "algo-2")
    client.stop(name)
    assert client.describe(name)["TrainingJobStatus"] == "Stopping"
    job = client.wait(name)
    assert client.path_of(job) == ["Starting", "Downloading", "Training", "Stopping", "Uploading", "Stopped"]
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert "FailureReason" not in job
    assert "model.tar.gz" in files_in(client.bucket, f"output/{name}/output/")


def test_after_the_grace_comes_sigkill(start_engine: Any, client_of: Any, lines: Lines) -> None:
    client = client_of(start_engine(grace_seconds=0.3))
    name = client.submit(STUBBORN)
    await_line(lines, name, "up")
    began = time.monotonic()
    client.stop(name)
    assert client.wait(name)["TrainingJobStatus"] == "Stopped"
    assert 0.3 <= time.monotonic() - began < 30


def test_a_stop_during_the_download_ends_it(client: Any, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.local.engine.transfers.objects._CHUNK", 1024)
    body = os.urandom(8 << 20)
    for number in range(4):
        s3.put_object(Bucket=client.bucket, Key=f"data/{number}", Body=body)
    name = client.submit(InputDataConfig=channel(client))
    client.wait_for(name, "Downloading")
    client.stop(name)
    job = client.wait(name)
    assert client.path_of(job) == ["Starting", "Downloading", "Stopping", "Stopped"]


def test_a_stop_right_after_the_creation(client: Any) -> None:
    name = client.submit(ENDLESS)
    client.stop(name)
    job = client.wait(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")


def test_a_finished_job_refuses_a_stop(client: Any) -> None:
    name = client.run()["TrainingJobName"]
    with pytest.raises(ApiError, match="the training job is in status Completed"):
        client.stop(name)


def test_a_full_run_time_stops_the_job(client: Any) -> None:
    job = client.run(ENDLESS, StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert client.path_of(job)[-3:] == ["Stopping", "Uploading", "MaxRuntimeExceeded"]
    assert "ModelArtifacts" in job


def test_a_full_wait_stops_a_spot_job(client: Any, lines: Lines) -> None:
    limits = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}
    job = client.run(ENDLESS, EnableManagedSpotTraining=True, StoppingCondition=limits)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


# Checkpoints and interruptions

COUNT = """
    import os, signal, sys, time
    path = "/opt/ml/checkpoints/count"
    count = int(open(path).read()) if os.path.exists(path) else 0
    print(f"from {count}", flush=True)
    def stop(*_):
        open(path, "w").write(str(count))
        print(f"saved {count}", flush=True)
        sys.exit(75)
    signal.signal(signal.SIGTERM, stop)
    open("/opt/ml/model/life", "w").write("first" if count == 0 else "second")
    while count < 1000 and not (count and os.path.exists("/opt/ml/checkpoints/enough")):
        count += 1
        time.sleep(0.01)
    """


def test_an_interrupted_spot_job_goes_on_from_its_checkpoint(
    start_engine: Any, client_of: Any, s3: Any, lines: Lines
) -> None:
    client = client_of(start_engine(sync_seconds=60))  # what is saved in the grace is copied at the end
    name = client.submit(COUNT, **SPOT, CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"}, ResourceConfig=TWO_HOSTS)
    await_line(lines, name, "from 0", "algo-1", "algo-2")
    s3.put_object(Bucket=client.bucket, Key="c/enough", Body=b"")
    client.engine.interrupt(name)
    job = client.wait(name)
    life = ["Starting", "Downloading", "Training"]
    assert client.path_of(job) == [*life, "Interrupted", *life, "Uploading", "Completed"]
    saved = {line.split()[1] for host in ("algo-1", "algo-2") for line in lines(name, host) if "saved" in line}
    for host in ("algo-1", "algo-2"):
        resumed = next(line.split()[1] for line in lines(name, host) if line.startswith("from") and line != "from 0")
        assert resumed in saved
    assert job["TrainingStartTime"] == job["SecondaryStatusTransitions"][2]["StartTime"]


def test_a_host_that_is_killed_from_outside_is_lost_and_named(client: Any, lines: Lines) -> None:
    name = client.submit(ENDLESS)
    await_line(lines, name, "up")
    kill_from_outside(name)
    reason = "algo-1 was lost: its first process was killed from outside"
    assert client.wait(name)["FailureReason"] == f"InternalServerError: {reason}."
    assert lines(name)[-1] == f"[platform] {reason}"


def test_a_killed_program_that_had_told_its_outcome_is_no_lost_host(client: Any, lines: Lines) -> None:
    name = client.submit(f"open('/opt/ml/output/failure', 'w').write('my own fault')\n{textwrap.dedent(ENDLESS)}")
    await_line(lines, name, "up")
    kill_from_outside(name)
    assert client.wait(name)["FailureReason"] == "AlgorithmError: my own fault, exit code: 137"


def test_a_spot_job_that_loses_a_host_goes_on_from_what_was_saved(
    start_engine: Any, client_of: Any, lines: Lines
) -> None:
    client = client_of(start_engine(sync_seconds=60))
    name = client.submit(
        f"""
        import os
        if os.path.exists("/opt/ml/checkpoints/step"):
            exit(print("from", open("/opt/ml/checkpoints/step").read()))
        open("/opt/ml/checkpoints/step", "w").write("7")
        {textwrap.dedent(ENDLESS).replace(chr(10), chr(10) + " " * 8)}
        """,
        **SPOT,
        CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"},
    )
    await_line(lines, name, "up")
    kill_from_outside(name)
    job = client.wait(name)
    life = ["Starting", "Downloading", "Training"]
    assert client.path_of(job) == [*life, "Interrupted", *life, "Uploading", "Completed"]
    assert lines(name)[-1] == "from 7"


def test_a_spot_job_that_is_lost_again_and_again_fails(fallback: Any) -> None:
    job = fallback.run("import os; os.kill(os.getpid(), 9)", **SPOT)
    life = ["Starting", "Downloading", "Training"]
    assert fallback.path_of(job) == [*life, *["Interrupted", *life] * 2, "Uploading", "Failed"]
    assert job["FailureReason"] == (
        "InternalServerError: algo-1 was lost: its first process was killed from outside. "
        "These are 3 losses in a row without a new checkpoint: the job does not begin again."
    )


def test_losses_with_a_new_checkpoint_in_each_life_do_not_end_a_spot_job(fallback: Any) -> None:
    job = fallback.run(
        """
        import os
        root = os.environ["SAGEMAKER_BASE_DIR"]
        attempts = len(os.listdir(f"{root}/checkpoints"))
        open(f"{root}/checkpoints/{attempts}", "w").close()
        if attempts < 4: os.kill(os.getpid(), 9)
        """,
        **SPOT,
        CheckpointConfig={"S3Uri": f"s3://{fallback.bucket}/c"},
    )
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]


def test_the_second_life_has_a_fresh_opt_ml(client: Any, lines: Lines) -> None:
    name = client.submit(
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(0))
        print("found", os.listdir("/opt/ml/model"), flush=True)
        if not os.path.exists("/opt/ml/checkpoints/mark"):
            open("/opt/ml/model/left", "w"); open("/opt/ml/checkpoints/mark", "w")
            print("up", flush=True)
            while True: time.sleep(1)
        """,
        **SPOT,
        CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c", "LocalPath": "/opt/ml/checkpoints"},
    )
    await_line(lines, name, "up")
    client.engine.interrupt(name)
    assert client.wait(name)["TrainingJobStatus"] == "Completed"
    assert [line for line in lines(name) if line.startswith("found")] == ["found []", "found []"]


def test_a_program_that_ignores_the_interruption_is_killed(start_engine: Any, client_of: Any, lines: Lines) -> None:
    client = client_of(start_engine(grace_seconds=0.2))
    name = client.submit(STUBBORN, **SPOT)
    await_line(lines, name, "up")
    client.engine.interrupt(name)
    client.wait(name, lambda job: client.path_of(job).count("Training") == 2)
    client.stop(name)
    assert client.wait(name)["SecondaryStatus"] == "Stopped"


def test_only_spot_jobs_that_train_are_interrupted(client: Any, lines: Lines) -> None:
    with pytest.raises(ApiError, match="there is no training job nobody"):
        client.engine.interrupt("nobody")
    name = client.submit(ENDLESS)
    await_line(lines, name, "up")
    with pytest.raises(ApiError, match="EnableManagedSpotTraining"):
        client.engine.interrupt(name)
    finished = client.run(**SPOT)["TrainingJobName"]
    with pytest.raises(ApiError, match="is Completed"):
        client.engine.interrupt(finished)


def test_a_stop_during_the_grace_of_an_interruption_wins(
    start_engine: Any, client_of: Any, lines: Lines, tmp_path: Path
) -> None:
    client = client_of(start_engine(grace_seconds=60))
    stopped = tmp_path / "stopped"
    name = client.submit(
        f"""
        import os, signal, time
        def end_after_the_stop(*_):
            while not os.path.exists({str(stopped)!r}): time.sleep(0.01)
            exit(1)
        signal.signal(signal.SIGTERM, end_after_the_stop)
        print("up", flush=True)
        while True: time.sleep(1)
        """,
        **SPOT,
    )
    await_line(lines, name, "up")
    client.engine.interrupt(name)
    client.stop(name)
    stopped.touch()
    job = client.wait(name)
    assert job["SecondaryStatus"] == "Stopped"
    assert "Interrupted" not in client.path_of(job)


def test_checkpoints_are_copied_while_the_job_runs(client: Any, lines: Lines, files_in: FilesIn) -> None:
    name = client.submit(
        "open('/opt/ml/state/now', 'w').write('1'); " + textwrap.dedent(ENDLESS).replace("\n", "\n").lstrip(),
        CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c/", "LocalPath": "/opt/ml/state"},
    )
    await_line(lines, name, "up")
    deadline = time.monotonic() + 60
    while files_in(client.bucket, "c/") != {"now": b"1"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_last_checkpoint_of_a_failing_job_is_kept(client: Any, files_in: FilesIn) -> None:
    client.run(
        "open('/opt/ml/checkpoints/last', 'w').write('1'); exit(1)",
        CheckpointConfig={"S3Uri": f"s3://{client.bucket}/c"},
    )
    assert files_in(client.bucket, "c/") == {"last": b"1"}


# Many jobs, and the engine's end


def test_jobs_run_side_by_side_in_directories_of_their_own(client: Any, lines: Lines) -> None:
    program = """
        import os, time
        open("/opt/ml/model/me", "w").write(os.environ["TRAINING_JOB_NAME"])
        time.sleep(0.3)
        print(open("/opt/ml/model/me").read(), os.environ["SMDDP_MASTER_PORT"])
        """
    names = [client.submit(program, ResourceConfig=TWO_HOSTS) for _ in range(4)]
    ports = set()
    for name in names:
        assert client.wait(name)["TrainingJobStatus"] == "Completed"
        ((seen, port), again) = (lines(name)[0].split(), lines(name, "algo-2")[0].split())
        assert [seen, port] == again
        assert seen == name
        ports.add(port)
    assert len(ports) == 4


def test_closing_ends_all_jobs_at_once_and_leaves_nothing(
    start_engine: Any, client_of: Any, lines: Lines, tmp_path: Path
) -> None:
    directory = tmp_path / "here"
    engine = start_engine(directory=directory, grace_seconds=60)
    client = client_of(engine)
    names = [client.submit(STUBBORN), client.submit(STUBBORN, ResourceConfig=TWO_HOSTS)]
    for name in names:
        await_line(lines, name, "up")
    client.stop(names[0])
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 30
    assert left_over(directory) == []
    assert [client.describe(name)["TrainingJobStatus"] for name in names] == ["Stopped", "Stopped"]
    with pytest.raises(ApiError, match="being closed"):
        client.submit()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_no_host_outlives_an_engine_that_is_killed(endpoint: str, bucket: str, client: Any, tmp_path: Path) -> None:
    token = f"token-{uuid.uuid4().hex}"
    request = client.request(ENDLESS, ResourceConfig=TWO_HOSTS)
    request["AlgorithmSpecification"]["ContainerArguments"] = [token]
    program = f"""
        import json, time, boto3
        from pathlib import Path
        from estimators.local.engine import Engine, Platform
        from estimators.local.executors import ProcessExecutor
        session = boto3.Session(aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
        clients = {{name: session.client(name, endpoint_url={endpoint!r}) for name in ("s3", "logs", "cloudwatch")}}
        platform = Platform(directory=Path({str(tmp_path / "killed")!r}), rescue=Path({str(tmp_path)!r}), **clients,
                            executor=ProcessExecutor(), container_environment={{}}, region="us-east-1")
        engine = Engine(platform, account_id="123456789012")
        engine.call("CreateTrainingJob", json.loads({json.dumps(request)!r}), region="us-east-1")
        time.sleep(60)
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        deadline = time.monotonic() + 60
        while len(processes_with(token)) < 2:
            assert time.monotonic() < deadline
            assert holder.poll() is None
            time.sleep(0.02)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    deadline = time.monotonic() + 60
    while processes_with(token):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.namespaces
def test_what_a_program_leaves_in_its_temporary_directory_goes_away_with_the_job(client: Any, lines: Lines) -> None:
    token = f"token-{uuid.uuid4().hex}"
    job = client.run(f"import tempfile; print(tempfile.mkdtemp(prefix={token!r}))")
    (path,) = lines(job["TrainingJobName"])
    assert path.startswith(f"/opt/ml/tmp/{token}")
    assert not list(Path(tempfile.gettempdir()).glob(f"{token}*"))


# Without namespaces


@pytest.fixture
def fallback(start_engine: Any, client_of: Any) -> Any:
    return client_of(start_engine(executor=ProcessExecutor(isolated=False)))


def test_without_namespaces_a_job_runs_with_a_base_directory_and_addresses(
    fallback: Any, s3: Any, lines: Lines, files_in: FilesIn
) -> None:
    s3.put_object(Bucket=fallback.bucket, Key="data/a.txt", Body=b"content")
    job = fallback.run(
        """
        import json, os, socket
        base = os.environ["SAGEMAKER_BASE_DIR"]
        read = lambda path: open(base + "/input/" + path).read()
        resources = json.loads(read("config/resourceconfig.json"))
        socket.create_server((resources["current_host"], 0)).close()
        open(json.loads(read("config/checkpointconfig.json"))["LocalPath"] + "/c", "w").write("c")
        open(base + "/model/weights", "w").write("w")
        print(read("data/training/a.txt"), len(resources["hosts"]), os.getcwd() == base + "/code")
        """,
        InputDataConfig=channel(fallback),
        ResourceConfig=TWO_HOSTS,
        CheckpointConfig={"S3Uri": f"s3://{fallback.bucket}/c"},
    )
    assert job["TrainingJobStatus"] == "Completed", job
    assert lines(job["TrainingJobName"], "algo-2") == ["content 2 True"]
    assert files_in(fallback.bucket, "c/") == {"c": b"c"}


def test_without_namespaces_a_stop_ends_all_that_the_program_started(fallback: Any, lines: Lines) -> None:
    token = f"token-{uuid.uuid4().hex}"
    name = fallback.submit(
        f"""
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", "{token}"], start_new_session=True)
        print("up", flush=True)
        time.sleep(60)
        """
    )
    await_line(lines, name, "up")
    assert processes_with(token)
    fallback.stop(name)
    assert fallback.wait(name)["TrainingJobStatus"] == "Stopped"
    assert processes_with(token) == []
