# SPDX-License-Identifier: Apache-2.0
"""Jobs whose hosts are containers of a real engine: what they see, make and leave behind."""

import json
import os
import tarfile

import pytest
from jobs import wait_until

from sagemaker_dist import DataParallel, LocalSession, OptionError, PyTorch
from sagemaker_dist.packaging.docker_engine import Engine
from sagemaker_dist.planning import plan_local_job
from sagemaker_dist.runners.local.containers.container_arguments import (
    FOLDER_LABEL,
    MAX_TASKS,
    Owner,
)
from sagemaker_dist.runners.local.containers.container_fleet import ContainerFleet
from sagemaker_dist.runners.local.data.channels import Data
from sagemaker_dist.runners.local.job_folder import JobFolder

pytestmark = pytest.mark.timeout(300, func_only=True)

# Bits of CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_MKNOD (Linux's
# include/uapi/linux/capability.h).
NETWORK_AND_SYSTEM = 1 << 12 | 1 << 13 | 1 << 19 | 1 << 21 | 1 << 27

LOOK = """
    import json, os, socket
    from pathlib import Path
    base = Path("/opt/ml")
    try:
        (base / "input/data/training/new").write_text("")
        is_writable = True
    except OSError:
        is_writable = False
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError as error:
        outside = os.strerror(error.errno) if error.errno else "silent"
    seen = {
        "uid": os.getuid(),
        "files": sorted(str(p.relative_to(base)) for p in base.rglob("*")),
        "numbers": (base / "input/data/training/numbers.txt").read_text(),
        "is_writable": is_writable,
        "resources": json.loads((base / "input/config/resourceconfig.json").read_text()),
        "neighbours": [socket.gethostbyname(h) for h in json.loads(os.environ["SM_HOSTS"])],
        "hostname": socket.gethostname(),
        "environment": dict(os.environ),
        "shm_bytes": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
        "outside": outside,
        "status": dict(
            line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
        ),
        "most_tasks": {
            path.read_text().strip()
            for path in map(Path, ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"))
            if path.exists()
        }.pop(),
    }
    host = os.environ["SM_CURRENT_HOST"]
    Path(os.environ["SM_MODEL_DIR"], f"{host}.json").write_text(json.dumps(seen))
    Path(os.environ["SM_MODEL_DIR"], "shared").mkdir()
    Path(os.environ["SM_MODEL_DIR"], "shared", host).write_text(host)
    Path(os.environ["SM_OUTPUT_DATA_DIR"], host).write_text(host)
    Path(os.environ["SM_CHECKPOINT_DIR"], host).write_text(host)
    print("café", host)
"""


def files_of(estimator):
    """The files of model.tar.gz by their names."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: archive.extractfile(member).read().decode() for member in members}


def log_of(estimator):
    name = estimator.latest_training_job.name
    return "".join(estimator.sagemaker_session.runner.logs(name))


@pytest.fixture
def looked(job, tmp_path, monkeypatch):
    """A job of two hosts that write down what they see."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret of this machine")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/numbers.txt").write_text("1 2 3")
    estimator = job(
        LOOK,
        instance_count=2,
        environment={"COLOUR": "green"},
        checkpoint_s3_uri=(tmp_path / "checkpoints").as_uri(),
    )
    estimator.fit({"training": tmp_path / "data"})
    return estimator


def test_hosts_see_what_sagemaker_gives_them_and_all_they_make_is_kept(looked, engine, tmp_path):
    """Configuration, names, read-only data, no credentials; models of both hosts are one."""
    files = files_of(looked)
    seen = json.loads(files["algo-2.json"])
    hosts = ["algo-1", "algo-2"]

    assert {"algo-1.json", "algo-2.json", "shared/algo-1", "shared/algo-2"} == set(files)
    assert "1 2 3" == seen["numbers"]
    assert not seen["is_writable"]
    assert "algo-2" == seen["hostname"] == seen["resources"]["current_host"]
    assert hosts == seen["resources"]["hosts"]
    assert "eth0" == seen["resources"]["network_interface_name"]
    assert 2 == len(set(seen["neighbours"]))
    assert "green" == seen["environment"]["COLOUR"]
    assert "AWS_SECRET_ACCESS_KEY" not in seen["environment"]
    assert "1" == seen["status"]["NoNewPrivs"]
    assert 0 == int(seen["status"]["CapBnd"], 16) & NETWORK_AND_SYSTEM
    assert str(MAX_TASKS) == seen["most_tasks"]
    assert Engine.of(engine).memory_bytes // 2 == pytest.approx(seen["shm_bytes"], rel=0.01)
    assert hosts == sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert "[algo-1] café algo-1" in log_of(looked)


def test_jobs_of_two_users_share_an_engine(source, image, engine, tmp_path):
    """What a container writes belongs to the user who runs the job, though the image has root."""
    source('open("/opt/ml/model/mine", "w").write("mine")')
    owner = Owner(uid=12345, gid=12345)
    request = {
        "TrainingJobName": "owned",
        "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": image.name},
        "HyperParameters": {
            "sagemaker_submit_directory": json.dumps(str(tmp_path / "source")),
            "sagemaker_program": '"train.py"',
        },
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1},
        "OutputDataConfig": {"S3OutputPath": ""},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
    }
    job, folder = plan_local_job(request), JobFolder(tmp_path / "jobs/owned")
    folder.create(request, job)
    folder.checkpoints(job).mkdir()
    fleet = ContainerFleet(folder, job, Data(folder, job), owner)
    give(tmp_path, owner)
    try:
        (host,) = fleet.start()
        give(tmp_path, owner)
        wait_until(lambda: host.poll() is not None)
        mine = (host.tree.root / "model/mine").stat()
    finally:
        fleet.remove()

    assert (12345, 12345) == (mine.st_uid, mine.st_gid)


def give(folder, owner):
    """To another user, as if that one had made it."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def test_isolated_hosts_reach_each_other_alone(job, engine):
    """enable_network_isolation: the job's network has no way out, but the neighbour answers."""
    estimator = job(
        """
        import json, os, socket, time
        server = socket.create_server(("", 5000))
        for host in json.loads(os.environ["SM_HOSTS"]):
            for _ in range(100):
                try:
                    socket.create_connection((host, 5000), timeout=5)
                    print("reached", host)
                    break
                except OSError:
                    time.sleep(0.1)
        time.sleep(2)
        """,
        instance_count=2,
        enable_network_isolation=True,
    )
    estimator.fit(wait=False)
    (network,) = wait_until(lambda: engine.networks.list(filters={"label": FOLDER_LABEL}))
    is_internal = network.attrs["Internal"]
    estimator.latest_training_job.wait()

    assert is_internal
    assert 4 == log_of(estimator).count("] reached")


def test_own_entry_point_and_arguments(job):
    """container_entry_point and container_arguments stand in for the image's own."""
    estimator = job(
        "",
        instance_count=1,
        container_entry_point=["/bin/bash", "-c"],
        container_arguments=["echo mine > /opt/ml/model/mine"],
    )
    estimator.fit()

    assert {"mine": "mine\n"} == files_of(estimator)


def test_requirements_are_installed_offline(job, tmp_path):
    """A requirement that the image already has needs no network."""
    estimator = job("import tqdm; print('has', tqdm.__name__)", instance_count=1)
    (tmp_path / "source/requirements.txt").write_text("tqdm\n")
    estimator.fit()

    assert "has tqdm" in log_of(estimator)


def test_shared_memory_holds_three_gibibytes(job):
    """DataLoader workers hand over 3 GiB of batches through /dev/shm with the defaults."""
    estimator = job(
        """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Big(Dataset):
            def __len__(self):
                return 12
            def __getitem__(self, index):
                return torch.full((256, 1024, 256), float(index))

        loader = DataLoader(Big(), batch_size=None, num_workers=2, prefetch_factor=6)
        batches = list(loader)
        assert [float(b[0, 0, 0]) for b in batches] == [float(i) for i in range(12)]
        print("held", sum(b.nbytes for b in batches) / 2**30, "GiB")
        """,
        instance_count=1,
    )
    estimator.fit()

    assert "held 3.0 GiB" in log_of(estimator)


def test_jobs_run_beside_each_other(job):
    """Two jobs with hosts of the same names, at once."""
    script = "import time; time.sleep(2); open('/opt/ml/model/done', 'w')"
    first, second = job(script, instance_count=2), job(script, instance_count=2)
    first.fit(wait=False, job_name="first")
    second.fit(wait=False, job_name="second")
    first.latest_training_job.wait()
    second.latest_training_job.wait()

    assert ["Completed"] * 2 == [
        each.latest_training_job.describe()["TrainingJobStatus"] for each in (first, second)
    ]


def test_a_job_of_this_machine_attaches(job):
    """attach() finds it by its name and knows its image and model."""
    estimator = job("", instance_count=1)
    estimator.fit(job_name="to-attach")
    attached = PyTorch.attach("to-attach")

    assert estimator.model_data == attached.model_data
    assert "local" == attached.instance_type


def test_gpus_that_are_not_there(job):
    """local_gpu on a machine without GPUs says so before anything starts."""
    estimator = job("", instance_type="local_gpu", instance_count=2)

    with pytest.raises(OptionError) as caught:
        estimator.fit()

    assert ("instance_count",) == caught.value.about


def test_many_hosts_end_with_one_model(job):
    """Four hosts sum their ranks with smdist; every one has the sum."""
    estimator = job(
        """
        import os
        from pathlib import Path
        import smdist.dataparallel.torch
        import torch
        import torch.distributed as dist
        dist.init_process_group("smdist")
        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        Path(os.environ["SM_MODEL_DIR"], f"rank-{dist.get_rank()}").write_text(str(total.item()))
        dist.destroy_process_group()
        """,
        instance_count=4,
        distribution=DataParallel(processes_per_host=1),
    )
    estimator.fit()

    assert {f"rank-{rank}": "10.0" for rank in range(4)} == files_of(estimator)


def test_containers_carry_their_job(job, engine):
    """Whoever looks with `docker ps` sees whose they are; names tell job and host."""
    estimator = job("import time; time.sleep(60)", instance_count=2)
    estimator.fit(wait=False, job_name="labelled")
    try:
        found = wait_until(lambda: two_of(engine))
        folder = {container.labels[FOLDER_LABEL] for container in found}
    finally:
        LocalSession().runner.stop("labelled", now=True)
    estimator.latest_training_job.wait()

    assert {"sagemaker-dist-labelled-algo-1", "sagemaker-dist-labelled-algo-2"} == {
        container.name for container in found
    }
    assert {str(LocalSession().runner.root / "labelled")} == folder


def two_of(engine):
    found = engine.containers.list(filters={"label": FOLDER_LABEL})
    return found if len(found) == 2 else None
