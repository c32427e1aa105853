# SPDX-License-Identifier: Apache-2.0
"""`HuggingFace` as SageMaker's SDK v2 has it, plus our distribution and our local modes.

Our image holds torch; a job that needs transformers names it in the
requirements.txt of its source_dir, or brings an image of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sagemaker.huggingface import HuggingFace as SageMakerHuggingFace

from sagemaker_dist.contract import Distribution
from sagemaker_dist.contract.strategies import Strategy
from sagemaker_dist.errors import OptionError
from sagemaker_dist.estimators.distributed import Distributed
from sagemaker_dist.packaging import FRAMEWORKS


class HuggingFace(Distributed, SageMakerHuggingFace):  # type: ignore[misc]  # SageMaker's SDK is untyped
    """SageMaker's Hugging Face estimator with our distribution and our local modes.

    Takes what `sagemaker.huggingface.HuggingFace` takes, and besides:

    * `distribution` and `instance_type`: as in `PyTorch`.
    * `image_uri`: with our distribution, or in our local modes without a
      transformers_version, defaults to the image of `sagemaker-dist image build`.
    * `py_version`: about SageMaker's images alone, and needed only for them.

    Raises:
        OptionError: The request is wrong; every fault is reported at once.
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

    def _faults(self, asked: Distribution, given: Mapping[str, Any]) -> Iterator[OptionError]:
        if given["entry_point"] is None:
            yield OptionError(
                "entry_point is left out", "the job runs a script", "Pass the path of the script"
            )
        if asked.is_launched:
            yield from _version_faults(given)
        elif given["image_uri"] is None and _is_half_named(given):
            yield OptionError(
                "py_version is left out",
                "SageMaker's image of these versions is called by it",
                "Pass py_version, such as 'py310', or image_uri",
            )


def _is_half_named(given: Mapping[str, Any]) -> bool:
    return bool(given["transformers_version"]) and given["py_version"] is None


def _version_faults(given: Mapping[str, Any]) -> Iterator[OptionError]:
    """Versions that our image does not hold, where it is our image."""
    held = FRAMEWORKS["torch"].default
    if given["tensorflow_version"] is not None:
        yield OptionError(
            f"tensorflow_version is {given['tensorflow_version']!r}",
            "the distribution of sagemaker_dist trains with torch",
            "Leave tensorflow_version out, or leave distribution out",
        )
    if given["image_uri"] is not None:
        return
    asked = given["pytorch_version"]
    if asked is not None and not f"{held}.".startswith(f"{asked}."):
        yield OptionError(
            f"pytorch_version is {asked!r}",
            f"the image of this version of sagemaker_dist holds {held}",
            "Leave pytorch_version out, or pass image_uri",
        )
    if given["transformers_version"] is not None:
        yield OptionError(
            f"transformers_version is {given['transformers_version']!r}",
            "the image of sagemaker_dist holds torch without transformers",
            "Name transformers in requirements.txt in source_dir and leave transformers_version"
            " out, or pass image_uri",
        )
