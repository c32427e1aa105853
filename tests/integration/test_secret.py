# SPDX-License-Identifier: Apache-2.0
"""A running job of two hosts keeps its secret, and keeps strangers from its store."""

import stat
import tarfile
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from jobs import processes_of, ranks_of, wait_until
from torch.distributed import DistNetworkError, TCPStore

from sagemaker_dist import DataParallel, JobError
from sagemaker_dist.contract.job_secret import FILE
from sagemaker_dist.runners import LocalRunner
from sagemaker_dist.runners.local.job_folder import JobFolder

pytestmark = pytest.mark.timeout(180)
OPEN = {"0.0.0.0", "::"}


def listeners(processes):
    """Return the addresses at which any of these processes listens."""
    found = set()
    for process in processes:
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        found |= {tuple(c.laddr) for c in connections if c.status == psutil.CONN_LISTEN}
    return found


def store_at(host, port):
    """Return a plain client of torch's store, as any process of this machine can make one."""
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=2))


@pytest.fixture
def running(job):
    """Start a job whose ranks all-reduce until it is killed; return its folder and its ranks."""
    estimator = job("forever.py", distribution=DataParallel(processes_per_host=1))
    estimator.fit(wait=False)
    name = estimator.latest_training_job.name
    folder = JobFolder(LocalRunner().root / name)
    try:
        wait_until(lambda: folder.all_log.read_text().count("all ranks are at work") == 2)
        yield folder, ranks_of(name, "forever.py")
    finally:
        LocalRunner().stop(name, now=True)
        wait_until(lambda: folder.state().is_terminal)
        wait_until(lambda: not processes_of(name))


@pytest.mark.slow
def test_nobody_gets_in_and_nothing_tells_the_secret(running):
    folder, ranks = running
    secret = folder.secret()
    name, environment = folder.path.name, ranks[0].environ()
    port = int(environment["MASTER_PORT"])

    doors = listeners(processes_of(name))

    assert ("127.0.0.1", port) in doors
    assert set() == {address for address, _ in doors} & OPEN
    assert all(address.startswith("127.0.0.") for address, _ in doors)
    with pytest.raises(DistNetworkError):
        store_at("127.0.0.9", port)

    store = store_at("127.0.0.1", port)
    values = {key: store.get(key) for key in store.list_keys()}

    assert any(key.endswith("smdist/1/who/all") for key in values)
    sessions = [value for key, value in values.items() if key.endswith("session/0")]
    assert [16] == [len(value.decode().encode("latin-1")) for value in sessions]

    file = Path(environment["SMDIST_SECRET_FILE"])

    assert secret == file.read_bytes()
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert 0o700 == stat.S_IMODE(file.parent.stat().st_mode)
    assert not list(folder.hosts.rglob(FILE))
    assert 0o600 == stat.S_IMODE((folder.path / "secret").stat().st_mode)
    shown = [
        *values.values(),
        *(repr(process.environ()).encode() for process in ranks.values()),
        *(path.read_bytes() for path in folder.path.rglob("*.json")),
        *(path.read_bytes() for path in folder.logs.iterdir()),
    ]
    assert not [text for text in shown if secret in text]


def test_the_secret_is_gone_when_ranks_have_crashed(job, source, tmp_path):
    """Neither the job's folder, nor its output, nor the ranks' private directory has it."""
    script = source / "names_its_secret.py"
    script.write_text(
        "import os, pathlib\n"
        "at = pathlib.Path(os.environ['SM_MODEL_DIR'], 'at')\n"
        "at.write_text(os.environ['SMDIST_SECRET_FILE'])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    output = tmp_path / "output"
    estimator = job(script.name, instance_count=1, output_path=output.as_uri())
    with pytest.raises(JobError):
        estimator.fit()
    folder = JobFolder(LocalRunner().root / estimator.latest_training_job.name)
    with tarfile.open(next(output.rglob("model.tar.gz"))) as model:
        names = {Path(each).name for each in model.getnames()}
        private = Path(model.extractfile("at").read().decode()).parent

    assert {"at"} == names
    assert not private.exists()
    assert not (folder.path / "secret").exists()
    assert not list(folder.path.rglob(FILE))
