# SPDX-License-Identifier: Apache-2.0
"""A job of SageMaker's own SDK v3 on this machine, as its users write it.

python v3_job.py <image> <directory> <hosts> plain|torchrun <script>
"""

import sys
from tempfile import mkdtemp

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import Torchrun
from sagemaker.train.model_trainer import Mode

image, directory, hosts, kind, script = sys.argv[1:]
ModelTrainer(
    training_mode=Mode.LOCAL_CONTAINER,
    training_image=image,
    role="arn:aws:iam::000000000000:role/x",
    base_job_name="sagemaker-dist-test",
    source_code=SourceCode(source_dir=f"{directory}/script", entry_script=script),
    compute=Compute(instance_type="local_cpu", instance_count=int(hosts)),
    distributed=Torchrun(process_count_per_node=2) if kind == "torchrun" else None,
    hyperparameters={"epochs": 3},
    # Its default, the working directory, loses ./input, ./shared and ./algo-1.
    local_container_root=mkdtemp(prefix="job", dir=f"{directory}/root"),
).train(wait=True)
