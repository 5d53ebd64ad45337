"""Has tensors on all GPUs of the machine, by torch: see ``tests/gpu/__main__.py``.

Answers lines: ``work`` makes and drops tensors, and is answered by JSON, {device: bytes that torch
says it has allocated since the first line}; ``end`` drops all of them.
"""

import json
import sys

import torch

DEVICES = range(torch.cuda.device_count())
kept = []


def weights(device):
    kept.append(torch.empty(1 << 20, device=f"cuda:{device}"))


def activations(device):
    torch.empty(1 << 22, device=f"cuda:{device}")


def allocated():
    return [torch.cuda.memory_allocated(device) for device in DEVICES]


for device in DEVICES:
    torch.empty(1, device=f"cuda:{device}")  # CUDA begins
before = allocated()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "work":
        for _ in range(100):
            for device in DEVICES:
                activations(device)
        for device in DEVICES:
            for _ in range(device + 3):
                weights(device)
    else:
        kept.clear()
    now = allocated()
    print(json.dumps({device: now[device] - before[device] for device in DEVICES}), flush=True)
