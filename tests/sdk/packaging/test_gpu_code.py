# SPDX-License-Identifier: Apache-2.0
"""Which GPUs compiled code runs on, and which jobs are refused because of it."""

import json
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.packaging.ecr_labels import ecr_labels, labels_in
from sagemaker_dist.packaging.gpu_code import runs_on
from sagemaker_dist.packaging.gpu_faults import gpu_faults, local_gpu_faults, remote_gpu_faults
from sagemaker_dist.packaging.image_labels import ImageLabels, is_derived

CUDA_13 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"  # torch 2.13.0 of PyPI, read 2026-11-26
LABEL = 'LABEL sagemaker-dist.version=0.1.0 sagemaker-dist.wire="5"'
PLACE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/sagemaker-dist:0.1.0-torch"


def labels(code=CUDA_13, framework="torch", **more):
    named = {"version": "0.1.0", "framework": framework, "gpu-code": code}
    named = {f"sagemaker-dist.{name}": value for name, value in named.items() if value is not None}
    return ImageLabels(labels=named, **more)


@pytest.mark.parametrize(
    ("code", "capability", "expected"),
    [
        ("sm_80", "8.0", True),
        ("sm_80", "8.6", True),  # a later minor version
        ("sm_86", "8.0", False),  # an earlier one
        ("sm_80", "9.0", False),
        ("sm_75", "7.0", False),
        ("sm_100", "10.3", True),
        ("sm_90a", "9.0", True),
        ("sm_100a", "10.3", False),
        ("sm_100f", "10.3", True),
        ("sm_100f", "11.0", False),
        ("compute_80", "12.0", True),  # the driver compiles it
        ("compute_120", "10.0", False),
        ("compute_100f", "12.0", False),
        ("compute_90a", "9.0", True),
        ("gfx90a", "9.0", False),
        ("", "9.0", False),
    ],
)
def test_code_runs_on(code, capability, expected):
    assert expected == runs_on(code.split(), capability)


def test_gpus_without_code_of_cuda_13_are_those_of_p2_and_p3():
    gpus = [each for each in training_instances().values() if each.has_gpu]
    refused = {each.family for each in gpus if list(gpu_faults(labels(), "mine:1", each))}

    assert {"p2", "p3", "p3dn"} == refused


def test_the_fault_names_gpus_and_code():
    (fault,) = gpu_faults(labels(), "mine:1", training_instances()["ml.p3.16xlarge"])

    assert (("instance_type",), "no_gpu_code") == (fault.about, fault.kind)
    assert (
        "instance_type is 'ml.p3.16xlarge': its GPUs (V100) have compute capability 7.0, and torch"
        " in image mine:1 has code for sm_75, sm_80, sm_86, sm_90, sm_100, sm_120 only."
        " Pass another instance_type, or an image whose framework was built for these GPUs."
    ) == str(fault)


@pytest.mark.parametrize(
    ("framework", "command"),
    [("torch", "--accelerator cuda"), ("tensorflow", "--base-image IMAGE")],
)
def test_a_cpu_image_is_refused_on_gpus(framework, command):
    """Its ranks would train on the CPUs of a host with GPUs."""
    instance = training_instances()["ml.p4d.24xlarge"]
    (fault,) = gpu_faults(labels("", framework), "mine:1", instance)

    assert (("instance_type",), "cpu_build") == (fault.about, fault.kind)
    assert command in fault.hint


@pytest.mark.parametrize(
    "unknown",
    [labels(None), labels("", is_derived=True), ImageLabels(labels={}), labels("", "jax")],
)
def test_nothing_is_refused_without_knowledge(unknown):
    """Old images, images built on an image of sagemaker-dist, and images of others."""
    assert [] == list(gpu_faults(unknown, "mine:1", training_instances()["ml.p3.2xlarge"]))


def test_gpus_of_this_machine():
    assert [] == list(local_gpu_faults(labels(), "mine:1", ["8.0", "8.6"]))
    assert [] == list(local_gpu_faults(labels(), "mine:1", []))  # the driver did not report them
    (fault,) = local_gpu_faults(labels(), "mine:1", ["8.0", "6.1", "6.1"])

    assert (("instance_type",), "no_gpu_code") == (fault.about, fault.kind)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("RUN pip", True), (LABEL, False), ('CMD ["train"]', False)], False),
        ([(LABEL, False), ("ENV A=1", False)], False),
        ([(LABEL, False), ("RUN pip install torch", True)], True),
        ([(LABEL, False), ("RUN pip", True), (LABEL, False)], False),  # built on one of ours
        ([("RUN pip", True)], True),
        ([], True),
    ],
)
def test_files_added_to_an_image_make_another(steps, expected):
    assert expected == is_derived(steps)


@pytest.fixture
def stored(tmp_path):
    """Return a function that makes a session whose ECR has an image with these labels."""

    def make(config, *, manifest=None, more=None):
        (tmp_path / "config.json").write_text(json.dumps(config))
        manifests = {"0.1.0-torch": manifest or {"config": {"digest": "sha256:1"}}, **(more or {})}

        def batch_get_image(*, imageIds, **where):  # noqa: N803 - boto3's name
            calls.append(where)
            (which,) = imageIds
            found = manifests[which.get("imageTag") or which["imageDigest"]]
            return {"images": [{"imageManifest": json.dumps(found)}]}

        def get_download_url_for_layer(*, layerDigest, **_):  # noqa: N803 - boto3's name
            assert "sha256:1" == layerDigest
            return {"downloadUrl": (tmp_path / "config.json").as_uri()}

        ecr = SimpleNamespace(
            batch_get_image=batch_get_image, get_download_url_for_layer=get_download_url_for_layer
        )
        calls = []
        return SimpleNamespace(client=lambda name, region_name: ecr, calls=calls)

    return make


def config(code=CUDA_13, *later):
    history = [{"created_by": LABEL, "empty_layer": True}, *later]
    return {"config": {"Labels": dict(labels(code).labels)}, "history": history}


def test_labels_of_an_image_in_ecr(stored):
    """They are in the image's configuration, which ECR stores like a layer."""
    session = stored(config())
    found = ecr_labels(session, PLACE)

    assert labels() == found
    assert [{"registryId": "123456789012", "repositoryName": "sagemaker-dist"}] == session.calls


def test_labels_of_an_index(stored):
    """An index names one image for each platform, and the notes on their build."""
    notes = {"digest": "sha256:9", "platform": {"architecture": "unknown"}}
    image = {"digest": "sha256:8", "platform": {"architecture": "amd64"}}
    index = {"manifests": [notes, image]}
    plain = {"sha256:8": {"config": {"digest": "sha256:1"}}}

    assert labels() == ecr_labels(stored(config(), manifest=index, more=plain), PLACE)


def test_an_image_on_ours_is_known_by_its_history():
    assert labels_in(config(CUDA_13, {"created_by": "RUN pip install torch"})).is_derived


class Denied:
    """A session without the permissions."""

    def client(self, name, region_name):
        def denied(**_):
            raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "BatchGetImage")

        return SimpleNamespace(batch_get_image=denied)


@pytest.mark.parametrize("image", [PLACE, "localhost:5000/mine:1"])
def test_labels_that_cannot_be_read_are_unknown(image):
    assert ecr_labels(Denied(), image) is None
    assert [] == list(remote_gpu_faults(Denied(), image, ["ml.p3.2xlarge"]))


def test_garbage_is_unknown(stored):
    assert ecr_labels(stored({"config": None}), PLACE) is None
    assert ecr_labels(stored({}, manifest={"manifests": []}), PLACE) is None


def test_every_type_of_a_job_is_checked_at_once(stored):
    types = ["ml.p3.2xlarge", "ml.c5.xlarge", "ml.p2.xlarge", "ml.p2.xlarge", "ml.p4d.24xlarge"]

    assert 2 == len(list(remote_gpu_faults(stored(config()), PLACE, types)))


def test_ecr_is_not_called_for_jobs_without_gpus(stored):
    session = stored(config())

    assert [] == list(remote_gpu_faults(session, PLACE, ["ml.c5.xlarge", "ml.new.xlarge"]))
    assert [] == session.calls
