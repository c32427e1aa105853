# SPDX-License-Identifier: Apache-2.0
"""Facts about an image from its labels, and the check that it works with this SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sagemaker_dist.contract import hyperparameter_format
from sagemaker_dist.errors import SetupError, SkewError
from sagemaker_dist.packaging.docker_engine import connected
from sagemaker_dist.packaging.docker_errors import refusal
from sagemaker_dist.packaging.frameworks import (
    FRAMEWORKS,
    REPOSITORY,
    default_tag,
    installed_version,
    is_sagemaker_dist_image,
)
from sagemaker_dist.packaging.image_labels import LABEL, ImageLabels, is_derived

if TYPE_CHECKING:
    from docker import DockerClient

_REBUILD: Final = "Run: sagemaker-dist image build"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts(ImageLabels):
    """Facts about an image of this machine's Docker engine.

    Attributes:
        name: Name that the caller passed.
        id: Id of the image in the engine, "sha256:…".
        tags: All names of the image, with their tags.
        digests: Digests in the registries that the image was pushed to or pulled from.
        size_bytes: Unpacked size of all layers.
    """

    name: str
    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    size_bytes: int
    architecture: str


def inspect_image(image: str, *, client: DockerClient | None = None) -> ImageFacts:
    """Return the facts about an image of this machine's Docker engine; nothing is pulled.

    `client` is a client of the engine; None opens one.

    Raises:
        SetupError: The engine does not answer, or has no such image.
    """
    with _engine(client) as docker:
        facts = _find(docker, image)
    if facts is None:
        raise SetupError(
            f"there is no image {image!r}",
            "the Docker engine of this machine does not have it",
            f"{_rebuild_as(image)}, or docker pull it",
            kind="not_found",
        )
    return facts


def local_image(client: DockerClient | None, framework: str) -> ImageFacts:
    """Return the facts about the sagemaker-dist image for a framework on this machine.

    The image must have the same version as the installed sagemaker-dist. `client` is a client of
    the Docker engine; None opens one.

    Raises:
        SetupError: The image was not built here, or the engine does not answer.
        SkewError: The image has another version.
    """
    name = default_tag(framework)
    with _engine(client) as docker:
        facts = _find(docker, name)
        others = [] if facts else _versions(docker, framework)
    if facts:
        check_versions(facts)
        return facts
    command = _rebuild(framework)
    if others:
        raise other_versions(f"this machine's images {REPOSITORY}", others, command)
    raise SetupError(
        f"there is no image {name!r} on this machine",
        "the job needs an image, and image_uri is left out",
        f"{command}, or pass image_uri",
        about="image_uri",
        kind="not_found",
    )


def check_versions(facts: ImageFacts) -> None:
    """Check that an image works with this version of sagemaker-dist.

    An image without the sagemaker-dist runtime passes.

    Raises:
        SkewError: Runtime and SDK have different versions, or use different versions of the
            hyperparameter format.
    """
    here = installed_version()
    if facts.version is not None and facts.version != here:
        raise SkewError(
            f"the image {facts.name!r} has sagemaker-dist-runtime {facts.version}",
            f"sagemaker-dist {here} is installed here",
            f"{_rebuild_like(facts)}, or install sagemaker-dist {facts.version}",
        )
    if facts.wire is not None and facts.wire != str(hyperparameter_format.VERSION):
        raise SkewError(
            f"the image {facts.name!r} reads version {facts.wire} of the hyperparameter format",
            f"sagemaker-dist {here} writes version {hyperparameter_format.VERSION}",
            _rebuild_like(facts),
            kind="hyperparameter_format",
        )


def other_versions(where: str, versions: list[str], hint: str) -> SkewError:
    """Return the error for images that have other versions than this installation.

    Args:
        where: Text for the images, such as "the images for torch in URI".
        versions: Versions of the images.
        hint: Advice for the user.
    """
    return SkewError(
        f"{where} have version {', '.join(versions)}",
        f"sagemaker-dist {installed_version()} is installed here",
        hint,
    )


def _rebuild(framework: str | None) -> str:
    return f"{_REBUILD} --framework {framework}" if framework in FRAMEWORKS else _REBUILD


def _rebuild_like(facts: ImageLabels) -> str:
    command = _rebuild(facts.framework)
    return f"{command} --accelerator cuda" if facts.accelerator == "cuda" else command


def _rebuild_as(image: str) -> str:
    """Return a hint for errors: the command that builds an image of this name."""
    endings = [
        each for each in FRAMEWORKS if is_sagemaker_dist_image(image) and image.endswith(f"-{each}")
    ]
    command = _rebuild(endings[0] if endings else None)
    is_usual = bool(endings) and image == default_tag(endings[0])
    return command if is_usual else f"{command} --tag {image}"


@contextmanager
def _engine(client: DockerClient | None) -> Iterator[DockerClient]:
    with nullcontext(client) if client else connected() as docker:
        yield docker


def _find(docker: DockerClient, name: str) -> ImageFacts | None:
    from docker.errors import APIError, ImageNotFound, NullResource

    try:
        found = docker.images.get(name)
        has_runtime = f"{LABEL}version" in found.labels
        history = found.history() if has_runtime else []
    except ImageNotFound:
        return None
    except (APIError, NullResource) as error:
        raise refusal(f"the engine cannot inspect the image {name!r}", error) from error
    steps = [(each["CreatedBy"], each["Size"] > 0) for each in reversed(history)]
    return ImageFacts(
        name=name,
        id=found.id or "",
        tags=tuple(found.attrs.get("RepoTags") or ()),
        digests=tuple(found.attrs.get("RepoDigests") or ()),
        size_bytes=found.attrs["Size"],
        architecture=found.attrs["Architecture"],
        labels=dict(found.labels),
        is_derived=bool(steps) and is_derived(steps),
    )


def _versions(docker: DockerClient, framework: str) -> list[str]:
    tags = [tag for image in docker.images.list(name=REPOSITORY) for tag in image.tags]
    return versions_in((tag.rpartition(":")[2] for tag in tags), framework)


def versions_in(tags: Iterator[str], framework: str) -> list[str]:
    """Return the versions in the tags for a framework, such as "0.1.0-torch", sorted.

    Other tags are ignored.
    """
    ending = f"-{framework}"
    return sorted({tag.removesuffix(ending) for tag in tags if tag.endswith(ending)})
