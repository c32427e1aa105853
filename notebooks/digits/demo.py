# SPDX-License-Identifier: Apache-2.0
"""Training job on two emulated hosts with two ranks each, without AWS.

`demo.py` runs the hosts as processes, `demo.py local` as containers of the local Docker engine.
"""

import sys
from pathlib import Path

from data import write_digits

from sagemaker_dist import DataParallel, PyTorch

instance_type = sys.argv[1] if len(sys.argv) > 1 else "local_process"
work = Path("build/demo").absolute()
estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(Path(__file__).parent / "source"),
    instance_type=instance_type,  # or "local"; on SageMaker "ml.p4d.24xlarge"
    instance_count=2,
    distribution=DataParallel(processes_per_host=2),
    hyperparameters={"epochs": 15},
    output_path=work.joinpath("output").as_uri(),
)
estimator.fit({"training": write_digits(work / "data").as_uri()})

model = Path(estimator.model_data.removeprefix("file://")).relative_to(Path.cwd())
print(f"""
The model is {model}
Load it, here, with

tar -xzf {model} -C build/demo
.venv/bin/python -c "import torch; print(torch.load('build/demo/model.pt').keys())"
""")
