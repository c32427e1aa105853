# SPDX-License-Identifier: Apache-2.0
"""Measurement of this machine by the command, in a short time, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from smdist.modelparallel.calibrate.folders import measure_channel
from smdist.modelparallel.calibrate.measurement_command import main
from smdist.modelparallel.core.calibration import load

COMMAND = [sys.executable, "-m", "smdist.modelparallel.calibrate"]


def started(tmp_path, *arguments):
    """Start a measurement whose temporary files are in a folder of its own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder, subprocess.Popen(
        [*COMMAND, f"--output={tmp_path}/c.json", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_measurement_has_all_parts_and_leaves_nothing(tmp_path):
    channel = tmp_path / "channel"
    channel.mkdir()
    (channel / "data").write_bytes(b"x" * 100_000)
    folder, process = started(tmp_path, "--seconds=1", "--json", f"--channel={channel}")
    out, err = process.communicate(timeout=240)

    assert 0 == process.returncode, err
    found = load(tmp_path / "c.json")
    assert json.loads((tmp_path / "c.json").read_text()) == json.loads(out)
    assert {"float32", "bfloat16"} == {each.dtype for each in found.products}
    assert 1 << 26 == max(each.num_bytes for each in found.all_reduce)
    assert found.link().bytes_per_second > 1e6
    assert ["disk", "channel"] == [each.folder for each in found.folders]
    assert 100_000 == found.folders[1].num_bytes
    assert 5 == err.count("measuring")
    assert [] == list(folder.iterdir())
    assert os.uname().nodename not in out


def test_an_interrupt_ends_the_ranks_too(tmp_path):
    folder, process = started(tmp_path, "--seconds=2")
    assert process.stderr is not None
    for line in process.stderr:
        if "all-reduces" in line:
            break
    parent, end = psutil.Process(process.pid), time.monotonic() + 60
    while not (ranks := parent.children()) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert 130 == process.returncode, err
    assert ranks
    # a rank that was being started ends with its standard input, as soon as Python has started
    assert [] == psutil.wait_procs(ranks, timeout=60)[1]
    assert [] == list(folder.iterdir())
    assert not (tmp_path / "c.json").exists()


def test_all_wrong_arguments_come_at_once(tmp_path, capsys):
    arguments = [f"--output={tmp_path}/none/c.json", "--seconds=nan", f"--channel={tmp_path}/no"]
    status = main([*arguments, "--json"])
    faults = json.loads(capsys.readouterr().out)["error"]["faults"]

    assert 2 == status
    assert ["output", "seconds", "channel"] == [each["about"] for each in faults]


def test_a_channel_is_read_until_its_time_is_over(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 1000)

    assert 2000 == measure_channel(tmp_path, 60).num_bytes
    assert 1000 == measure_channel(tmp_path, 0).num_bytes


@pytest.fixture(autouse=True)
def _term():
    """Restore the handler of SIGTERM, which the command sets."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
