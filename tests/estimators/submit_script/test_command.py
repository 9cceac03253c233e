"""``smddp plan`` shows each job of a submit script, and sends none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.submit_script import run
from smddp.cli.app import app

SUBMIT = """
import sys
import boto3
from estimators import Estimator

print("about to send")
options = dict(role="arn:aws:iam::123456789012:role/SageMaker", instance_type="ml.g5.xlarge", max_run=3600)
estimator = Estimator("train.py", **options, hyperparameters={"epochs": 3})
"""


CREATE = """
try:
    boto3.client("sagemaker").create_training_job(
        TrainingJobName="a",
        RoleArn="arn:aws:iam::123456789012:role/A",
        AlgorithmSpecification={"TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://b"},
        ResourceConfig={},
        StoppingCondition={},
    )
except Exception:
    pass
"""


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An account, as the working directory's submit script finds it, without a job at the end, either."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    (tmp_path / "train.py").write_text("print('training')\n")
    (tmp_path / "prices.json").write_text('{"ml.g5.xlarge": 1.408}')
    with mock_aws():
        yield
        assert not boto3.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]


@pytest.fixture
def plan(tmp_path: Path, may_send_again: None) -> Any:
    def run(body: str, *options: str) -> Any:
        (tmp_path / "submit.py").write_text(SUBMIT + body)
        return CliRunner().invoke(app, ["plan", "submit.py", *options])

    return run


@pytest.mark.slow
def test_a_job_that_can_be_sent_is_shown(plan: Any) -> None:
    shown = plan("estimator.fit({'training': 's3://data/train'})", "--prices", "prices.json", "--max-cost", "2")
    assert (shown.exit_code, "about to send" in shown.stderr) == (0, True)
    assert shown.stdout.splitlines()[:2] == [
        "1 × ml.g5.xlarge, the script alone",
        "  cost: $1.41 an hour, at most $1.41 for 1 h (prices.json)",
    ]
    with pytest.raises(EstimatorError, match="fit\\(\\) sends nothing while SMDDP_NOTHING_SENT is set"):
        Estimator("train.py").fit()


@pytest.mark.slow
def test_a_job_that_costs_too_much_fails_the_command(plan: Any) -> None:
    refused = plan("estimator.fit()", "--prices=prices.json", "--max-cost=1")
    assert refused.exit_code == 1
    assert "error: max_cost: the job may cost $1.41 an hour" in refused.stdout


@pytest.mark.slow
def test_the_scripts_own_limit_counts_unless_the_command_gives_one(plan: Any) -> None:
    body = "estimator.fit(prices='prices.json', max_cost=1)"
    assert plan(body).exit_code == 1
    assert plan(body, "--max-cost", "3").exit_code == 0


@pytest.mark.slow
def test_one_document_holds_all_jobs_and_their_policies(plan: Any) -> None:
    body = """
options["instance_type"] = sys.argv[1]
job = estimator.fit(job_name="first")
job.wait()
assert job.name == "first"
options.pop("role")
Estimator("train.py", **options).fit("data", False)
"""
    shown = plan(body, "--json", "--iam", "--", "ml.m5.xlarge")
    document = json.loads(shown.stdout)
    assert (shown.exit_code, document["can_be_sent"], document["stopped"]) == (1, False, None)
    first, second = document["jobs"]
    assert first["hosts"] == [{"count": 1, "instance_type": "ml.g5.xlarge"}]
    assert {statement["Sid"] for statement in first["iam"]["submitter"]["Statement"]} >= {"TrainingJob", "PassRole"}
    assert second["hosts"][0]["instance_type"] == "ml.m5.xlarge"
    assert {problem["parameter"] for problem in second["problems"]} == {"role", "inputs['training']"}
    assert second["iam"] is None


def test_a_training_script_is_refused_before_it_trains(tmp_path: Path) -> None:
    script = "import smddp\n\ndef main(job: smddp.Job) -> None: ...\n\n"
    (tmp_path / "sine.py").write_text(
        f"{script}open('trained', 'w')\nif __name__ == '__main__':\n    smddp.run(main)\n"
    )
    refused = CliRunner().invoke(app, ["plan", "sine.py"])
    assert refused.exit_code == 2
    assert "sine.py is a training script: it calls smddp.run" in refused.stderr
    assert not (tmp_path / "trained").exists()


@pytest.mark.slow
def test_the_policies_are_printed(plan: Any) -> None:
    shown = plan("estimator.fit(); estimator.fit('data')", "--iam").stdout
    assert "job 2: 1 × ml.g5.xlarge" in shown
    assert '"Sid": "WriteOutput"' in shown.partition("The user who sends it needs:")[0]
    assert '"Sid": "PassRole"' in shown.partition("The user who sends it needs:")[2]
    assert "The policies that it needs are not known: it has errors" in shown


@pytest.mark.slow
def test_what_only_a_sent_job_has_ends_the_script(plan: Any) -> None:
    shown = plan("print(estimator.fit().model_data)\nraise ValueError('never come to')")
    assert shown.exit_code == 0
    assert "The script was not run to its end: it reads .model_data of a job, and no job is sent here" in shown.stdout


@pytest.mark.slow
def test_a_rehearsal_is_not_run(plan: Any) -> None:
    shown = plan("estimator.rehearse()\nestimator.fit(job_name='real')\nestimator.rehearse().resumed")
    assert (shown.exit_code, shown.stdout.count("1 × ml.g5.xlarge")) == (0, 1)
    assert "it reads .resumed of a rehearsal, and none is run here" in shown.stdout


@pytest.mark.parametrize(
    ("body", "options", "rehearsed"),
    [
        ("print(estimator.rehearse('data', steps=3))", [], "('data', 3, 600, False)"),
        ("estimator.rehearse(isolated=True, steps=3)", ["--steps=5", "--seconds=9"], "(None, 5, 9, True)"),
        ("estimator.fit('data', rehearse=7)", [], "('data', 7, 600, False)"),
        ("estimator.fit('data')", ["--isolated"], "('data', 20, 600, True)"),
    ],
)
def test_the_first_call_of_fit_or_rehearse_is_rehearsed_once(
    tmp_path: Path,
    may_send_again: None,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    options: list[str],
    rehearsed: str,
) -> None:
    def rehearse(
        _: Estimator, inputs: Any = None, *, steps: int = 20, seconds: int = 600, isolated: bool = False
    ) -> Any:
        return (inputs, steps, seconds, isolated)

    monkeypatch.setattr(Estimator, "rehearse", rehearse)
    (tmp_path / "submit.py").write_text(f"{SUBMIT}{body}\nestimator.rehearse('second')\nestimator.fit()\n")
    shown = CliRunner().invoke(app, ["rehearse", "submit.py", *options])
    assert (shown.exit_code, shown.stdout) == (0, f"{rehearsed}\n"), shown.output


def test_a_plan_of_a_script_that_only_rehearses_names_the_command_that_does(plan: Any) -> None:
    shown = plan("print(estimator.rehearse())")
    assert shown.exit_code == 2
    assert "(a rehearsal, and none is run here)\n" in shown.stderr
    assert "It calls rehearse(), which sends no job: run smddp rehearse submit.py." in shown.stderr


@pytest.mark.slow
def test_jobs_that_threads_send_are_shown(plan: Any) -> None:
    body = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda name: estimator.fit(job_name=name), ["a", "b"]))
"""
    jobs = json.loads(plan(body, "--json").stdout)["jobs"]
    assert {job["resources"]["job_name"] for job in jobs} == {"a", "b"}


@pytest.mark.parametrize(
    "body",
    [
        CREATE,
        "boto3.client('s3').create_bucket(Bucket='sagemaker-us-east-1-123456789012')\n"
        "estimator.to_sagemaker().fit(wait=False)",
    ],
    ids=["boto3", "to_sagemaker"],
)
@pytest.mark.slow
def test_a_job_past_the_estimator_is_not_sent(plan: Any, body: str) -> None:
    boto3.client("s3")  # a session that was there before
    refused = plan(body)
    assert refused.exit_code == 2, refused.output
    assert "it calls CreateTrainingJob itself, which is not sent here" in refused.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "submit.py has ended, and sent no job. It must call fit()"),
        ("estimator.fitt()", "submit.py has failed in line 9: AttributeError: 'Estimator' object has no attribute"),
        ("sys.exit('no data')", "submit.py has ended with 'no data'"),
        ("estimator.fit(prices='prices.txt')", "prices is 'prices.txt', no file of prices"),
        ("estimator.fit(waiting=True)", "TypeError: got an unexpected keyword argument 'waiting'"),
    ],
)
@pytest.mark.slow
def test_a_script_that_fails_is_told_of_in_one_line(plan: Any, body: str, said: str) -> None:
    failed = plan(body)
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert said in failed.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "body",
    [
        f"def create():{CREATE.replace(chr(10), chr(10) + '    ')}\n"
        "import threading\nthread = threading.Thread(target=create)\nthread.start(); thread.join()",
        f"try:{CREATE.replace(chr(10), chr(10) + '    ')}\nexcept BaseException:\n    pass",
    ],
    ids=["in a thread", "caught"],
)
@pytest.mark.slow
def test_a_refusal_that_the_script_does_not_see_is_told(plan: Any, body: str) -> None:
    shown = plan(f"estimator.fit()\n{body}", "--json")
    document = json.loads(shown.stdout)
    assert (shown.exit_code, document["can_be_sent"], len(document["jobs"])) == (1, False, 1)
    assert document["stopped"].startswith("it calls CreateTrainingJob itself, which is not sent here")


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("os._exit(0)", "it ends its process at once, by os._exit()"),
        ("os.execvp('true', ['true'])", "it puts another program in its place, by os.exec…()"),
        ("os.execle('/bin/true', 'true', {})", "it puts another program in its place, by os.exec…()"),
    ],
)
@pytest.mark.slow
def test_a_script_that_ends_the_process_does_not_pass(plan: Any, ending: str, said: str) -> None:
    nothing = plan(f"import os\n{ending}")
    assert (nothing.exit_code, nothing.stdout) == (2, "")
    assert f"submit.py was not run to its end: {said}" in nothing.stderr
    shown = plan(f"import os\nestimator.fit()\n{ending}", "--json")
    document = json.loads(shown.stdout)
    assert (shown.exit_code, document["stopped"], len(document["jobs"])) == (1, said, 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.slow
def test_a_thread_that_ends_the_process_does_not_pass(plan: Any) -> None:
    body = "import os, threading\nestimator.fit()\nthreading.Thread(target=os._exit, args=(0,)).start()"
    shown = plan(body)
    assert shown.exit_code == 1
    assert "The script was not run to its end: it ends its process at once, by os._exit()" in shown.stdout


@pytest.mark.parametrize(
    ("last", "code"),
    [("", 0), ("sys.exit(3)", 3), ("raise ValueError('in the child')", 1)],
    ids=["end", "exit", "error"],
)
@pytest.mark.slow
def test_a_script_that_forks_is_planned_once(tmp_path: Path, last: str, code: int) -> None:
    body = f"""
import os
estimator.fit()
if child := os.fork():
    print("the child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    {last or "pass"}
"""
    (tmp_path / "submit.py").write_text(SUBMIT + body)
    command = [sys.executable, "-m", "smddp.cli", "plan", "submit.py", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (shown.returncode, len(json.loads(shown.stdout)["jobs"])) == (0, 1), shown.stderr
    assert f"the child ended with {code}" in shown.stderr
    assert ("ValueError: in the child" in shown.stderr) == (code == 1)


@pytest.mark.slow
def test_a_thread_that_does_not_end_is_told(plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_THREADS_END", 0.2)
    told = tmp_path / "told"
    body = f"""
import threading, time
from pathlib import Path

def run_on():
    while not Path({str(told)!r}).exists():
        time.sleep(0.02)

estimator.fit()
threading.Thread(target=run_on, name="slow").start()
"""
    try:
        shown = plan(body)
    finally:
        told.touch()
    assert shown.exit_code == 1
    assert "its thread slow still runs after" in shown.stdout


LATER = """
import atexit, os, subprocess, threading, time
from concurrent.futures import ThreadPoolExecutor

def send():
    time.sleep(0.5)
    try:
        estimator.fit(job_name="later")
    except BaseException as refusal:
        print("refused:", type(refusal).__name__, refusal, file=sys.stderr)

estimator.fit()
"""


@pytest.mark.parametrize(
    "body",
    [
        "threading.Thread(target=send).start()",
        "pool = ThreadPoolExecutor(); pool.submit(send)",
        "threading.Thread(target=send).start(); sys.exit()",
    ],
    ids=["thread", "pool", "exit"],
)
@pytest.mark.slow
def test_a_job_of_a_thread_that_outlives_the_main_line_is_shown(plan: Any, body: str) -> None:
    assert len(json.loads(plan(LATER + body, "--json").stdout)["jobs"]) == 2


@pytest.mark.slow
def test_at_exit_and_in_child_processes_nothing_is_sent_or_printed(tmp_path: Path) -> None:
    body = """
atexit.register(send)
if not os.fork():
    send()
    os._exit(0)
os.wait()
other = "from estimators import Estimator; Estimator('train.py').fit()"
subprocess.run([sys.executable, "-c", other])
os.system("echo a child")
print("past the script's own output", file=sys.__stdout__)
"""
    (tmp_path / "submit.py").write_text(SUBMIT + LATER + body)
    command = [sys.executable, "-m", "smddp.cli", "plan", "submit.py", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (shown.returncode, len(json.loads(shown.stdout)["jobs"])) == (0, 1)
    assert shown.stderr.count("refused: EstimatorError fit() sends nothing while") == 2, shown.stderr
    assert "estimators.errors.EstimatorError: fit() sends nothing while" in shown.stderr
    assert "\na child\n" in shown.stderr


@pytest.mark.timeout(300)  # a whole job
def test_a_rehearsal_trains_the_first_job_here_and_sends_none_to_aws(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, smddp\n"
        "def main(job: smddp.Job) -> None:\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=4)\n"
        "    for _ in trainer.epochs(100):\n"
        "        for (batch,) in trainer.batches(loader):\n"
        "            trainer.step(trainer.model(batch).mean())\n"
        "    trainer.save_model()\n"
        "if __name__ == '__main__':\n"
        "    smddp.run(main)\n"
    )
    (tmp_path / "submit.py").write_text(SUBMIT + "estimator.fit()\nprint('is', 'not reached')\n")
    rehearsal = (
        "from pathlib import Path\n"
        "from estimators.submit_script.jobs import rehearsed_job\n"
        "print(rehearsed_job(Path('submit.py'), [], steps=2))\n"
        "import os; from estimators.estimator import NOTHING_SENT; assert NOTHING_SENT in os.environ\n"
    )
    shown = subprocess.run([sys.executable, "-c", rehearsal], capture_output=True, text=True, check=False, timeout=300)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("rehearsed on 1 × ml.g5.xlarge"), shown.stdout
    assert ": 2 steps in" in shown.stdout
    assert "about to send" in shown.stderr
    assert "is not reached" not in shown.stderr
