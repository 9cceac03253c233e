"""A training by transformers' Trainer as its own documentation has it; it never heard of smddp."""

import os

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(arguments.seed)
config = BertConfig(
    vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
)
data = [{"input_ids": torch.tensor([number % 20, 3, 4]), "labels": number % 2} for number in range(64)]
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=data)
trainer.train()
ranks, step = arguments.world_size, trainer.state.global_step
print(f"rank {arguments.process_index} of {ranks}: {step} batches", flush=True)
trainer.save_model(os.environ["SM_MODEL_DIR"])
