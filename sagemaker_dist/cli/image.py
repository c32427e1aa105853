# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist image build | push | inspect`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import click

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.options import FILE, aws_options, json_option
from sagemaker_dist.errors import SkewError
from sagemaker_dist.packaging import (
    FRAMEWORKS,
    ImageFacts,
    ImageOptions,
    PushOptions,
    boto_session,
    build_image,
    check_versions,
    default_tag,
    inspect_image,
    push_image,
)

_BUILD: Final[dict[str, Any]] = {  # names and meanings are ImageOptions's
    "framework-version": {"metavar": "X.Y.Z", "help": "Exact. Default: the one we test with."},
    "base-image": {
        "metavar": "IMAGE",
        "help": "Has bash, python3, pip3, perhaps the framework.",
        "show_default": True,
    },
    "build-image": {"metavar": "IMAGE", "help": "Compiles the runtime. Default: the base image."},
    "tag": {"metavar": "NAME", "help": "Default: sagemaker-dist:VERSION-FRAMEWORK."},
    "wheelhouse": {"type": FILE, "metavar": "DIR", "help": "Wheels that are taken first."},
    "offline": {"is_flag": True, "help": "Download nothing; needs --wheelhouse."},
    "ca": {"type": FILE, "metavar": "FILE", "help": "Certificates that pip and apt trust, too."},
    "network": {"metavar": "NAME", "help": "Of the build steps, such as host."},
    "platform": {"metavar": "NAME", "help": "Such as linux/arm64."},
    "index-url": {"metavar": "URL", "help": "Where pip finds packages, instead of PyPI."},
    "extra-index-url": {"metavar": "URL", "help": "Where pip looks as well."},
}
_PUSH: Final[dict[str, Any]] = {
    "image": {"metavar": "NAME", "help": "Default: sagemaker-dist:VERSION-FRAMEWORK."},
    "to": {"metavar": "HOST/NAME", "help": "Another registry than Amazon ECR."},
    "repository": {"metavar": "NAME", "help": "In ECR.", "show_default": True},
    "create": {"is_flag": True, "help": "Create it in ECR if there is none."},
}
_Command = Callable[..., Any]


def _options(options: dict[str, Any], defaults: Any) -> Callable[[_Command], _Command]:
    def add(command: _Command) -> _Command:
        for name, settings in reversed(options.items()):
            default = getattr(defaults, name.replace("-", "_"))
            command = click.option(f"--{name}", default=default, **settings)(command)
        return _framework(command)

    return add


_framework = click.option(
    "--framework",
    type=click.Choice(sorted(FRAMEWORKS, reverse=True)),
    default="torch",
    show_default=True,
    help="What the image trains with.",
)


@click.group()
def image() -> None:
    """Build, push and inspect training images."""


@image.command()
@_options(_BUILD, ImageOptions())
def build(**chosen: Any) -> None:
    """Build the training image with Docker."""
    _show(build_image(ImageOptions(**chosen)))


@image.command()
@_options(_PUSH, PushOptions())
@aws_options
def push(region: str | None, profile: str | None, **chosen: Any) -> None:
    """Push the image to Amazon ECR or another registry."""
    options = PushOptions(**chosen)
    session = None if options.to else boto_session(region, profile)
    pushed = push_image(options, session=session)
    screen.line(f"{pushed.uri}\n{pushed.digest}")


@image.command()
@click.argument("image", required=False)
@_framework
@json_option
def inspect(image: str | None, framework: str, as_json: bool) -> None:
    """Say what an image is, and whether it fits.

    IMAGE is sagemaker-dist:VERSION-FRAMEWORK if left out.
    """
    found = inspect_image(image or default_tag(framework))
    if not as_json:
        _show(found)
        return
    derived = ("version", "wire", "framework", "framework_version")
    document = {**asdict(found), **{name: getattr(found, name) for name in derived}}
    document["fits"] = _misfit(found) is None
    screen.print_json(document, is_sorted=True)


def _misfit(facts: ImageFacts) -> str | None:
    try:
        check_versions(facts)
    except SkewError as error:
        return str(error)
    return None


def _show(facts: ImageFacts) -> None:
    held = f"{facts.framework} {facts.framework_version}" if facts.framework else "not ours"
    rows = {
        "image": facts.name,
        "id": facts.id,
        "tags": ", ".join(facts.tags),
        "digests": ", ".join(facts.digests),
        "size": f"{facts.size_bytes / 1e6:,.0f} MB",
        "architecture": facts.architecture,
        "framework": held,
        "runtime": f"{facts.version}, wire {facts.wire}" if facts.version else "",
        "fits": _misfit(facts) or "yes" if facts.version else "",
    }
    screen.plain_facts(rows)
