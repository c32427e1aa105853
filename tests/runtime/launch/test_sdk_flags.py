# SPDX-License-Identifier: Apache-2.0
"""What SageMaker's SDK v2 itself sends for a `distribution=` is what the launcher reads."""

import json
import os
import subprocess
import sys

import pytest

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.contract.sdk_flags import MPI_FLAG
from sagemaker_dist.errors import DistError
from smdist.config import read_runtime_config
from smdist.launch.launch_request import REFUSED, SERVED, STRATEGIES, resolve_request

ON = {"enabled": True}
SMDDP = {"smdistributed": {"dataparallel": ON}}
ASK = """
import json, sys
from sagemaker.huggingface import HuggingFace
from sagemaker.pytorch import PyTorch, TrainingCompilerConfig

def flags(kind, distribution, compiler):
    estimator = object.__new__(kind)
    estimator.instance_type, estimator.image_uri = "ml.g5.xlarge", "mine"
    name = "pytorch" if kind is PyTorch else "huggingface"
    found = getattr(estimator, f"_{name}_distribution_configuration")(distribution)
    if compiler is not None:
        found |= TrainingCompilerConfig(enabled=compiler)._to_hyperparameter_dict()
    return kind._json_encode_hyperparameters(found)

json.dump({
    "names": sorted({
        getattr(kind, name) for kind in (PyTorch, HuggingFace) for name in dir(kind)
        if name.startswith("LAUNCH_")
    }),
    "sent": [flags({"PyTorch": PyTorch, "HuggingFace": HuggingFace}[kind], *asked)
             for kind, *asked in json.loads(sys.argv[1])],
}, sys.stdout)
"""
CASES = [
    ("PyTorch", {"torch_distributed": ON}, "ranks"),
    ("PyTorch", {"torch_distributed": ON, **SMDDP}, "ranks"),
    ("PyTorch", SMDDP, "ranks"),
    ("PyTorch", {**SMDDP, "instance_groups": ["gpu"]}, "ranks"),
    ("PyTorch", {**SMDDP, "instance_groups": ["cpu"]}, "plain"),
    ("HuggingFace", {"pytorchddp": ON}, "ranks"),
    ("HuggingFace", {"torch_distributed": ON}, "ranks"),
    ("PyTorch", {}, "plain"),
    ("PyTorch", {"torch_distributed": {"enabled": False}}, "plain"),
    ("PyTorch", {"mpi": {"enabled": False, "processes_per_host": 8}}, "plain"),
    ("PyTorch", {"mpi": ON}, "one rank"),
    (
        "PyTorch",
        {"mpi": {**ON, "processes_per_host": 4, "custom_mpi_options": "-x A=1 --verbose"}},
        "four ranks",
    ),
    ("PyTorch", {"mpi": ON, "instance_groups": ["cpu"]}, "plain"),
    (
        "PyTorch",
        {"mpi": {**ON, "custom_mpi_options": "--mca btl tcp"}},
        "sagemaker_mpi_custom_mpi_options",
    ),
    ("PyTorch", {"parameter_server": ON}, "servers"),  # where TensorFlow is not, it is missed
    ("PyTorch", {"pytorchxla": ON}, "sagemaker_pytorch_xla_multi_worker_enabled"),
    (
        "PyTorch",
        {"smdistributed": {"dataparallel": {**ON, "custom_mpi_options": "-x A=1 -np 2"}}},
        "sagemaker_distributed_dataparallel_custom_mpi_options",
    ),
    (
        "PyTorch",
        {
            "torch_distributed": ON,
            "smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}},
        },
        "mp_parameters",
    ),
    (
        "PyTorch",
        {
            "mpi": {**ON, "processes_per_host": 2},
            "smdistributed": {"modelparallel": {**ON, "parameters": {"partitions": 2}}},
        },
        "stages",
    ),
    ("PyTorch", {}, "sagemaker_training_compiler_enabled", True),
    ("PyTorch", {"torch_distributed": ON}, "sagemaker_training_compiler_enabled", True),
    ("PyTorch", {"torch_distributed": ON}, "ranks", False),
]
RESOURCES = {
    "current_host": "algo-1",
    "current_group_name": "gpu",
    "hosts": ["algo-1", "algo-2"],
    "instance_groups": [
        {"instance_group_name": "gpu", "hosts": ["algo-1"]},
        {"instance_group_name": "cpu", "hosts": ["algo-2"]},
    ],
}


@pytest.fixture(scope="module")
def sdk():
    """Hyperparameters of SageMaker's SDK, made in a process of its own, since its import warns."""
    asked = json.dumps(
        [(kind, distribution, *(compiler or [None])) for kind, distribution, _, *compiler in CASES]
    )
    done = subprocess.run(
        [sys.executable, "-c", ASK, asked],
        env={**os.environ, "SAGEMAKER_SUPPRESS_V2_WARNING": "1"},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_every_launcher_of_the_sdk_is_known(sdk):
    """Served or refused, by the very name that the SDK sends."""
    assert sorted({*SERVED, *STRATEGIES, *REFUSED, MPI_FLAG}) == sdk["names"]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_the_sdk_sends_is_understood(sdk, tmp_path, number):
    folder = tmp_path / "input/config"
    folder.mkdir(parents=True)
    (folder / "hyperparameters.json").write_text(json.dumps(sdk["sent"][number]))
    (folder / "resourceconfig.json").write_text(json.dumps(RESOURCES))
    config = read_runtime_config({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    outcome = CASES[number][2]

    if outcome == "stages":
        model = resolve_request(config).model

        assert (2, 2) == (model.pipeline_parallel_degree, model.engine.processes_per_host)
    elif outcome == "servers":
        asked = resolve_request(config)

        assert ("parameter_server", "tensorflow") == (asked.strategy, asked.framework)
    elif outcome in ("one rank", "four ranks"):
        asked = resolve_request(config)
        number = 4 if outcome == "four ranks" else 1

        assert DataParallel(processes_per_host=number) == asked.options
        assert asked.inherited["SMDIST_OPEN_MPI"] == "1"
        assert (number == 4) == ("A" in asked.inherited)
    elif outcome in ("ranks", "plain"):
        assert (DataParallel() if outcome == "ranks" else None) == resolve_request(config).options
    else:
        with pytest.raises(DistError) as refused:
            resolve_request(config)
        assert (outcome,) == refused.value.about
