"""Trains a small GPT on text, letter by letter, and draws samples of it at the end.

    python char_gpt.py                                               one process
    smddp run --processes-per-node 2 char_gpt.py --steps 500         two on this machine
    srun --ntasks 16 python char_gpt.py                              a Slurm allocation
    Estimator(entry_point="char_gpt.py", source_dir="entrypoints", distribution="torchrun", ...).fit({"training": ...})

The channel ``training`` holds text files (``.txt``, ``.md``). Without the channel, the script trains on Python's own
language reference, from the package ``pydoc_data`` of the standard library. A document is cut into pieces of at most
``block`` letters. The last piece of each is shorter, so batches differ in their numbers of letters, which weigh the
losses.
"""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import smddp

logger = logging.getLogger(__name__)

NO_TARGET = -100  # cross_entropy's default ignore_index


@dataclass
class Config:
    """The hyperparameters."""

    steps: int = 300
    batch_size: int = 32  # pieces, over all processes and micro-batches
    accumulate: int = 1
    block: int = 128  # letters that the model sees at once
    layers: int = 4
    heads: int = 4
    width: int = 128
    lr: float = 1e-3
    warmup_steps: int = 20
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    checkpoint_activations: bool = (
        False  # compute each block again in the backward pass: less memory, a third more time
    )
    evaluate_every: int = 100
    sample_letters: int = 200
    seed: int = 0


def main(config: Config, job: smddp.Job) -> None:
    """Train one rank's share."""
    torch.manual_seed(config.seed)
    documents = read_documents(job.channels.get("training"))
    letters = sorted(set("".join(documents)))
    held_out = max(len(documents) // 20, 1)
    train = Pieces(documents[held_out:], letters, config.block)
    test = Pieces(documents[:held_out], letters, config.block)

    model = GPT(config, len(letters))
    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))
    warmup = min(config.warmup_steps, config.steps // 2)
    trainer = smddp.Trainer(
        job,
        model,
        optimizer,
        scheduler=smddp.warmup_cosine(optimizer, warmup, config.steps, final_ratio=0.1),
        precision=config.precision,
        accumulate=config.accumulate,
        clip_norm=1.0,
        checkpoints=smddp.CheckpointPolicy(on_change="take"),  # a rerun with more steps has its own schedule
        seed=config.seed,
        log_every=20,
    )
    batches = trainer.batches(trainer.loader(train, batch_size=config.batch_size, collate_fn=pad))
    test_loader = trainer.evaluation_loader(test, batch_size=config.batch_size, collate_fn=pad)
    for step in trainer.steps_to(config.steps):
        inputs, targets = next(batches)
        loss = cross_entropy(trainer.model(inputs).flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET)
        is_done = trainer.step(loss, weight=(targets != NO_TARGET).sum())  # a batch counts by its letters
        if is_done and ((step + 1) % config.evaluate_every == 0 or step + 1 == config.steps):
            trainer.log(test_loss=evaluate(trainer, test_loader))
    trainer.save_model()
    if trainer.is_main:
        logger.info("a sample:\n%s", sample(trainer.module, letters, config.sample_letters, trainer.device))


@torch.no_grad()
def evaluate(trainer: smddp.Trainer, loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    """Return the mean loss of a letter over all held-out documents."""
    trainer.model.eval()
    total = count = 0.0
    for inputs, targets in trainer.batches(loader):
        logits = trainer.model(inputs).flatten(0, 1)
        total += cross_entropy(logits, targets.flatten(), ignore_index=NO_TARGET, reduction="sum").item()
        count += int((targets != NO_TARGET).sum())
    trainer.model.train()
    total, count = trainer.sum([total, count]).tolist()
    return total / count


@torch.no_grad()
def sample(model: nn.Module, letters: list[str], count: int, device: torch.device) -> str:
    """Return ``count`` letters, each drawn from the model's prediction after the letters before it."""
    model.eval()
    drawn = torch.zeros(1, 1, dtype=torch.long, device=device)
    for _ in range(count):
        logits = model(drawn[:, -model.block :])[:, -1].float()
        drawn = torch.cat([drawn, torch.multinomial(logits.softmax(dim=-1), 1)], dim=1)
    return "".join(letters[number] for number in drawn[0, 1:].tolist())


class GPT(nn.Module):
    """A transformer with causal attention: letters of (N, T) in, logits of (N, T, letters) out."""

    def __init__(self, config: Config, letters: int) -> None:
        super().__init__()
        if config.width % config.heads:
            raise ValueError(f"width={config.width} must divide by heads={config.heads}")
        self.block = config.block
        self.checkpoint_activations = config.checkpoint_activations
        self.letters = nn.Embedding(letters, config.width)
        self.places = nn.Embedding(config.block, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:  # as GPT-2: layers that add to the residual stream start smaller in a deeper model
                into_stream = name.endswith(("project.weight", "mlp.2.weight"))
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * config.layers) if into_stream else 1))

    def forward(self, letters: Tensor) -> Tensor:
        """Predict the next letter at each position."""
        x = self.letters(letters) + self.places.weight[: letters.shape[1]]
        for block in self.blocks:
            again = self.checkpoint_activations and self.training
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.norm(x) @ self.letters.weight.T  # tied: one matrix embeds and predicts letters


class Block(nn.Module):
    """Attention, then an MLP for each position; both add to their input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (N, T, width)."""
        count, length, width = x.shape
        shape = (count, length, 3, self.heads, width // self.heads)
        query, key, value = self.attend(self.norms[0](x)).view(shape).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(count, length, width))
        return x + self.mlp(self.norms[1](x))


class Pieces(Dataset[Tensor]):
    """The documents as numbers, in pieces of at most ``block`` letters plus the next letter as the last target."""

    def __init__(self, documents: list[str], letters: list[str], block: int) -> None:
        number = {letter: place for place, letter in enumerate(letters)}
        self.pieces = [
            torch.tensor([number[letter] for letter in document[start : start + block + 1]])
            for document in documents
            for start in range(0, len(document) - 1, block)
        ]
        if not self.pieces:
            raise ValueError("the text has no document of two letters or more")

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Tensor:
        return self.pieces[index]


def pad(pieces: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of (N, T), where T is the longest piece; padding has NO_TARGET."""
    inputs = pad_sequence([piece[:-1] for piece in pieces], batch_first=True)
    targets = pad_sequence([piece[1:] for piece in pieces], batch_first=True, padding_value=NO_TARGET)
    return inputs, targets


def read_documents(channel: Path | None) -> list[str]:
    """Return the text files of the channel in the order of their names, or Python's language reference."""
    if channel is None:
        from pydoc_data.topics import topics

        logger.warning("there is no channel 'training': this trains on Python's language reference")
        return [text for _, text in sorted(topics.items())]
    files = sorted(file for file in channel.rglob("*") if file.suffix in (".txt", ".md"))
    documents = [text for file in files if (text := file.read_text(encoding="utf-8", errors="replace").strip())]
    if len(documents) < 2:
        raise ValueError(f"{channel} has {len(documents)} text files (.txt, .md) with text: give two or more")
    return documents


if __name__ == "__main__":
    smddp.run(main)
