# SPDX-License-Identifier: Apache-2.0
"""Push of a training image to Amazon ECR or another registry; credentials are not stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sagemaker_dist.errors import OptionError, SetupError, raise_all
from sagemaker_dist.packaging.aws_session import boto_session
from sagemaker_dist.packaging.docker_engine import connected
from sagemaker_dist.packaging.docker_errors import refusal
from sagemaker_dist.packaging.ecr import EcrLogin, ecr_login
from sagemaker_dist.packaging.frameworks import REPOSITORY, default_tag, framework_faults
from sagemaker_dist.packaging.image_facts import ImageFacts, inspect_image
from sagemaker_dist.packaging.layer_progress import show

if TYPE_CHECKING:
    from docker import DockerClient

_DENIED: Final = ("denied", "unauthorized", "no basic auth", "authentication required")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Options of the push of a training image.

    Attributes:
        framework: Framework of the image; not used if `image` is given.
        image: Name of the image; None for `default_tag(framework)`.
        to: Registry and repository, such as "localhost:5000/name", with or without a tag; None for
            ECR in the session's account and region.
        repository: Repository in ECR.
        create: Create the repository in ECR if it does not exist.

    Raises:
        OptionError: There is no image for `framework`, or `to` is combined with an option for
            ECR.
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
                    f"`to` is {self.to!r}, and `create` or `repository` is given",
                    "`create` and `repository` are for Amazon ECR, which `to` replaces",
                    "Leave out `to`, or leave out `create` and `repository`",
                    "to",
                    "conflict",
                )
            )
        if self.to is not None and "/" not in self.to:
            faults.append(
                OptionError(
                    f"`to` is {self.to!r}",
                    "it has no '/' between the registry and the name of the image",
                    "Pass HOST:PORT/NAME",
                    "to",
                )
            )
        raise_all(faults)

    @property
    def name(self) -> str:
        """Name of the image to push."""
        return self.image or default_tag(self.framework)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedImage:
    """URI and digest of a pushed image.

    Attributes:
        uri: Value for `image_uri`, with the tag.
        digest: Digest of the image's manifest: "sha256:…".
    """

    uri: str
    digest: str


def push_image(options: PushOptions | None = None, *, session: Any = None) -> PushedImage:
    """Push an image to a registry, and return its URI and digest.

    By default, the image for torch is pushed to ECR. `session` is a boto3.Session; the default has
    boto3's own settings. The login for ECR is used for this push and not stored. Other registries
    need a stored login (`docker login`).

    Raises:
        SetupError: The image or the repository does not exist, or the registry refuses the push.
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
    """Tag an image with the URI of the push; if the `with` block fails, restore the tags."""
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
    """Return the id of the image that has this name now, or None if no image has it."""
    from docker.errors import ImageNotFound

    try:
        return client.images.get(name).id
    except ImageNotFound:
        return None


def _ecr(options: PushOptions, session: Any) -> EcrLogin:
    return ecr_login(session or boto_session(), options.repository, create=options.create)


def _target(options: PushOptions, access: EcrLogin | None) -> tuple[str, str]:
    own = options.name.partition("@")[0].rpartition("/")[2].partition(":")[2] or "latest"
    if access:
        return access.repository_uri, own
    assert options.to, "there is a target or ECR"
    host, _, name = options.to.rpartition("/")
    name, _, tag = name.partition(":")
    return f"{host}/{name}", tag or own


def _push(client: DockerClient, repository: str, tag: str, access: EcrLogin | None) -> str:
    login: dict[str, Any] = {}
    if access:
        login["auth_config"] = {"username": access.username, "password": access.password}
    messages = client.api.push(repository, tag=tag, stream=True, decode=True, **login)
    return _digest(repository, show(messages))


def _digest(repository: str, messages: Iterable[Mapping[str, Any]]) -> str:
    digest = error = ""
    for message in messages:  # reading to the end closes the connection
        error = error or str(message.get("error", ""))
        digest = message.get("aux", {}).get("Digest", digest)
    if error:
        raise _refused(repository, error)
    return digest


def _refused(repository: str, why: str) -> SetupError:
    denied = any(word in why.lower() for word in _DENIED)
    host = repository.partition("/")[0]
    hint = (
        f"Run: docker login {host}" if denied else "Check that the registry answers, and push again"
    )
    if denied and ".dkr.ecr." in host:
        hint = "Allow these credentials to push there (ecr:PutImage and ecr:*LayerUpload*)"
    what, kind = f"{repository} did not accept the image", "access_denied" if denied else "refused"
    return SetupError(what, why.strip().rstrip("."), hint, kind=kind)
