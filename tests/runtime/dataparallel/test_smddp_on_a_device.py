# SPDX-License-Identifier: Apache-2.0
"""A script of SMDDP that trains on GPUs trains on the test device, to which CUDA is redirected."""

import contextlib
import io
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from device_mapping import DeviceMapping, use_test_device

SCRIPT = Path(__file__).parent / "scripts" / "pictures.py"


def run_script(rank, size, store, model):
    """Run the script as its launcher does, and return what it prints."""
    dist.destroy_process_group()
    use_test_device()
    os.environ["LOCAL_RANK"] = str(rank)
    join = partial(
        dist.init_process_group, store=dist.FileStore(store, size), rank=rank, world_size=size
    )
    argv = [str(SCRIPT), "--save-model", str(model)]
    with (
        mock.patch.object(dist, "init_process_group", join),
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return printed.getvalue().splitlines()


def test_two_ranks_train_what_one_trains(device_processes, tmp_path):
    """Rank 0 alone prints, and tests; the trained weights are those of one rank."""
    printed = {}
    for size in (1, 2):
        printed[size] = device_processes.run_ranks(
            run_script,
            str(tmp_path / f"store-{size}"),
            tmp_path / f"{size}.pt",
            size=size,
            staging={},  # so that no start has to measure
            deadline=80,
        )
    alone, both = (torch.load(tmp_path / f"{size}.pt", map_location="cpu") for size in (1, 2))

    assert printed[2][1] == []
    assert 0.95 <= float(printed[2][0][-1].split("accuracy: ")[1])
    assert alone.keys() == both.keys()
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-5)


def test_cuda_devices_are_replaced_wherever_torch_is_given_one():
    """By number, name or object; other devices stay."""
    given = []

    def mapped(number):
        given.append(number)
        return torch.device("meta")

    with DeviceMapping(mapped):
        tensor = torch.ones(2)
        moved = [
            tensor.cuda(),
            tensor.cuda(1),
            tensor.cuda(device="cuda:2"),
            tensor.to("cuda:3"),
            tensor.to(torch.device("cuda", 4), torch.float64),
            tensor.to(5),
            torch.zeros(2, device="cuda"),
            torch.nn.Linear(2, 2).to("cuda:6").weight,
            torch.nn.Linear(2, 2).cuda(7).weight,
        ]
        stayed = [tensor.to("cpu"), tensor.to(torch.float64), torch.zeros(2, device="cpu")]

    assert {"meta"} == {each.device.type for each in moved}
    assert {"cpu"} == {each.device.type for each in stayed}
    assert [None, 1, 2, 3, 4, 5, 6, 7] == list(dict.fromkeys(given))
