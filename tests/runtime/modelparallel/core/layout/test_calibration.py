# SPDX-License-Identifier: Apache-2.0
"""Calibration files: what they change in a machine, and how wrong files are refused."""

import json

import pytest
from layout_cases import p4d

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.layout.calibration import read_calibration

GOOD = {
    "version": 1,
    "device": "NVIDIA A100",
    "date": "2026-11-27",
    "products": [[512, 1e14], [4096, 2e14]],
    "memory_bytes_per_second": 1.2e12,
    "across": {"latency_seconds": 2e-5, "points": [[1e6, 1e9], [1e8, 4e9]]},
    "attention_flops_per_second": 1e14,
    "spread": 0.05,
}


def written(folder, document):
    path = folder / "calibration.json"
    path.write_text(json.dumps(document))
    return path


def test_measured_speeds_take_the_place_of_published_ones(tmp_path):
    """The best product is the peak; links keep their measured bandwidth by size."""
    cluster = p4d(2).cluster
    machine = read_calibration(written(tmp_path, GOOD)).machine(cluster)

    assert machine.flops_per_second * machine.product_efficiency(512) == pytest.approx(1e14)
    assert machine.flops_per_second * machine.product_efficiency(1e6) == pytest.approx(2e14)
    assert machine.cluster.across.bytes_per_second == 4e9
    assert machine.link.at(1e6) == pytest.approx(0.25)
    assert machine.cluster.inside == cluster.inside
    assert machine.spread == 0.05
    assert machine.assumptions() == ()


@pytest.mark.parametrize("name", ["version", "products", "across", "spread"])
@pytest.mark.parametrize("value", [None, -1, [], {}, [[1]], True, "text", [[1, 0]]])
def test_a_wrong_value_is_named(tmp_path, name, value):
    """The error is about the key whose value is wrong."""
    with pytest.raises(OptionError) as caught:
        read_calibration(written(tmp_path, {**GOOD, name: value}))

    assert caught.value.about == (name,)


def test_all_faults_of_a_file_are_reported_at_once(tmp_path):
    """An unknown key, a missing one and a wrong value are three faults."""
    document = {**GOOD, "memoryy": 1, "spread": 7}
    del document["date"]
    with pytest.raises(OptionError) as caught:
        read_calibration(written(tmp_path, document))

    assert {fault.kind for fault in caught.value.faults} >= {"unknown", "missing"}
    assert len(caught.value.faults) == 3


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_calibration_is_refused(tmp_path, content):
    """Other content and a missing file are errors about the calibration."""
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    for each in (path, tmp_path / "missing.json"):
        with pytest.raises(OptionError) as caught:
            read_calibration(each)
        assert caught.value.about == ("calibration",)
