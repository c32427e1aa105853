# SPDX-License-Identifier: Apache-2.0
"""`TensorFlow` as SageMaker's SDK v2 has it, plus our local modes.

    TensorFlow(..., instance_type="local_process")    hosts are processes of this machine
    TensorFlow(..., instance_type="local")            hosts are containers of its Docker engine

    distribution=DataParallel()                       ranks of ours, for Keras and custom loops
    distribution=MultiWorkerMirroredStrategy()        TensorFlow's own, started by us
    distribution=ParameterServer()                    the same

In SageMaker's images everything is as with the parent.
"""

from __future__ import annotations

from typing import Any, Final

from sagemaker.deprecations import renamed_kwargs
from sagemaker.tensorflow import TensorFlow as SageMakerTensorFlow

from sagemaker_dist.catalog import LOCAL_PROCESS
from sagemaker_dist.contract.strategies import Strategy
from sagemaker_dist.estimators.distributed import Distributed
from sagemaker_dist.estimators.jobs import runs_here

_MODEL_DIR: Final = "/opt/ml/model"  # its own default lies in S3, or where nobody collects it
_NEXT_TO_CODE: Final = "../model"  # the same for a process: each host has an /opt/ml of its own


class TensorFlow(Distributed, SageMakerTensorFlow):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's TensorFlow estimator with our local modes.

    Takes what `sagemaker.tensorflow.TensorFlow` takes, and besides:

    * `distribution`: `DataParallel(...)` and the strategies above in our image, unless a
      framework_version names SageMaker's. `ModelParallel` is for torch.
    * `instance_type="local_process"`, `"local"` or `"local_gpu"`: as in `PyTorch`.
    * `image_uri`: with such a distribution and in our local modes, without a
      framework_version, defaults to the image of
      `sagemaker-dist image build --framework tensorflow`.
    * `model_dir`: in our image and our local modes defaults to the directory that becomes
      model.tar.gz, relative to the script's own for local processes.

    Raises:
        OptionError: The request is wrong; every fault is reported at once.
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
        """What the parent adds for its own launchers; ours is asked by `_added`."""
        if self._asked.is_launched:
            return {}
        added: dict[str, Any] = super()._distribution_configuration(distribution)
        return added

    def _default_s3_path(self, directory: str, mpi: bool = False) -> str:
        """Where the script saves: with the parent a place in S3, but for ranks of MPI."""
        place: str = super()._default_s3_path(directory, mpi or self._asked.is_launched)
        return place

    @classmethod
    def _prepare_init_params_from_job_description(
        cls, job_details: dict[str, Any], model_channel_name: str | None = None
    ) -> dict[str, Any]:
        params: dict[str, Any] = super()._prepare_init_params_from_job_description(
            job_details, model_channel_name
        )
        if "model_dir" not in params:  # the parent knows it of jobs in its own images alone
            params["model_dir"] = params["hyperparameters"].pop("model_dir", False)
        return params


def _model_dir(given: dict[str, Any]) -> str | None:
    instance_type = given.get("instance_type")
    if not runs_here(instance_type, given.get("sagemaker_session")):
        return None
    return _NEXT_TO_CODE if instance_type == LOCAL_PROCESS else _MODEL_DIR
