"""A migrated script sends what it sent, keeps its comments and its layout, and what can't be migrated is said."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import re
import subprocess
import tokenize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.errors import EstimatorError
from estimators.migrate import parameter_names as names
from estimators.migrate.migration import migrate
from estimators.sdk.adapter import adapter
from tests.estimators.migrate.scripts import OF_V2, OF_V3
from tests.estimators.migrate.sent_by_scripts import lay_out_code, sent_by
from tests.estimators.test_request import differing, documented_differences
from tests.sdk_v3 import python_with_sdk_v3

ROOT = Path(__file__).parents[3]
ALL = {**OF_V2, **OF_V3}
LEFT_OPEN = {
    "an import in a function": [
        (4, "the estimator is passed to code that this does not follow"),
        (6, "**more stays as it is: its keys are not written out in this script"),
    ]
}


@pytest.mark.parametrize("name", ALL)
def test_the_script_is_rewritten_and_the_rest_of_it_stays(name: str) -> None:
    before, after = ALL[name]
    migration = migrate(before.encode())
    assert migration.source.decode() == after
    open_notes = [(note.line, note.found) for note in migration.notes if note.is_open]
    assert (migration.migrated, open_notes) == (1, LEFT_OPEN.get(name, []))


@pytest.mark.parametrize("name", ALL)
def test_a_migrated_script_has_nothing_to_migrate(name: str) -> None:
    after = ALL[name][1].encode()
    again = migrate(after)
    assert (again.source, again.migrated, again.notes) == (after, 0, ())


@pytest.mark.slow
def test_a_migrated_script_of_v2_sends_what_it_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lay_out_code()
    for before, after in OF_V2.values():
        vanilla, ours = (job for script in (before, after) for job in sent_by([script])[0])
        assert differing(vanilla, ours) <= documented_differences()


@pytest.fixture(scope="module")
def of_v3(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the scripts send with V3 alone, before and after; and the members of V3's classes."""
    directory = tmp_path_factory.mktemp("v3")
    (directory / "scripts.json").write_text(json.dumps([script for pair in OF_V3.values() for script in pair]))
    (directory / "there").mkdir()
    program = ("-m", "tests.estimators.migrate.sent_by_scripts", directory / "scripts.json", directory / "answers.json")
    ended = subprocess.run(
        [python_with_sdk_v3(directory / "v3"), *program],
        cwd=directory / "there",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    return dict(json.loads((directory / "answers.json").read_text()))


@pytest.mark.sdk_v3
@pytest.mark.slow
def test_a_migrated_script_of_v3_asks_for_the_same_job(of_v3: dict[str, Any]) -> None:
    answers = of_v3["sent"]
    for before, after in zip(answers[::2], answers[1::2], strict=True):
        (theirs,), (ours,) = before, after
        assert compared(theirs) == compared(ours)
        assert ours["HyperParameters"]["sagemaker_program"] == '"train.py"'


def compared(request: dict[str, Any]) -> dict[str, Any]:
    """Return what both SDKs say in a request, without what starts the script, and without their defaults."""
    algorithm = request["AlgorithmSpecification"]
    channels = {
        channel["ChannelName"]: (
            {"S3DataDistributionType": "FullyReplicated", **channel["DataSource"]["S3DataSource"]},
            channel.get("ContentType"),
        )
        for channel in request["InputDataConfig"]
        if channel["ChannelName"] not in ("code", "sm_drivers")
    }
    own = ("TrainingJobName", "AlgorithmSpecification", "ProfilerConfig", "InputDataConfig", "HyperParameters")
    rest = {name: value for name, value in request.items() if name not in own and value not in (False, {})}
    if "/models" not in rest["OutputDataConfig"]["S3OutputPath"]:  # each has a default of its own
        del rest["OutputDataConfig"]
    else:
        rest["OutputDataConfig"] = {"KmsKeyId": "", **rest["OutputDataConfig"]}
    values = {name: value for name, value in request["HyperParameters"].items() if not name.startswith("sagemaker_")}
    image, mode = algorithm["TrainingImage"], algorithm["TrainingInputMode"]
    return {**rest, "channels": channels, "hyperparameters": values, "image": image, "mode": mode}


@pytest.mark.sdk_v3
@pytest.mark.slow
def test_each_member_of_v3_has_a_parameter_or_a_reason(of_v3: dict[str, Any]) -> None:
    members = of_v3["members"]
    unused = {"config_mgr", "model_package_config", "selected_instance_type", "selected_instance_count"}
    tables = dict(names.CONFIGURATIONS.values())
    tables["ModelTrainer"] = {**names.TRAINER_PARAMETERS, **names.CONFIGURATIONS}
    tables["S3DataSource"], tables["FileSystemDataSource"] = names.TRAINING_INPUT, names.FILE_SYSTEM_INPUT
    for kind, table in tables.items():
        assert table.keys() <= set(members[kind]), kind
        if kind not in ("S3DataSource", "FileSystemDataSource"):
            assert set(members[kind]) <= table.keys() | names.NO_PLACE.keys() | unused, kind
    assert set(names.TRAINING_INPUT.values()) <= set(members["TrainingInput"])
    assert set(names.FILE_SYSTEM_INPUT.values()) <= set(members["FileSystemInput"])


def test_the_tables_hold_parameters_of_the_estimator() -> None:
    from sagemaker.estimator import Estimator
    from sagemaker.pytorch import PyTorch

    for kind in (PyTorch, Estimator):
        positions = tuple(inspect.signature(kind.__init__).parameters)[1:]
        table = names.POSITIONS[kind.__name__]
        assert positions[: len(table)] == table
    of_generic = set(inspect.signature(Estimator.__init__).parameters)
    assert set(inspect.signature(PyTorch.__init__).parameters) - of_generic == names.PYTORCH_ALONE
    values = [*names.V1_NAMES.values(), *names.TRAINER_PARAMETERS.values()]
    values += [parameter for _, table in names.CONFIGURATIONS.values() for parameter in table.values()]
    assert set(values) <= adapter().parameter_names()


HEAD_V2 = "from sagemaker.pytorch import PyTorch\n"
HEAD_V3 = """\
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import SourceCode, Compute, InputData, Networking
"""
TRAINER = 'ModelTrainer(training_image="mine", source_code=SourceCode(source_dir="code", entry_script="t.py"), '

OPEN = {
    "a subclass": (
        HEAD_V2 + "class Mine(PyTorch):\n    pass\n",
        2,
        "class Mine is a kind of sagemaker.pytorch.PyTorch",
    ),
    "attach": (HEAD_V2 + "PyTorch.attach('job').deploy()\n", 2, "PyTorch.attach(…) is not migrated"),
    "deploy": (HEAD_V2 + "e = PyTorch('t.py')\ne.fit()\ne.deploy(1)\n", 4, "e.deploy: the Estimator has no deploy"),
    "a pipeline": (
        HEAD_V2 + "e = PyTorch('t.py')\nStep(step_args=e.fit())\n",
        3,
        "with a pipeline's session it is a step",
    ),
    "a pipeline, from a function": (
        HEAD_V2 + "def arguments():\n    e = PyTorch('t.py')\n    return e.fit(1)\n",
        4,
        "it is a step",
    ),
    "a pipeline, in a dict": (HEAD_V2 + "e = PyTorch('t.py')\nstep = {'step_args': e.fit(1)}\n", 3, "it is a step"),
    "pipelines": (HEAD_V2 + "e = PyTorch('t.py')\nsteps = [e.fit(u) for u in us]\n", 3, "it is a step"),
    "a pipeline's session": (
        HEAD_V2 + "from sagemaker.workflow.pipeline_context import PipelineSession as Session\n"
        "e = PyTorch('t.py', sagemaker_session=Session())\ne.fit()\n",
        3,
        "the script has a PipelineSession, with which a job is a step",
    ),
    "a pipeline, by and by": (HEAD_V2 + "e = PyTorch('t.py')\nargs = e.fit()\n", 3, "it is a step"),
    "an attribute that deploys": (
        HEAD_V2 + "class Job:\n    def __init__(self):\n        self.e = PyTorch('t.py')\n"
        "    def run(self):\n        self.e.fit()\n        self.e.deploy()\n",
        7,
        "self.e.deploy: the Estimator has no deploy",
    ),
    "another method asks": (
        HEAD_V2 + "class Job:\n    def __init__(self):\n        self.e = PyTorch('t.py')\n        self.e.fit()\n"
        "    def run(self):\n        self.e.model_data\n",
        7,
        "the TrainingJob that fit() returns has it",
    ),
    "a class in a variable": (HEAD_V2 + "kind = PyTorch\nPyTorch('t.py')\n", 2, "named without being called"),
    "unpacked positions": (HEAD_V2 + "PyTorch(*given)\n", 2, "given is an argument by position"),
    "a name in a dict": (
        HEAD_V2 + "common = dict(train_max_run=1)\nPyTorch('t.py', **common)\n",
        3,
        "**common has 'train_max_run', which is no parameter of the Estimator. Call it max_run there.",
    ),
    "a version that is not there": (
        HEAD_V2 + "PyTorch('t.py', '0.3', 'py3', instance_type='ml.m5.xlarge')\n",
        2,
        "the installed SDK refuses the versions: ",
    ),
    "an exception": (
        HEAD_V2 + "from sagemaker.exceptions import UnexpectedStatusException as U\n"
        "try:\n    PyTorch('t.py').fit()\nexcept (OSError, U):\n    pass\n",
        5,
        "Catch TrainingJobFailed of estimators.errors.",
    ),
    "no script": (
        "from sagemaker.estimator import Estimator\nEstimator('image', 'role', 1, 'ml.m5.xlarge')\n",
        2,
        "without an entry_point runs what is in its image",
    ),
    "a recipe": (HEAD_V3 + "ModelTrainer.from_recipe('a')\n", 3, "ModelTrainer.from_recipe(…) is not migrated"),
    "a command": (
        HEAD_V3 + "ModelTrainer(training_image='a', source_code=SourceCode(command='a')).train()\n",
        3,
        "the Estimator has no parameter for command of SourceCode",
    ),
    "an algorithm": (HEAD_V3 + TRAINER + "algorithm_name='a').train()\n", 3, "the Estimator has no algorithm_name"),
    "no checkpoint prefix": (
        HEAD_V3 + "from sagemaker.train.configs import CheckpointConfig\n"
        f"{TRAINER}checkpoint_config=CheckpointConfig()).train()\n",
        4,
        "CheckpointConfig without s3_uri",
    ),
    "a private member": (HEAD_V3 + f"t = {TRAINER})\nt.train()\nt._latest_training_job\n", 5, "_latest_training_job"),
    "a builder": (HEAD_V3 + f"t = {TRAINER})\nt.with_retry_strategy(r)\n", 4, "Give the Estimator max_retry_attempts."),
    "a parameter": (
        HEAD_V3 + f"def run(compute):\n    {TRAINER}compute=compute).train()\n",
        4,
        "what compute holds is not to be seen",
    ),
    "all names at once": (
        "from sagemaker.train import ModelTrainer\nfrom sagemaker.train.configs import *\n" + TRAINER + ").train()\n",
        3,
        "(line 2 imports all of sagemaker.train.configs: import what it uses by name)",
    ),
    "a changed configuration": (
        HEAD_V3 + f"compute = Compute()\ncompute.instance_count = 2\n{TRAINER}compute=compute).train()\n",
        5,
        "compute is used in line 4, too, where it stays V3's",
    ),
    "hyperparameters in a variable": (
        HEAD_V3 + f"HP = 'a.json'\n{TRAINER}hyperparameters=HP).train()\n",
        4,
        "the path of a file",
    ),
    "a class of its own": (
        HEAD_V3 + "TrainingInput = 1\n"
        f"{TRAINER}).train([InputData(channel_name='a', data_source='s3://a/b', content_type='a')])\n",
        4,
        "the script has a TrainingInput of its own",
    ),
    "a compression in a variable": (
        HEAD_V3 + "from sagemaker.train.configs import OutputDataConfig\nKIND = 'NONE'\n"
        f"{TRAINER}output_data_config=OutputDataConfig(compression_type=KIND)).train()\n",
        5,
        "no parameter for compression_type of OutputDataConfig",
    ),
    "requirements elsewhere": (
        HEAD_V3 + "ModelTrainer(training_image='a', source_code=SourceCode(source_dir='a', entry_script='t.py',\n"
        "    requirements='more/dev.txt')).train()\n",
        4,
        "no parameter for requirements of SourceCode. The training toolkit installs requirements.txt",
    ),
    "a variable of other things": (
        HEAD_V3 + f"t = None\nif 1:\n    t = {TRAINER})\nt.train()\n",
        5,
        "t is not always a ModelTrainer that is made here",
    ),
    "options with spaces": (
        HEAD_V3 + f"from sagemaker.train.distributed import MPI\n{TRAINER}"
        "distributed=MPI(mpi_additional_options=['-x A'])).train()\n",
        4,
        "hold spaces",
    ),
    "a file": (
        HEAD_V3 + f"{TRAINER}).train([InputData(channel_name='a', data_source='./data')])\n",
        3,
        "ModelTrainer uploads './data'",
    ),
    "torchrun's processes": (
        HEAD_V3 + f"from sagemaker.train.distributed import Torchrun\n{TRAINER}"
        "distributed=Torchrun(process_count_per_node=2)).train()\n",
        4,
        "the Estimator has no process_count_per_node for Torchrun",
    ),
    "hyperparameters in a file": (HEAD_V3 + f"{TRAINER}hyperparameters='a.json').train()\n", 3, "the path of a file"),
    "a trainer that goes on": (HEAD_V3 + f"run({TRAINER}))\n", 3, "is passed to code that this does not follow"),
    "a dry run": (HEAD_V3 + f"{TRAINER}).train(dry_run=True)\n", 3, "fit() has no dry_run=True"),
}
NOT_FOLLOWED = {
    "passed on": ("def run(e):\n    e.fit()\n    print(e.model_data)\nrun(PyTorch('t.py'))\n", 5, "is passed to code"),
    "in a list": ("es = [PyTorch('t.py')]\nfor e in es:\n    e.fit()\n    e.deploy(1)\n", 2, "is passed to code"),
    "in a dict": ("d = {'a': PyTorch('t.py')}\nd['a'].fit()\nd['a'].model_data\n", 2, "is passed to code"),
    "as an item": ("d = {}\nd['a']: PyTorch = PyTorch('t.py')\nd['a'].model_data\n", 3, "is passed to code"),
    "an alias": ("a = PyTorch('t.py')\nb = a\nb.fit()\nb.model_data\n", 3, "is passed to code"),
    "an annotated alias": ("a = PyTorch('t.py')\nb: PyTorch = a\nb.model_data\n", 3, "is passed to code"),
    "two names": ("a = b = PyTorch('t.py')\na.fit()\nb.model_data\n", 2, "is passed to code"),
    "returned": ("def make():\n    return PyTorch('t.py')\nmake().model_data\n", 3, "is passed to code"),
    "by getattr": ("e = PyTorch('t.py')\ne.fit()\ngetattr(e, 'model_data')\n", 4, "is passed to code"),
    "by globals": ("e = PyTorch('t.py')\ne.fit()\nglobals()['e'].model_data\n", 4, "globals() reaches variables"),
    "for others": ("e = PyTorch('t.py')\n", 2, "e is not used in this script"),
    "another object's": (
        "class J:\n    def __init__(self):\n        self.e = PyTorch('t.py')\n        self.e.fit()\nJ().e.model_data\n",
        6,
        "J().e may be the estimator of line 4",
    ),
    "a class's": ("class J:\n    e = PyTorch('t.py')\nJ.e.model_data\n", 4, "J.e may be the estimator of line 3"),
    "a job that failed": (
        "e = PyTorch('t.py')\ntry:\n    e.fit()\nexcept Exception:\n    e.latest_training_job.name\n",
        6,
        "fit() may not have come before it, or not to its end. Then there is no job: ask it where",
    ),
    "a job that may be": ("e = PyTorch('t.py')\nif x:\n    e.fit()\ne.model_data\n", 5, "fit() may not have come"),
    "unseen arguments": ("def f(**more):\n    PyTorch('t.py', **more).fit()\n", 3, "**more stays as it is: its keys"),
    "in __all__": ("__all__ = ['e']\ne = PyTorch('t.py')\ne.fit()\n", 3, "e is in __all__"),
    "a dict that a function may change": (
        "def f(d):\n    d['train_max_run'] = 1\na = dict(max_run=1)\nf(a)\nPyTorch('t.py', **a).fit()\n",
        6,
        "**a stays as it is: its keys",
    ),
    "a class that is patched": ("PyTorch.fit = print\nPyTorch('t.py').fit()\n", 2, "PyTorch.fit is named without"),
    "a class in a text": ("patch('sagemaker.pytorch.PyTorch.fit')\nPyTorch('t.py').fit()\n", 2, "PyTorch.fit is named"),
    "a module that goes on": (
        "import sagemaker.pytorch\ngetattr(sagemaker.pytorch, 'PyTorch')\nPyTorch('t.py').fit()\n",
        3,
        "sagemaker.pytorch is named without being called",
    ),
    "an error of another name": (
        "from sagemaker.exceptions import CapacityError\nE = (CapacityError, OSError)\n"
        "try:\n    PyTorch('t.py').fit()\nexcept E:\n    pass\n",
        3,
        "does not raise CapacityError",
    ),
    "a ValueError": (
        "try:\n    PyTorch('t.py').fit()\nexcept ValueError:\n    pass\n",
        4,
        "raises a kind of ValueError",
    ),
    "a module of the same name": ("from estimators import mine\nPyTorch('t.py').fit()\n", 2, "a module of your own"),
    "merged arguments": ("a = {'train_max_run': 1}\nPyTorch('t.py', **{**a}).fit()\n", 3, "stays as it is: its keys"),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_is_not_followed_is_left_to_do_with_its_line(name: str) -> None:
    script, line, words = NOT_FOLLOWED[name]
    migration = migrate((HEAD_V2 + script).encode())
    told = [(note.line, str(note)) for note in migration.notes if note.is_open]
    assert [each for each in told if each[0] == line and words in each[1]], told
    assert (migration.migrated, migration.is_complete) == (1, False)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            HEAD_V2 + "PyTorch('t.py', instance_count=1, train_instance_count=2).fit()\n",
            "instance_count is given twice",
        ),
        (HEAD_V2 + "PyTorch('t.py', mistyped=(limit := 3)).fit()\nprint(limit)\n", "do it before the call"),
        (
            HEAD_V3 + f"{TRAINER}).train(input_data_config=[InputData(channel_name='a', data_source='s3://b/1'), "
            "InputData(channel_name='a', data_source='s3://b/2')])\n",
            "a is the name of several channels",
        ),
    ],
)
def test_a_call_that_would_change_its_meaning_stays(script: str, words: str) -> None:
    migration = migrate(script.encode())
    assert (migration.migrated, migration.source.decode()) == (0, script)
    assert [note for note in migration.notes if note.is_open and words in str(note)]


def test_a_variable_that_holds_something_else_too_is_not_migrated() -> None:
    script = HEAD_V2 + "e = PyTorch('t.py')\ne.fit()\ne = other()\nprint(e.model_data)\n"
    migration = migrate(script.encode())
    assert (migration.migrated, migration.source.decode()) == (0, script)
    assert [note.found for note in migration.notes] == ["e is not always an estimator that is made here"]


@pytest.mark.parametrize(
    "script",
    [
        "e = None\ndef f():\n    global e\n    e = PyTorch('t.py')\ndef g():\n    e.fit()\n    print(e.model_data)\n",
        "for lr in (1, 2):\n    e = PyTorch('t.py')\n    e.fit(wait=False)\n    print(e.latest_training_job.name)\n",
        "e = PyTorch('t.py')\ne.fit()\nif e is not None:\n    for _ in 'ab':\n        print(e.model_data)\n",
    ],
    ids=["global", "loop", "below"],
)
def test_what_is_followed_to_its_end_leaves_nothing_to_do(script: str) -> None:
    migration = migrate((HEAD_V2 + script).encode())
    assert (migration.migrated, migration.is_complete) == (1, True), migration.notes


MIGRATED_ALL_THE_SAME = ("a class in a variable", "a version that is not there", "an exception")


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.slow
def test_what_can_not_be_migrated_is_said_with_its_line(name: str) -> None:
    script, line, words = OPEN[name]
    migration = migrate(script.encode())
    told = [(note.line, str(note)) for note in migration.notes if note.is_open]
    assert [each for each in told if each[0] == line and words in each[1]], told
    assert not migration.is_complete
    assert (migration.source.decode() == script) == (name not in MIGRATED_ALL_THE_SAME)


def test_jobs_that_share_a_configuration_are_migrated_together_or_not_at_all() -> None:
    trainer = f"{TRAINER}compute=compute)"
    two = f"compute = Compute(instance_count=2)\na = {trainer}\na.train()\nb = {trainer}\n"
    together = migrate((HEAD_V3 + two + "b.train()\n").encode())
    assert together.migrated == 2
    assert together.source.decode().count("**compute") == 2
    apart = migrate((HEAD_V3 + two + "b._latest_training_job\n").encode())
    assert (apart.migrated, apart.source.decode()) == (0, HEAD_V3 + two + "b._latest_training_job\n")
    assert [note.found for note in apart.notes if note.line == 4] == ["it shares compute with the job of line 6"]


def test_the_jobs_of_two_estimators_have_a_variable_each() -> None:
    one = "{0} = PyTorch('t.py')\n{0}.fit()\nprint({0}.model_data)\n"
    script = HEAD_V2 + one.format("a") + one.format("b") + one.format("a")
    after = migrate(script.encode()).source.decode()
    new = "{0} = Estimator('t.py')\n{1} = {0}.fit()\nprint({1}.model_data)\n"
    both = new.format("a", "job") + new.format("b", "training_job") + new.format("a", "job")
    assert after == "from estimators import Estimator\n" + both


def test_annotations_and_attributes_follow() -> None:
    script = (
        "from __future__ import annotations\nimport sagemaker\nclass Job:\n"
        "    def __init__(self, kind: type[sagemaker.pytorch.PyTorch] | None):\n"
        "        self.e: sagemaker.pytorch.PyTorch = sagemaker.pytorch.PyTorch('t.py')\n"
        "        self.e.fit()\n        print(self.e.latest_training_job.name)\n"
    )
    assert migrate(script.encode()).source.decode() == (
        "from __future__ import annotations\nfrom estimators import Estimator\nclass Job:\n"
        "    def __init__(self, kind: type[Estimator] | None):\n"
        "        self.e: Estimator = Estimator('t.py')\n"
        "        job = self.e.fit()\n        print(job.name)\n"
    )


def test_what_is_left_is_said_again() -> None:
    script, line, words = OPEN["an exception"]
    again = migrate(migrate(script.encode()).source)
    assert again.migrated == 0
    assert [(note.line, words in str(note), note.is_open) for note in again.notes] == [(line, True, True)]


def test_the_keys_of_a_dict_that_is_read_are_seen() -> None:
    script = HEAD_V2 + "common = {'train_max_run': 1}\nprint(common['train_max_run'])\nPyTorch('t.py', **common)\n"
    assert "Call it max_run there." in str(migrate(script.encode()).notes[0])
    written = script.replace("print(common['train_max_run'])", "common['a'] = 1")
    assert "its keys are not written out" in str(migrate(written.encode()).notes[1])


def test_what_is_none_is_left_out() -> None:
    script = HEAD_V3 + f"{TRAINER}compute=None, tags=None, distributed=None).train(None)\n"
    migration = migrate(script.encode())
    assert migration.is_complete
    assert migration.source.decode().splitlines()[-1] == (
        'Estimator(image_uri="mine", source_dir="code", entry_point="t.py", instance_type="ml.m5.xlarge", max_run=3600)'
        ".fit(None)"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("debugger_hook_config=None, profiler_config=None", "debugger_hook_config=True, disable_profiler=False"),
        ("debugger_hook_config=False, disable_profiler=None", "disable_profiler=False"),
        ("rules=None, disable_profiler=True", "debugger_hook_config=True"),
    ],
)
def test_none_is_the_sdks_default(given: str, told: str) -> None:
    notes = [str(note) for note in migrate(f"{HEAD_V2}PyTorch('t.py', {given})\n".encode()).notes]
    assert [note for note in notes if note.endswith(f"For a job as before give {told}.")], notes


def test_an_import_of_the_estimator_in_a_function_is_that_functions() -> None:
    script = HEAD_V2 + "def f():\n    from estimators import Estimator\n    Estimator('t.py')\nPyTorch('t.py')\n"
    after = migrate(script.encode()).source.decode()
    assert after.startswith("from estimators import Estimator as SmddpEstimator\n")
    assert after.endswith("\nSmddpEstimator('t.py')\n")


@pytest.mark.parametrize("head", ["# -*- coding: latin-1 -*-\n", "\ufeff"])
def test_the_encoding_stays(head: str) -> None:
    encoding = "latin-1" if "latin" in head else "utf-8"
    script = (head + HEAD_V2 + "# Schlüssel\nPyTorch('t.py')\n").encode(encoding)
    assert migrate(script).source == script.replace(
        b"sagemaker.pytorch import PyTorch", b"estimators import Estimator"
    ).replace(b"PyTorch(", b"Estimator(")


def test_an_estimator_of_the_scripts_own_keeps_its_name() -> None:
    script = "class Estimator: ...\n" + HEAD_V2 + "PyTorch('t.py').fit()\nEstimator()\n"
    after = migrate(script.encode()).source.decode()
    assert "from estimators import Estimator as SmddpEstimator\nSmddpEstimator('t.py').fit()\nEstimator()\n" in after


def test_what_is_imported_for_something_else_stays() -> None:
    script = "import sagemaker.pytorch, os\nsagemaker.pytorch.PyTorch('t.py').fit()\nsagemaker.pytorch.PyTorchModel()\n"
    after = migrate(script.encode()).source.decode()
    assert after.startswith("import sagemaker.pytorch, os\nfrom estimators import Estimator\nEstimator('t.py').fit()\n")
    for line in ("PyTorchModel, PyTorch", "PyTorch, PyTorchModel", "(\n    PyTorchModel,\n    PyTorch,\n)"):
        after = migrate(
            f"from sagemaker.pytorch import {line}\nPyTorch('t.py')\nPyTorchModel()\n".encode()
        ).source.decode()
        kept = "(\n    PyTorchModel,\n)" if "(" in line else "PyTorchModel"
        assert after.startswith(f"from sagemaker.pytorch import {kept}\nfrom estimators import Estimator\n")
    exported = HEAD_V2 + "__all__ = ['PyTorch']\nPyTorch('t.py').fit()\n"
    assert migrate(exported.encode()).source.decode().startswith(HEAD_V2)


def test_a_tuner_gets_the_sdks_own_object() -> None:
    script = (
        HEAD_V2
        + "from sagemaker.tuner import HyperparameterTuner\ne = PyTorch('t.py')\nHyperparameterTuner(e, 'loss')\n"
    )
    assert "HyperparameterTuner(e.to_sagemaker(), 'loss')" in migrate(script.encode()).source.decode()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print(1)\n", "no call of sagemaker.pytorch.PyTorch"),
        ("from sagemaker.pytorch import *\nPyTorch('t.py')\n", "line 1 imports all of sagemaker.pytorch"),
        ("x = (\n", "line 1: '(' was never closed"),
        ("x = '\xff'\n", "is no text"),
    ],
)
def test_what_is_no_submit_script_is_refused(script: str, words: str) -> None:
    with pytest.raises(EstimatorError, match=re.escape(words)):
        migrate(script.encode("latin-1"))


PIECES = {
    "V2": (HEAD_V2, ["PyTorch(", "'t.py',", "'2.8.0',", "role = ROLE,", "train_max_run=1,", "script_mode=1,", ")"]),
    "V3": (
        HEAD_V3,
        [
            *("ModelTrainer(", "training_image='mine',", "source_code=SourceCode(", "source_dir='code',"),
            *(
                "entry_script='t.py'",
                "),",
                "compute=Compute(",
                "volume_size_in_gb=9,",
                "),",
                "networking=Networking(",
                "),",
            ),
            *("training_mode=Mode.SAGEMAKER_TRAINING_JOB,", "role=ROLE,", ")"),
        ],
    ),
}


@settings(deadline=None, max_examples=60)
@given(data=st.data(), kind=st.sampled_from(sorted(PIECES)))
@pytest.mark.slow
def test_comments_survive_and_layout_decides_nothing(data: st.DataObject, kind: str) -> None:
    head, pieces = PIECES[kind]
    spaces = st.sampled_from(["", " ", "\n", "\n    ", "  # C\n", "\n  # C\n    ", "\n\n# C\n# C\n"])
    drawn = [data.draw(spaces) for _ in pieces[1:]]
    for number in range(sum(space.count("C") for space in drawn)):
        where = next(index for index, space in enumerate(drawn) if "# C" in space)
        drawn[where] = drawn[where].replace("# C", f"# c{number}", 1)
    text = head + "x = " + "".join(piece + space for piece, space in zip(pieces, [*drawn, ""], strict=True)) + "\n"
    after = migrate(text.encode()).source.decode()
    plain = migrate((head + "x = " + "".join(pieces) + "\n").encode()).source.decode()
    assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(plain))
    assert sorted(comments(after)) == sorted(comments(text))


def comments(text: str) -> list[str]:
    """Return all comments, those that share a line apart."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [part for token in tokens if token.type == tokenize.COMMENT for part in token.string.split("  ")]
