"""The programs of the five documents that smddp grew from: what runs each here, and what is different.

A row is one `Program`. The programs of a document run one after the other in one directory that holds ``entrypoints/``,
ten classes of colours in CIFAR-10's format (``data/``), in Fashion-MNIST's (``fashion/``) and some text (``text/``).
``$PORT`` is a free port. After a change: ``python -m tests.seeds.table`` runs all and writes the page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One program of a document."""

    program: str
    """What the document calls it, with the section where it has no name."""
    command: str
    """What runs it here."""
    shows: str
    """What it prints: a regular expression, whose named groups are the result. The last match counts."""
    differs: str
    """What is different here, and why, in a few words; the rest is in the page's second table."""


DDP = r"demo=(?P<demo>\w+) ranks=(?P<ranks>\d) first_loss=(?P<first_loss>[\d.]+) last_loss=(?P<last_loss>[\d.]+)"
TRAINED = r"training on (?P<ranks>\d) [\s\S]*step=(?P<step>\d+) epoch=\S+ accuracy=(?P<accuracy>[\d.]+)"
TUTORIAL = "smddp run --processes-per-node 2 entrypoints/ddp_tutorial.py --demo"
SMALL = "--batch-size 20 --lr 0.01"  # for 500 images instead of 50,000; 2 epochs if nothing else is said
CIFAR10 = "smddp run --processes-per-node 2 --run-dir runs/cifar10 entrypoints/cifar10.py"
BEST = "smddp checkpoints best runs/cifar10/checkpoints --metric accuracy"
BY_ADDRESS = "RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT"
BY_OPENPAI = (
    "PAI_HOST_IP_worker_0=127.0.0.1 PAI_HOST_IP_worker_1=127.0.0.1 PAI_worker_0_SynPort_PORT=$PORT PAI_TASK_INDEX=$task"
)
TORCHRUN = "torchrun --nnodes=1 --nproc_per_node=2 --rdzv_id=100 --rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:0"

PROGRAMS: dict[str, list[Program]] = {
    "Getting Started with (Automatic Mixed Precision and) Distributed Data Parallel": [
        Program(
            program="`demo_basic`",
            command=f"{TUTORIAL} basic",
            shows=DDP,
            differs="20 steps on each rank's own data, not one; the ranks' weights are compared",
        ),
        Program(
            program="`demo_checkpoint`",
            command=f"{TUTORIAL} checkpoint",
            shows=DDP,
            differs="a verified checkpoint that all ranks write, not a temporary pickle",
        ),
        Program(
            program="`demo_model_parallel`",
            command=f"{TUTORIAL} model_parallel",
            shows=DDP,
            differs="without GPUs both halves are on the CPU; never run on GPUs",
        ),
        Program(
            program="`elastic_ddp.py`, by torchrun",
            command=f"{TORCHRUN} entrypoints/ddp_tutorial.py --demo basic",
            shows=DDP,
            differs="one file for every launcher; gloo without a GPU",
        ),
    ],
    "Pytorch Distributed Training": [
        Program(
            program="Usage: `main.py --nodes 1 --gpus 2 --epochs 5`",
            command=f"python entrypoints/cifar10.py --nodes 1 --gpus 2 --epochs 5 {SMALL}",
            shows=TRAINED,
            differs="each epoch has its own order; the test set is tested",
        ),
    ],
    "Distributed data parallel training in OpenPai": [
        Program(
            program="Without multiprocessing: `main.py -n 1 -g 1 -nr 0`",
            command=f"SMDDP_RUN_DIR=runs/one python entrypoints/cifar10.py -n 1 -g 1 -nr 0 {SMALL}",
            shows=TRAINED,
            differs="with momentum, and a learning rate of 0.01",
        ),
        Program(
            program="Multi-GPU: `cifar10-distributed.py -n 1 -g 2`",
            command=f"SMDDP_RUN_DIR=runs/two python entrypoints/cifar10.py -n 1 -g 2 {SMALL}",
            shows=TRAINED,
            differs="the batch size is global: two processes take as many steps as one",
        ),
        Program(
            program="Multi-node: `cifar10-distributed.py` in OpenPAI's environment",
            command=f"for task in 0 1; do {BY_OPENPAI} SMDDP_RUN_DIR=runs/pai"
            f" python entrypoints/cifar10.py -n 2 -g 1 {SMALL} & done; wait",
            shows=TRAINED,
            differs="an older OpenPAI's variables, and today's, are read without a line in the script",
        ),
        Program(
            program="With Apex, `opt_level='O2'`",
            command=f"smddp run --processes-per-node 2 --run-dir runs/o2 entrypoints/cifar10.py --precision O2 {SMALL}",
            shows=TRAINED,
            differs="float16 copies of float32 weights and a loss scaler, by PyTorch alone",
        ),
    ],
    "Distributed Data Parallel": [
        Program(
            program="Basics, `ex1.py`: two processes by rank and address",
            command=f"for rank in 0 1; do {BY_ADDRESS} python entrypoints/ddp_tutorial.py --demo basic & done; wait",
            shows=DDP,
            differs="only environment variables, as `env://` reads them",
        ),
        Program(
            program="Basics: Hydra's `job.rank=1`",
            command="smddp run --processes-per-node 2 --run-dir runs/hydra entrypoints/hydra_digits/train.py"
            " optimizer=adam epochs=2",
            shows=TRAINED.replace("accuracy=", "test_accuracy="),
            differs="Hydra configures the training; the ranks are the launcher's",
        ),
        Program(
            program="Launcher, `ex2.py`",
            command=f"{TUTORIAL} basic",
            shows=DDP,
            differs="the launcher passes the script's options on unchanged",
        ),
        Program(
            program="DDP Communication: `p2p.py`, `bcast.py`, …",
            command="smddp collectives --processes-per-node 2 --size 4KiB --seconds 0.001 --json found.jsonl &&"
            ' echo "right: $(grep -c \'"is_right": true\' found.jsonl)"',
            shows=r"(?P<backend>\w+) on cpu, (?P<ranks>\d) rank[\s\S]*right: (?P<right>\d+)",
            differs="each operation with each reduction, the result checked and timed",
        ),
        Program(
            program="DDP Training, `ex4`",
            command=f"{CIFAR10} {SMALL}",
            shows=TRAINED,
            differs="also precision, accumulation and checkpoints",
        ),
        Program(
            program="Checkpointing: Prevent Overfitting",
            command=BEST,
            shows=r"/step-0*(?P<best_step>\d+)$",
            differs="the metric is in the checkpoint; every byte of the best is verified",
        ),
        Program(
            program="Checkpointing: Model Publishing",
            command=f'smddp checkpoints export "$({BEST})" model',
            shows=r"wrote model: model of step (?P<best_step>\d+)",
            differs="safetensors, and a state_dict; loading them runs no code",
        ),
        Program(
            program="Checkpointing: Transfer Learning",
            command="SM_CHANNEL_TRAINING=fashion SM_CHANNEL_WEIGHTS=resnet18 smddp run --processes-per-node 2"
            " --run-dir runs/transfer entrypoints/transfer_learning.py --epochs 2 --batch-size 8 --workers 0",
            shows=r"training on (?P<ranks>\d)[\s\S]*?(?P<transferred>\d+) of the module's (?P<of>\d+) weights"
            r"[\s\S]*step=(?P<step>\d+) epoch=2/2 accuracy=",
            differs="weights are matched by name; a different last layer is reported, any other difference is an error",
        ),
        Program(
            program="Checkpointing: Failure Recovery",
            command=f"{CIFAR10} {SMALL} --epochs 3",
            shows=r"resumed at step (?P<resumed_at>\d+)"
            r"[\s\S]*step=(?P<step>\d+) epoch=3/3 accuracy=(?P<accuracy>[\d.]+)",
            differs="optimizer, schedule, random numbers and position in the data are restored, on any number of ranks",
        ),
    ],
}
