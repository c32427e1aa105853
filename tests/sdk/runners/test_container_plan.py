# SPDX-License-Identifier: Apache-2.0
"""Docker's arguments for a host, computed without Docker."""

from pathlib import Path

import pytest

from sagemaker_dist.contract import KEY, DataParallel, render
from sagemaker_dist.packaging.docker_engine import Engine
from sagemaker_dist.planning import plan_local_job
from sagemaker_dist.runners.local.containers.container_arguments import (
    Owner,
    Places,
    container_arguments,
    gpu_request,
)
from sagemaker_dist.runners.local.data.channels import Mount

ENGINE = Engine(
    num_cpus=16, memory_bytes=64 << 30, architecture="amd64", data_root="/var/lib/docker"
)
OWNER = Owner(uid=1000, gid=1000, groups=(1000, 27))


@pytest.fixture
def arguments(request_for, tmp_path):
    """Return the arguments for algo-2 of a job, with the test's changes to the request."""

    def ask(engine=ENGINE, mounts=(), owner=OWNER, **changes):
        request = request_for(**changes)
        request["ResourceConfig"]["InstanceType"] = "local"
        job = plan_local_job(request)
        places = Places(
            folder=tmp_path / "jobs/job",
            tree=tmp_path / "tree",
            checkpoints=tmp_path / "kept",
            mounts=tuple(mounts),
        )
        return container_arguments(job, job.hosts[1], places, engine, owner)

    return ask


def test_a_host_is_named_and_labelled(arguments):
    made = arguments()

    assert "sagemaker-dist-job-algo-2" == made["name"]
    assert "algo-2" == made["hostname"]
    assert ["train"] == made["command"]
    assert "algo-2" == made["labels"]["sagemaker-dist.host"]


def test_all_that_is_written_stays_on_this_machine(arguments, tmp_path):
    """The tree and the checkpoints are writable; data is read-only by default."""
    data = Mount(source=Path("/data"), name="training")
    system = Mount(source=Path("/mnt/fsx"), name="system", writable=True)
    mounts = {each["Target"]: each for each in arguments(mounts=[data, system])["mounts"]}

    assert {
        "/opt/ml": (str(tmp_path / "tree"), False),
        "/opt/ml/checkpoints": (str(tmp_path / "kept"), False),
        "/opt/ml/input/data/training": ("/data", True),
        "/opt/ml/input/data/system": ("/mnt/fsx", False),
    } == {target: (each["Source"], each["ReadOnly"]) for target, each in mounts.items()}


def test_files_belong_to_the_caller(arguments):
    """Containers run as the user's uid; as root if the engine is rootless; without user mapping."""
    rootless = Engine(**{**as_dict(ENGINE), "is_rootless": True})
    remapped = Engine(**{**as_dict(ENGINE), "is_remapped": True})

    assert ("1000:1000", ["27"]) == (arguments()["user"], arguments()["group_add"])
    assert "0:0" == arguments(rootless)["user"]
    assert "host" == arguments(remapped)["userns_mode"]


def test_a_user_gains_no_rights_in_a_container(arguments):
    """Without capabilities, setuid programs and an unlimited number of processes."""
    made = arguments()

    assert (["ALL"], []) == (made["cap_drop"], made["cap_add"])
    assert ["no-new-privileges"] == made["security_opt"]
    assert 1_000 < made["pids_limit"] <= 1 << 15
    assert not {"privileged", "pid_mode", "ipc_mode"} & made.keys()


@pytest.mark.parametrize("is_rootless", [True, False])
def test_root_keeps_what_installing_and_sshd_take(arguments, is_rootless):
    """Root may install packages and change users, but not make devices, sniff or trace."""
    rootless = Engine(**{**as_dict(ENGINE), "is_rootless": True})
    root = Owner(uid=0, gid=0)
    made = arguments(rootless) if is_rootless else arguments(owner=root)
    kept = set(made["cap_add"])

    assert ["ALL"] == made["cap_drop"]
    assert {"CHOWN", "DAC_OVERRIDE", "SETGID", "SETUID", "SYS_CHROOT"} <= kept
    assert not {"MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_ADMIN", "SYS_PTRACE"} & kept
    assert ["no-new-privileges"] == made["security_opt"]


def test_no_label_and_no_new_privileges(arguments):
    """Where SELinux is on, the files are readable, and the other limit stays."""
    labelling = Engine(**{**as_dict(ENGINE), "labels_files": True})

    assert {"no-new-privileges", "label=disable"} == set(arguments(labelling)["security_opt"])


def as_dict(engine):
    return {name: getattr(engine, name) for name in engine.__slots__}


def test_shared_memory_is_half_of_the_machine(arguments):
    assert 32 << 30 == arguments()["shm_size"]


def test_environment_is_sagemakers_and_the_users_alone(arguments, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made = arguments(Environment={"COLOUR": "green"})["environment"]

    assert {
        "AWS_REGION",
        "COLOUR",
        "CURRENT_HOST",
        "SM_CHECKPOINT_DIR",
        "TRAINING_JOB_ARN",
        "TRAINING_JOB_NAME",
    } == set(made)


@pytest.mark.parametrize(("ranks", "hosts", "threads"), [(4, 2, "2"), (None, 2, "8"), (16, 4, "1")])
def test_hosts_share_the_cpus_of_one_machine(arguments, request_for, ranks, hosts, threads):
    """OMP_NUM_THREADS divides the CPUs among ranks, so that results equal those of processes."""
    wire = render(DataParallel(processes_per_host=ranks))
    parameters = {**request_for()["HyperParameters"], KEY: wire}
    made = arguments(hosts=hosts, HyperParameters=parameters)["environment"]

    assert threads == made["OMP_NUM_THREADS"]


def test_own_entry_point(arguments):
    algorithm = {"TrainingInputMode": "File", "TrainingImage": "image"}
    own = {"ContainerEntrypoint": ["/bin/bash"], "ContainerArguments": ["-c", "true"]}
    made = arguments(AlgorithmSpecification={**algorithm, **own})

    assert (["/bin/bash"], ["-c", "true"]) == (made["entrypoint"], made["command"])


def test_gpus_are_asked_for_by_name():
    assert ["GPU-1", "GPU-2"] == gpu_request(("GPU-1", "GPU-2"))["DeviceIDs"]
