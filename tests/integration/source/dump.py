# SPDX-License-Identifier: Apache-2.0
"""The demo's script; it also saves every rank's weights."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import train

_train = train.train


def _train_and_keep(model, optimizer, args):
    _train(model, optimizer, args)
    folder = Path(os.environ["SM_OUTPUT_DATA_DIR"])
    torch.save(model.module.state_dict(), folder / f"weights-{dist.get_rank()}.pt")


train.train = _train_and_keep
train.main()
