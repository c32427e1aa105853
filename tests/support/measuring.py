# SPDX-License-Identifier: Apache-2.0
"""Single modules for cost measurement, whole models, and a model with a known cost."""

import time

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from smdist.modelparallel.torch.capture import arguments_of
from smdist.modelparallel.torch.measure.account import account
from smdist.modelparallel.torch.measure.call_kinds import held
from smdist.modelparallel.torch.measure.stand_in import real
from smdist.modelparallel.torch.measure.stand_in import standing_in as put_in
from smdist.modelparallel.torch.measure.trial import Trial
from smdist.modelparallel.torch.program.program import ProgramInterpreter

CPU = torch.device("cpu")


def standing_in(module, make=None):
    """Return stand-ins for all tensors of a module."""
    return put_in(module, {}, make or real(CPU))


def trial_of(module, *inputs):
    """Return the trial of a module by itself."""
    trained = any(parameter.requires_grad for parameter in module.parameters())
    return Trial(
        run=lambda tensors: tree_leaves(module(*tensors)), inputs=inputs, is_trained=trained
    )


def accounted(module, *inputs, make=None):
    """Return the account of a module."""
    with standing_in(module, make) as stand_ins:
        return account(trial_of(module, *inputs), stand_ins.storages)[0]


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None


class Sleeping(nn.Module):
    """Module that sleeps in both passes and multiplies by a weight."""

    def __init__(self, forward, backward):
        super().__init__()
        self.seconds = (forward, backward)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return _Sleep.apply(x, *self.seconds) * self.weight


def saved_by_the_whole(captured):
    """Return the bytes that autograd saves in a run, without parameters, buffers and the batch."""
    model, program = captured.model, captured.program
    values = program.bind(arguments_of(captured.example))
    known = {
        each.untyped_storage()._cdata
        for each in (*model.parameters(), *model.buffers(), *values.values())
    }
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        found[storage._cdata] = storage
        return tensor

    machine = ProgramInterpreter(
        program=program, unit=model.get_submodule, held=lambda name: held(name, model)
    )
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        machine.run(program.calls, values)
    return sum(storage.nbytes() for key, storage in found.items() if key not in known)
