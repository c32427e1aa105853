# SPDX-License-Identifier: Apache-2.0
"""`TensorFlow` of SageMaker's SDK v2, with sagemaker-dist's additions.

    TensorFlow(..., instance_type="local_process")  hosts are processes of this machine
    TensorFlow(..., instance_type="local")          hosts are containers of this machine

    distribution=DataParallel()                     smdist's collectives, for Keras or custom loops
    distribution=ModelParallel(...)                 a Keras model in stages over several ranks
    distribution=MultiWorkerMirroredStrategy()      TensorFlow's own collectives
    distribution=ParameterServer()                  TensorFlow's own parameter servers

The sagemaker-dist launcher starts the processes of all these distributions. With SageMaker's
images, the class behaves like the SDK's TensorFlow.
"""

from __future__ import annotations

from typing import Any, Final

from sagemaker.deprecations import renamed_kwargs
from sagemaker.tensorflow import TensorFlow as SageMakerTensorFlow

from sagemaker_dist.catalog import LOCAL_PROCESS
from sagemaker_dist.contract.aws_distributions import Strategy
from sagemaker_dist.estimators.checked_job import runs_here
from sagemaker_dist.estimators.distributed import Distributed

_MODEL_DIR: Final = "/opt/ml/model"  # the SDK's default is in S3, or a directory that is not saved
_NEXT_TO_CODE: Final = "../model"  # for a process: relative to the script, in the host's tree


class TensorFlow(Distributed, SageMakerTensorFlow):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's TensorFlow estimator with the distributions and local modes of sagemaker-dist.

    Takes the arguments of `sagemaker.tensorflow.TensorFlow`, and in addition:

    * `distribution`: `DataParallel(...)`, `ModelParallel(...)`, `MultiWorkerMirroredStrategy()` or
      `ParameterServer()`, which run in the sagemaker-dist image, unless a framework_version selects
      an image of SageMaker.
    * `instance_type="local_process"`, `"local"` or `"local_gpu"`: runs the job on this machine,
      as in `PyTorch`.
    * `image_uri`: for the distributions above, and for local jobs, the default is the image of
      `sagemaker-dist image build --framework tensorflow`, unless a framework_version is given.
    * `model_dir`: in the sagemaker-dist image, and for local jobs, the default is the directory
      that becomes model.tar.gz. For local processes the path is relative to the script's directory.

    Raises:
        OptionError: The request is wrong; all faults are reported together.
    """

    kind = "TensorFlow"
    framework = "tensorflow"
    stem = "tensorflow-training"

    def __init__(
        self,
        py_version: str | None = None,
        framework_version: str | None = None,
        model_dir: Any = None,
        image_uri: Any = None,
        distribution: Strategy | dict[str, Any] | None = None,
        compiler_config: Any = None,
        **kwargs: Any,
    ) -> None:
        distribution = renamed_kwargs("distributions", "distribution", distribution, kwargs)
        kwargs.pop("distributions", None)
        super().__init__(
            py_version=py_version,
            framework_version=framework_version,
            model_dir=_model_dir(kwargs) if model_dir is None else model_dir,
            image_uri=image_uri,
            compiler_config=compiler_config,
            **{**kwargs, "distribution": distribution},
        )

    def _distribution_configuration(self, distribution: Any) -> dict[str, Any]:
        """Return the hyperparameters that pass `distribution` to SageMaker's launchers.

        The dict is empty if the sagemaker-dist launcher starts the ranks.
        """
        if self._parsed.is_launched:
            return {}
        added: dict[str, Any] = super()._distribution_configuration(distribution)
        return added

    def _default_s3_path(self, directory: str, mpi: bool = False) -> str:
        """Return the default of `model_dir`, the directory to which the script writes its model.

        The default is in S3 below `directory`. If `mpi` is True, or if the sagemaker-dist launcher
        starts the ranks, the default is a directory of the host.
        """
        place: str = super()._default_s3_path(directory, mpi or self._parsed.is_launched)
        return place

    @classmethod
    def _prepare_init_params_from_job_description(
        cls, job_details: dict[str, Any], model_channel_name: str | None = None
    ) -> dict[str, Any]:
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            job_details, model_channel_name
        )
        if "model_dir" not in params:  # the SDK reads it only from jobs in SageMaker's images
            params["model_dir"] = params["hyperparameters"].pop("model_dir", False)
        return params


def _model_dir(given: dict[str, Any]) -> str | None:
    instance_type = given.get("instance_type")
    if not runs_here(instance_type, given.get("sagemaker_session")):
        return None
    return _NEXT_TO_CODE if instance_type == LOCAL_PROCESS else _MODEL_DIR
