# SPDX-License-Identifier: Apache-2.0
"""Pushes a training image, to Amazon ECR or any other registry; no credential stays behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sagemaker_dist.errors import OptionError, SetupError, raise_all
from sagemaker_dist.packaging.aws import boto_session
from sagemaker_dist.packaging.ecr import Pass, ecr_pass
from sagemaker_dist.packaging.engine import connected
from sagemaker_dist.packaging.facts import ImageFacts, inspect_image
from sagemaker_dist.packaging.frameworks import REPOSITORY, default_tag, framework_faults
from sagemaker_dist.packaging.layers import show
from sagemaker_dist.packaging.refusals import refusal

if TYPE_CHECKING:
    from docker import DockerClient

_DENIED: Final = ("denied", "unauthorized", "no basic auth", "authentication required")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Which image goes where.

    Attributes:
        framework: Whose image, unless `image` names one.
        image: Name of the image; None for `default_tag(framework)`.
        to: A repository of a registry, such as "localhost:5000/name", with or
            without a tag; None for ECR in the session's account and region.
        repository: In ECR.
        create: Create the repository in ECR if there is none.

    Raises:
        OptionError: There is no image for `framework`, or `to` and an option
            for ECR are given.
    """

    framework: str = "torch"
    image: str | None = None
    to: str | None = None
    repository: str = REPOSITORY
    create: bool = False

    def __post_init__(self) -> None:
        faults = list(framework_faults(self.framework))
        if self.to is not None and (self.create or self.repository != REPOSITORY):
            faults.append(
                OptionError(
                    f"to is {self.to!r} with create or repository",
                    "these are for Amazon ECR",
                    "Leave out to, or the others",
                )
            )
        if self.to is not None and "/" not in self.to:
            faults.append(
                OptionError(f"to is {self.to!r}", "it names no registry", "Write HOST:PORT/NAME")
            )
        raise_all(faults)

    @property
    def name(self) -> str:
        """The image that is pushed."""
        return self.image or default_tag(self.framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedImage:
    """Where a pushed image is.

    Attributes:
        uri: What `image_uri` takes, with the tag.
        digest: Of its manifest: "sha256:…".
    """

    uri: str
    digest: str


def push_image(options: PushOptions | None = None, *, session: Any = None) -> PushedImage:
    """Push an image; `session` is boto3's, and its default if left out.

    The token for ECR goes with the one request. Other registries get what
    `docker login` stored for them.

    Raises:
        SetupError: There is no such image, the repository is missing, or the
            registry refuses.
    """
    options = options or PushOptions()
    with connected() as client:
        facts = inspect_image(options.name, client=client)
        access = None if options.to else _ecr(options, session)
        repository, tag = _target(options, access)
        uri = f"{repository}:{tag}"
        with _tagged(client, facts, uri):
            digest = _push(client, repository, tag, access)
    return PushedImage(uri=uri, digest=digest)


@contextmanager
def _tagged(client: DockerClient, facts: ImageFacts, uri: str) -> Iterator[None]:
    """The tag that a push takes; it stays if that succeeds."""
    from docker.errors import APIError

    repository, _, tag = uri.rpartition(":")
    before = _named(client, uri)
    try:
        client.api.tag(facts.id, repository, tag)
        yield
    except BaseException as error:
        with suppress(APIError):
            if before is None:
                client.images.remove(uri, noprune=True)
            else:
                client.api.tag(before, repository, tag)
        if isinstance(error, APIError):
            raise refusal(f"{facts.name} was not pushed to {uri}", error) from error
        raise


def _named(client: DockerClient, name: str) -> str | None:
    """The id of the image that has this name now."""
    from docker.errors import ImageNotFound

    try:
        return client.images.get(name).id
    except ImageNotFound:
        return None


def _ecr(options: PushOptions, session: Any) -> Pass:
    return ecr_pass(session or boto_session(), options.repository, create=options.create)


def _target(options: PushOptions, access: Pass | None) -> tuple[str, str]:
    own = options.name.partition("@")[0].rpartition("/")[2].partition(":")[2] or "latest"
    if access:
        return access.repository_uri, own
    assert options.to, "there is a target or ECR"
    host, _, name = options.to.rpartition("/")
    name, _, tag = name.partition(":")
    return f"{host}/{name}", tag or own


def _push(client: DockerClient, repository: str, tag: str, access: Pass | None) -> str:
    login: dict[str, Any] = {}
    if access:
        login["auth_config"] = {"username": access.username, "password": access.password}
    messages = client.api.push(repository, tag=tag, stream=True, decode=True, **login)
    return _digest(repository, show(messages))


def _digest(repository: str, messages: Iterable[Mapping[str, Any]]) -> str:
    digest = error = ""
    for message in messages:  # to the end, which gives the connection back
        error = error or str(message.get("error", ""))
        digest = message.get("aux", {}).get("Digest", digest)
    if error:
        raise _refused(repository, error)
    return digest


def _refused(repository: str, why: str) -> SetupError:
    denied = any(word in why.lower() for word in _DENIED)
    host = repository.partition("/")[0]
    mend = f"Run: docker login {host}" if denied else "See whether the registry answers, push again"
    if denied and ".dkr.ecr." in host:
        mend = "Allow these credentials to push there (ecr:PutImage and ecr:*LayerUpload*)"
    return SetupError(f"{repository} did not take the image", why.strip().rstrip("."), mend)
