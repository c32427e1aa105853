# SPDX-License-Identifier: Apache-2.0
"""`HuggingFace` of SageMaker's SDK v2, with sagemaker-dist's additions.

The sagemaker-dist image has torch but not transformers. A job that needs transformers lists it in
the requirements.txt of its source_dir, or uses another image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagemaker.huggingface import HuggingFace as SageMakerHuggingFace

from sagemaker_dist.contract import Distribution
from sagemaker_dist.contract.aws_distributions import Strategy
from sagemaker_dist.errors import OptionError
from sagemaker_dist.estimators.distributed import Distributed
from sagemaker_dist.packaging import FRAMEWORKS


class HuggingFace(Distributed, SageMakerHuggingFace):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's Hugging Face estimator with the distributions and local modes of sagemaker-dist.

    Takes the arguments of `sagemaker.huggingface.HuggingFace`, and in addition:

    * `distribution`: `DataParallel(...)`, `ModelParallel(...)`, another typed option of
      `sagemaker_dist`, or any dict that SageMaker's class takes.
    * `instance_type`: "local_process" runs each host of the job as a process of this machine;
      "local" and "local_gpu" run each host as a container.
    * `image_uri`: defaults to the image of `sagemaker-dist image build` for a job with a
      sagemaker-dist distribution, and for a local job without a transformers_version.
    * `py_version`: only for SageMaker's images.

    Raises:
        OptionError: The request is wrong; all faults are reported together.
    """

    kind = "HuggingFace"
    framework = "torch"
    names_image = ("transformers_version", "pytorch_version", "tensorflow_version")
    stem = "huggingface-pytorch-training"
    configures = "_huggingface_distribution_configuration"

    def __init__(
        self,
        py_version: str | None = None,
        entry_point: Any = None,
        transformers_version: str | None = None,
        tensorflow_version: str | None = None,
        pytorch_version: str | None = None,
        source_dir: Any = None,
        hyperparameters: dict[str, Any] | None = None,
        image_uri: Any = None,
        distribution: Strategy | dict[str, Any] | None = None,
        compiler_config: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            py_version=py_version,
            entry_point=entry_point,
            transformers_version=transformers_version,
            tensorflow_version=tensorflow_version,
            pytorch_version=pytorch_version,
            source_dir=source_dir,
            hyperparameters=hyperparameters,
            image_uri=image_uri,
            distribution=distribution,
            compiler_config=compiler_config,
            **kwargs,
        )

    def _faults(
        self, distribution: Distribution, given: Mapping[str, Any]
    ) -> Iterator[OptionError]:
        if given["entry_point"] is None:
            yield OptionError(
                "entry_point is left out",
                "the job runs a script",
                "Pass the path of the script",
                "entry_point",
                kind="missing",
            )
        if distribution.is_launched:
            yield from _version_faults(given)
        elif given["image_uri"] is None and _is_half_named(given):
            yield OptionError(
                "py_version is left out",
                "the name of SageMaker's image contains the version of Python",
                "Pass py_version, such as 'py310', or image_uri",
                "py_version",
                kind="missing",
            )


def _is_half_named(given: Mapping[str, Any]) -> bool:
    return bool(given["transformers_version"]) and given["py_version"] is None


def _version_faults(given: Mapping[str, Any]) -> Iterator[OptionError]:
    """Yield an error for each argument with a version that the sagemaker-dist image does not have.

    `given` are the arguments of the estimator. A job with an image_uri may use any version of torch
    and transformers.
    """
    version = FRAMEWORKS["torch"].default
    if given["tensorflow_version"] is not None:
        yield OptionError(
            f"tensorflow_version is {given['tensorflow_version']!r}",
            "the distribution of sagemaker_dist trains with torch",
            "Leave tensorflow_version out, or leave distribution out",
            "tensorflow_version",
            kind="conflict",
        )
    if given["image_uri"] is not None:
        return
    requested = given["pytorch_version"]
    if requested is not None and not f"{version}.".startswith(f"{requested}."):
        yield OptionError(
            f"pytorch_version is {requested!r}",
            f"the image of the installed sagemaker_dist has PyTorch {version}",
            "Leave pytorch_version out, or pass image_uri",
            "pytorch_version",
            kind="unsupported",
        )
    if given["transformers_version"] is not None:
        yield OptionError(
            f"transformers_version is {given['transformers_version']!r}",
            "the image of sagemaker_dist has torch, but not transformers",
            "Name transformers in requirements.txt in source_dir and leave transformers_version"
            " out, or pass image_uri",
            "transformers_version",
            kind="unsupported",
        )
