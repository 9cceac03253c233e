"""Trains a decoder like Llama on text, byte by byte, with its weights divided among the ranks.

    python language_model.py                                         one process, whole weights
    smddp run --processes-per-node 2 language_model.py               two on this machine, half of the weights each
    srun --ntasks 16 python language_model.py                        a Slurm allocation
    Estimator(entry_point="language_model.py", source_dir="entrypoints", distribution="torchrun", ...).fit(
        {"training": "s3://bucket/text"}, hyperparameters={"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8})

The channel ``training`` holds text files (``.txt``, ``.md``). Without the channel, the script trains on Python's own
language reference, from the package ``pydoc_data`` of the standard library. The texts are joined, and cut into pieces
of ``context`` bytes; a rest is left out.

The model is made on PyTorch's meta device, so that no host needs memory for all of it. ``--shard none`` trains with
DDP. A resume may have another number of ranks, and another ``--shard``. A job of several hosts needs
``checkpoint_s3_uri``.
"""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import smddp

logger = logging.getLogger(__name__)

BYTES = 256


@dataclass
class Config:
    """The hyperparameters."""

    steps: int = 300
    batch_size: int = 32  # pieces, over all processes and micro-batches
    accumulate: int = 1
    context: int = 128  # bytes that the model sees at once
    layers: int = 4
    width: int = 128
    heads: int = 4
    kv_heads: int = 2  # heads of keys and values, each for several heads of queries
    lr: float = 2e-3
    warmup_steps: int = 20
    clip_norm: float = 1.0
    ema: float = 0.0  # decay of the weights' moving average, which is then evaluated and written; 0: no average
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    shard: str = "all"  # the ranks that divide the weights: all, host, or a number of ranks; none: DDP
    checkpoint_activations: bool = (
        False  # compute each block again in the backward pass: less memory, a third more time
    )
    compile: bool = False  # each block; needs a C++ compiler on a CPU
    evaluate_every: int = 100
    sample_bytes: int = 200
    seed: int = 0


def main(config: Config, job: smddp.Job) -> None:
    """Train one rank's share."""
    torch.manual_seed(config.seed)
    text = read_text(job.channels.get("training"))
    if len(text) < (least := 2 * config.context * config.batch_size):
        raise ValueError(
            f"the text has {len(text)} bytes: give {least}, two batches, or a smaller context or batch_size"
        )
    held_out = len(text) // 20 + config.context
    train, test = Pieces(text[held_out:], config.context), Pieces(text[:held_out], config.context)

    with torch.device("meta"):
        model = Decoder(config)
    if config.compile:
        for block in model.blocks:
            block.compile()
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
        clip_norm=config.clip_norm,
        ema=config.ema or None,
        parallel=parallel(config.shard),
        checkpoints=smddp.CheckpointPolicy(on_change="take"),  # a rerun with more steps has its own schedule
        seed=config.seed,
        log_every=20,
    )
    batches = trainer.batches(trainer.loader(train, batch_size=config.batch_size))
    test_loader = trainer.evaluation_loader(test, batch_size=config.batch_size)
    trained = trainer.model if trainer.ema is None else trainer.ema
    for step in trainer.steps_to(config.steps):
        pieces = next(batches)
        is_done = trainer.step(loss_of(trainer.model(pieces[:, :-1]), pieces))
        if is_done and ((step + 1) % config.evaluate_every == 0 or step + 1 == config.steps):
            trainer.log(test_loss=evaluate(trainer, trained, test_loader))
    trainer.save_model(trainer.ema)
    # Each call of a sharded model waits for all ranks: so all draw the same bytes.
    drawn = sample(trained, config.context, config.sample_bytes, trainer.device)
    if trainer.is_main:
        logger.info("a sample:\n%s", drawn.decode(errors="replace"))


def parallel(shard: str) -> smddp.DDPOptions | smddp.Sharded:
    """Return how the ranks work together."""
    if shard == "none":
        return smddp.DDPOptions()
    if shard not in ("all", "host") and not shard.isdecimal():
        raise ValueError(f"shard={shard!r}: give all, host, none, or a number of ranks")
    return smddp.Sharded(wrap=(Block,), shard=int(shard) if shard.isdecimal() else shard)


def loss_of(logits: Tensor, pieces: Tensor) -> Tensor:
    """Return the mean loss of a byte: ``logits`` of (N, T, 256) predict all but the first of the T + 1 bytes."""
    return cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())


@torch.no_grad()
def evaluate(trainer: smddp.Trainer, model: nn.Module, loader: DataLoader[Tensor]) -> float:
    """Return the mean loss of a byte over the held-out text."""
    total = count = 0.0
    for pieces in trainer.batches(loader):
        total += float(loss_of(model(pieces[:, :-1]), pieces)) * len(pieces)
        count += len(pieces)
    total, count = trainer.sum([total, count]).tolist()
    return total / count


@torch.no_grad()
def sample(model: nn.Module, context: int, count: int, device: torch.device) -> bytes:
    """Return ``count`` bytes, each drawn from the model's prediction after the bytes before it."""
    generator = torch.Generator().manual_seed(0)
    drawn = [ord("\n")]
    for _ in range(count):
        logits = model(torch.tensor([drawn[-context:]], device=device))[0, -1].float().cpu()
        drawn.append(int(torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)))
    return bytes(drawn[1:])


class Decoder(nn.Module):
    """A transformer as Llama's: bytes of (N, T) in, logits of (N, T, 256) out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.width % (2 * config.heads) or config.heads % config.kv_heads:
            raise ValueError(
                f"width={config.width} must divide by two times heads={config.heads}, and heads by "
                f"kv_heads={config.kv_heads}"
            )
        self.layers, self.checkpoint_activations = config.layers, config.checkpoint_activations
        self.embed = nn.Embedding(BYTES, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.predict = nn.Linear(config.width, BYTES, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, layer: nn.Module) -> None:
        """Draw the weights of a layer; the Trainer calls it for a model on the meta device."""
        if isinstance(layer, nn.Linear | nn.Embedding):
            # As GPT-2: layers that add to the residual stream begin smaller in a deeper model.
            depth = math.sqrt(2 * self.layers) if getattr(layer, "adds_to_stream", False) else 1
            nn.init.normal_(layer.weight, std=0.02 / depth)

    def forward(self, text: Tensor) -> Tensor:
        """Predict the next byte at each position."""
        x = self.embed(text)
        for block in self.blocks:
            again = self.checkpoint_activations and self.training
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.predict(self.norm(x))


class Block(nn.Module):
    """Attention with rotated positions, then a gated MLP; both add to their input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads, self.kv_heads = config.width, config.heads, config.kv_heads
        self.size = width // config.heads
        inner = 64 * math.ceil(8 * width / 3 / 64)  # as many weights as an MLP of 4 × width without a gate
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * config.kv_heads * self.size, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.project.adds_to_stream = self.down.adds_to_stream = True

    def forward(self, x: Tensor) -> Tensor:
        """Take and return (N, T, width)."""
        count, length, width = x.shape
        inputs = self.norms[0](x)
        query = self.query(inputs).view(count, length, self.heads, self.size).transpose(1, 2)
        key_value = self.key_value(inputs).view(count, length, 2, self.kv_heads, self.size)
        key, value = key_value.permute(2, 0, 3, 1, 4).repeat_interleave(self.heads // self.kv_heads, dim=2)
        attended = scaled_dot_product_attention(rotated(query), rotated(key), value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(count, length, width))
        inputs = self.norms[1](x)
        return x + self.down(silu(self.gate(inputs)) * self.up(inputs))


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of (N, heads, T, size) by angles that grow with the position: RoPE."""
    length, size = x.shape[-2:]
    speeds = 10_000 ** -(torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.arange(length, device=x.device)[:, None] * speeds
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class Pieces(Dataset[Tensor]):
    """A text in pieces of ``context`` bytes, each with the byte after it as the last target."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text, self.context = torch.frombuffer(bytearray(text), dtype=torch.uint8), context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.text[start : start + self.context + 1].long()


def read_text(channel: Path | None) -> bytes:
    """Return the text files of the channel in the order of their names, or Python's language reference."""
    if channel is None:
        from pydoc_data.topics import topics

        logger.warning("there is no channel 'training': this trains on Python's language reference")
        return "\n".join(text for _, text in sorted(topics.items())).encode()
    files = sorted(file for file in channel.rglob("*") if file.suffix in (".txt", ".md"))
    return b"\n".join(file.read_bytes() for file in files)


if __name__ == "__main__":
    smddp.run(main)
