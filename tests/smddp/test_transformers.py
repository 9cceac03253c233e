"""transformers' own Trainer on smddp's ranks: who they are, its metrics, and a stop in mid-epoch that goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from smddp.cluster import Cluster
from smddp.errors import DistributedError
from smddp.job import Job
from tests.ports import free_port

pytestmark = pytest.mark.loops

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_STEP_NODELIST": "n[1-2]",
}

SCRIPT = """
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
import smddp
from smddp.transformers import MetricsCallback, StopCallback, export_ranks

class Steps(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.is_world_process_zero:
            print("step", state.global_step, flush=True)

def main(job: smddp.Job) -> None:
    export_ranks(job.cluster)
    stop = StopCallback(job)
    tiny = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    arguments = TrainingArguments(
        output_dir=str(job.checkpoint_dir), max_steps={steps}, per_device_train_batch_size=4, save_strategy="no",
        logging_steps=10, report_to="none", disable_tqdm=True,
    )
    data = [{"input_ids": torch.tensor([n % 20, 3, 4]), "labels": n % 2} for n in range(4000)]
    callbacks = [Steps(), stop, MetricsCallback()]
    trainer = Trainer(BertForSequenceClassification(tiny), arguments, train_dataset=data, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=stop.resume_from)
    print("done", trainer.state.global_step, flush=True)

smddp.run(main)
"""


def start(path: Path, *, steps: int) -> subprocess.Popen[str]:
    (path / "train.py").write_text(SCRIPT.replace("{steps}", str(steps)))
    return subprocess.Popen(
        [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run", "train.py"],
        cwd=path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)  # three programs, each of which imports it
@pytest.mark.usefixtures("fork_python")
def test_a_stop_saves_on_all_ranks_and_the_next_attempt_goes_on_to_the_end(tmp_path):
    process = start(tmp_path, steps=10_000)
    assert process.stdout is not None
    while process.stdout.readline() != "step 20\n":
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 75, error
    assert re.search(r"step=10 epoch=1/\d+ loss=[0-9.]+ grad_norm=[0-9.]+ lr=[0-9.e-]+\n", error)
    stopped_at = max([20, *map(int, re.findall(r"step (\d+)", out))]) + 1
    assert (tmp_path / "run" / "checkpoints" / f"checkpoint-{stopped_at}" / "rng_state_1.pth").exists()

    out, error = start(tmp_path, steps=stopped_at + 5).communicate(timeout=120)
    assert [int(step) for step in re.findall(r"step (\d+)", out)] == list(range(stopped_at, stopped_at + 5)), error
    assert out.count(f"done {stopped_at + 5}") == 2
    assert (tmp_path / "run" / "checkpoints" / f"checkpoint-{stopped_at + 5}").exists(), "a rerun would train again"


def test_a_checkpoint_whose_save_was_cut_off_is_passed_over(tmp_path, caplog):
    from transformers import TrainerState

    from smddp.transformers import StopCallback

    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    assert StopCallback(job).resume_from is None
    for step in (9, 10, 100):
        (job.checkpoint_dir / f"checkpoint-{step}").mkdir(parents=True)
    for step in (9, 10):
        TrainerState(global_step=step).save_to_json(job.checkpoint_dir / f"checkpoint-{step}" / "trainer_state.json")
    assert StopCallback(job).resume_from == str(job.checkpoint_dir / "checkpoint-10")
    assert "checkpoint-100: its save was cut off" in caplog.text
    torn = job.checkpoint_dir / "checkpoint-10" / "trainer_state.json"
    torn.write_text(torn.read_text()[:20])
    assert StopCallback(job).resume_from == str(job.checkpoint_dir / "checkpoint-9")


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"world_size": 1}, DistributedError, r"counts 1 ranks, and the launcher has 4: call .*export_ranks"),
        ({"save_only_model": True}, ValueError, "save_only_model=True leaves nothing to resume from"),
        ({"output_dir": "elsewhere"}, ValueError, "output_dir='elsewhere', and the next attempt looks in"),
    ],
)
def test_arguments_with_which_a_stop_would_lose_work_are_refused(options, error, told, tmp_path):
    from types import SimpleNamespace

    from smddp.transformers import StopCallback

    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)}, Cluster.detect(SLURM))
    good = {"world_size": 4, "save_only_model": False, "output_dir": str(job.checkpoint_dir)}
    with pytest.raises(error, match=told):
        StopCallback(job).on_train_begin(SimpleNamespace(**(good | options)), None, None)


def test_a_variable_of_another_launcher_is_refused():
    from smddp.errors import DistributedError
    from smddp.transformers import export_ranks

    with pytest.raises(DistributedError, match="LOCAL_RANK=7 is set, and Accelerate would believe it; by slurm it is"):
        export_ranks(Cluster.detect(SLURM), {**SLURM, "LOCAL_RANK": "7"})


def test_the_ranks_of_slurm_are_told_as_torchrun_tells_them():
    from smddp.transformers import export_ranks

    environ = dict(SLURM)
    export_ranks(environ=environ)
    told = {name: environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")}
    assert told == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1"}
    assert Cluster.detect(environ).world_size == 4


ACCELERATED = """
import torch
from accelerate import Accelerator
import smddp
from smddp.transformers import export_ranks

def main(job: smddp.Job) -> None:
    export_ranks(job.cluster)
    accelerator = Accelerator()
    ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
    print(f"{accelerator.process_index} of {accelerator.num_processes}, all: {ranks}", flush=True)

smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("fork_python")
def test_accelerate_finds_the_tasks_of_srun(tmp_path):
    (tmp_path / "train.py").write_text(ACCELERATED)
    one_node = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    hosts = {"SLURM_TASKS_PER_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "n1"}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tasks = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=os.environ | SLURM | one_node | hosts | master | {"SLURM_PROCID": task, "SLURM_LOCALID": task},
            stdout=subprocess.PIPE,
            text=True,
        )
        for task in ("0", "1")
    ]
    printed = [task.communicate(timeout=120)[0] for task in tasks]
    assert printed == ["0 of 2, all: [0, 1]\n", "1 of 2, all: [0, 1]\n"]


def test_a_variable_that_says_something_else_is_refused():
    from smddp.transformers import export_ranks

    with pytest.raises(DistributedError, match=r"LOCAL_RANK=0 is set.*; by slurm it is LOCAL_RANK=1: unset"):
        export_ranks(Cluster.detect(SLURM), {"LOCAL_RANK": "0"})


def test_one_process_alone_gets_no_variables():
    from smddp.transformers import export_ranks

    environ: dict[str, str] = {}
    export_ranks(Cluster.detect({}), environ)
    assert environ == {}


FINE_TUNING = """
import os
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
import smddp

def main(job):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = torch.arange(32).view(4, 8)
    for tied in (True, False):
        if job.cluster.is_main:
            config = LlamaConfig(vocab_size=96, tie_word_embeddings=tied, **sizes)
            LlamaForCausalLM(config).save_pretrained(f"tied-{tied}", max_shard_size="20KB")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=96, tie_word_embeddings=tied, **sizes))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = smddp.Sharded(wrap=(LlamaDecoderLayer,))
        trainer = smddp.Trainer(job, model, optimizer, parallel=parallel, name=f"tied-{tied}", precision="fp32")
        smddp.load_weights(trainer.module, f"tied-{tied}")
        whole = AutoModelForCausalLM.from_pretrained(f"tied-{tied}")
        with torch.no_grad():
            assert trainer.model(input_ids=tokens).logits.equal(whole(input_ids=tokens).logits)
        trainer.step(trainer.model(input_ids=tokens, labels=tokens).loss)
        trainer.save_model()
        whole(input_ids=tokens, labels=tokens).loss.backward()
        torch.optim.SGD(whole.parameters(), lr=0.1).step()
        directory = job.part(f"tied-{tied}").model_dir
        if job.cluster.is_main:
            model.config.save_pretrained(directory)
            again = AutoModelForCausalLM.from_pretrained(directory)
            assert torch.allclose(again(input_ids=tokens).logits, whole(input_ids=tokens).logits, atol=1e-5)
            print("the same")

smddp.run(main)
"""


@pytest.mark.slow
def test_a_sharded_model_is_fine_tuned_from_a_directory_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FINE_TUNING)
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run", "train.py"]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=110)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n").count("the same") == 2
