# SPDX-License-Identifier: Apache-2.0
"""Calibration files: what plans take from them, and which files are refused."""

import json
from dataclasses import replace

import pytest

from smdist.modelparallel.core.calibration import (
    AllReduceTime,
    Calibration,
    Disturbance,
    FolderSpeed,
    MachineFacts,
    MessageTime,
    ProductSpeed,
    load,
    save,
)
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.plan_errors import PlanError


def calibration(device="cpu"):
    return Calibration(
        date="2026-11-27",
        machine=MachineFacts(
            processor="P", num_cores=2, memory_bytes=8, device=device, device_name="D",
            num_devices=1, num_threads=2,
        ),
        versions={"torch": "2.13.0"},
        products=(
            ProductSpeed(dtype="float32", size=128, flops_per_second=1e9),
            ProductSpeed(dtype="float32", size=1024, flops_per_second=5e9),
            ProductSpeed(dtype="bfloat16", size=128, flops_per_second=8e9),
        ),
        memory_bytes_per_second=2e10,
        all_reduce=(AllReduceTime(num_ranks=4, num_bytes=1000, seconds=0.5),),
        messages=(
            MessageTime(num_bytes=10, seconds=1e-4),
            MessageTime(num_bytes=1_000_000, seconds=1e-3),
        ),
        folders=(
            FolderSpeed(
                folder="channel", num_bytes=9, write_bytes_per_second=None, read_bytes_per_second=5
            ),
        ),
    )  # fmt: skip


def test_a_file_is_read_as_it_was_written(tmp_path):
    save(calibration(), tmp_path / "c.json")

    assert calibration() == load(tmp_path / "c.json")


def test_files_of_version_1_lack_what_disturbed_the_measurement(tmp_path):
    path = tmp_path / "c.json"
    save(calibration(), path)
    document = json.loads(path.read_text())
    del document["disturbance"]
    path.write_text(json.dumps({**document, "version": 1}))

    assert calibration() == load(path)


@pytest.mark.parametrize(
    ("busy_share", "repeat_spread", "uncertainty"),
    [(0.05, 0.1, 0.0), (0.5, 0.1, 0.5), (0.05, 1.0, 0.5)],
)
def test_others_make_speeds_uncertain(busy_share, repeat_spread, uncertainty):
    """By the part of the time that they took, or by how far repetitions differ."""
    found = Disturbance(busy_share=busy_share, repeat_spread=repeat_spread)

    assert uncertainty == pytest.approx(found.uncertainty)
    assert (uncertainty > 0) == found.is_large


def test_what_plans_take():
    """Achieved speeds: of 32 bits on a CPU with its link, of 16 bits on a GPU without."""
    cluster = Cluster(num_hosts=4, inside=Link(bytes_per_second=7.0))
    cpu, gpu = (calibration(device).applied_to(cluster) for device in ("cpu", "cuda"))

    assert (5e9, 2e10) == (cpu.device.flops_per_second, cpu.device.bytes_per_second)
    assert 1e-4 == cpu.inside.latency_seconds
    assert pytest.approx(1e6 / 9e-4) == cpu.inside.bytes_per_second
    assert (8e9, cluster.inside) == (gpu.device.flops_per_second, gpu.inside)
    assert (cluster.across, 4) == (cpu.across, cpu.size)
    assert 3000.0 == calibration().all_reduce[0].bytes_per_second


@pytest.mark.parametrize(
    ("threads", "ranks_per_host", "part"), [(2, 1, 1.0), (2, 2, 0.5), (2, 4, 0.5), (1, 2, 1.0)]
)
def test_ranks_of_a_host_share_its_threads(threads, ranks_per_host, part):
    """A rank has at least one thread, and no more speed than was measured; GPUs are not shared."""
    measured = calibration()
    measured = replace(measured, machine=replace(measured.machine, num_threads=threads))
    cluster = Cluster(num_hosts=2, ranks_per_host=ranks_per_host)
    device = measured.applied_to(cluster).device

    assert (part * 5e9, part * 2e10) == (device.flops_per_second, device.bytes_per_second)
    assert 8e9 == calibration("cuda").applied_to(cluster).device.flops_per_second


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda d: d.pop("date"), [("date",)]),
        (lambda d: d.update(date="yesterday", products=[]), [("date",), ("products",)]),
        (
            lambda d: (d["messages"][0].update(seconds=-1), d["machine"].update(num_cores=0)),
            [("machine", "num_cores"), ("messages", 0, "seconds")],
        ),
        (
            lambda d: (d.update(speed=1), d["products"][1].update(size="big")),
            [("speed",), ("products", 1, "size")],
        ),
        (lambda d: d.update(version=3), [("version",)]),
        (
            lambda d: d.update(disturbance={"busy_share": 2, "repeat_spread": 0}),
            [("busy_share",)],
        ),
        (lambda d: d.update(kind="plan"), [("path",)]),
    ],
)
def test_all_faults_of_a_file_come_at_once(tmp_path, change, about):
    path = tmp_path / "c.json"
    save(calibration(), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(PlanError) as caught:
        load(path)
    faults = getattr(caught.value, "faults", (caught.value,))

    assert about == [each.about for each in faults]
    assert all(each.hint for each in faults)


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", "7"])
def test_nonsense_is_one_error_with_a_hint(tmp_path, text):
    path = tmp_path / "c.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PlanError) as caught:
        load(path)

    assert caught.value.hint
