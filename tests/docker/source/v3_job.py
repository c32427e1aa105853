# SPDX-License-Identifier: Apache-2.0
"""A job of SageMaker's own SDK v3 on this machine, as its users write it.

python v3_job.py <image> <directory> <hosts> plain|torchrun|ours|ours-in-theirs <script>
"""

import json
import sys
from pathlib import Path
from tempfile import mkdtemp

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import Torchrun
from sagemaker.train.model_trainer import Mode

image, directory, hosts, kind, script = sys.argv[1:]
hyperparameters, environment, distributed, inputs = {"epochs": 3}, {}, None, []
if kind == "torchrun":
    distributed = Torchrun(process_count_per_node=2)
elif kind.startswith("ours"):
    from sagemaker_dist.trainer import DataParallelConfig

    distributed = DataParallelConfig(processes_per_host=2, start_timeout_seconds=60)
    hyperparameters = json.loads(Path(directory, "hyperparameters.json").read_text())
if kind == "ours":  # no shell sees these
    inputs = [InputData(channel_name="my-data.v1", data_source=f"{directory}/script")]
if kind == "ours-in-theirs":
    environment = {"SMDIST_TAKE_OVER": "off"}
ModelTrainer(
    training_mode=Mode.LOCAL_CONTAINER,
    training_image=image,
    role="arn:aws:iam::000000000000:role/x",
    base_job_name="sagemaker-dist-test",
    source_code=SourceCode(
        source_dir=f"{directory}/script",
        entry_script=script,
        requirements="needs.txt" if kind.startswith("ours") else None,
    ),
    compute=Compute(instance_type="local_cpu", instance_count=int(hosts)),
    distributed=distributed,
    hyperparameters=hyperparameters,
    environment=environment,
    input_data_config=inputs,
    # Its default, the working directory, loses ./input, ./shared and ./algo-1.
    local_container_root=mkdtemp(prefix="job", dir=f"{directory}/root"),
).train(wait=True)
