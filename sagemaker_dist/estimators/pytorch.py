# SPDX-License-Identifier: Apache-2.0
"""`PyTorch` of SageMaker's SDK v2, with sagemaker-dist's additions.

        PyTorch(..., distribution=DataParallel())         the smdist launcher starts the ranks
        PyTorch(..., instance_type="local_process")       hosts are processes of this machine
        PyTorch(..., instance_type="local")               hosts are containers of this machine

The code of these additions is in `distributed`, which all Estimators share.
"""

from __future__ import annotations

from typing import Any

from sagemaker.pytorch import PyTorch as SageMakerPyTorch

from sagemaker_dist.contract.aws_distributions import Strategy
from sagemaker_dist.estimators.distributed import Distributed


class PyTorch(Distributed, SageMakerPyTorch):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's PyTorch estimator with the distributions and local modes of sagemaker-dist.

    Takes the arguments of `sagemaker.pytorch.PyTorch`, and in addition:

    * `distribution`: `DataParallel(...)`, `TorchDistributed()`, another typed option
      of `sagemaker_dist` (`SMDDP`, `SMPv1`, `SMPv2`, `MPI`, `PyTorchDDP`,
      `OnInstanceGroup`, ...), or any dict that SageMaker's class takes.
      docs/distributions.md names the launcher of each of them.
    * `instance_type="local_process"`: every host is a process of this machine;
      no image, role, credentials, region or network is needed. Output and
      checkpoints are file:// directories, data is file:// or s3://.
    * `instance_type="local"` or `"local_gpu"`: every host is a container of this
      machine's Docker engine; otherwise the same as "local_process". With a
      LocalSession of SageMaker's own, its local mode runs the job instead.
    * `image_uri`: the default for `DataParallel` and `ModelParallel` is the image of
      `sagemaker-dist image build`. Local jobs without a framework_version have the same
      default.

    Raises:
        OptionError: The request is wrong; all faults are reported together.
    """

    kind = "PyTorch"
    framework = "torch"
    stem = "pytorch-training"
    configures = "_pytorch_distribution_configuration"

    def __init__(
        self,
        entry_point: Any = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: Any = None,
        hyperparameters: dict[str, Any] | None = None,
        image_uri: Any = None,
        distribution: Strategy | dict[str, Any] | None = None,
        compiler_config: Any = None,
        training_recipe: str | None = None,
        recipe_overrides: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            entry_point=entry_point,
            framework_version=framework_version,
            py_version=py_version,
            source_dir=source_dir,
            hyperparameters=hyperparameters,
            image_uri=image_uri,
            distribution=distribution,
            compiler_config=compiler_config,
            training_recipe=training_recipe,
            recipe_overrides=recipe_overrides,
            **kwargs,
        )
