"""A loop by Accelerate as its own documentation has it; it never heard of smddp."""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_args()

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
batches = 0
for _ in range(arguments.epochs):
    for (inputs,) in loader:
        loss = (model(inputs) - inputs).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        batches += 1
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {batches} batches", flush=True)
accelerator.wait_for_everyone()
accelerator.save_model(model, os.environ["SM_MODEL_DIR"])
accelerator.end_training()
