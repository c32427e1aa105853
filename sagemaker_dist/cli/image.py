# SPDX-License-Identifier: Apache-2.0
"""`sagemaker-dist image build | push | inspect`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

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

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_BUILD: Final = {  # option -> what argparse is told; names and meanings are ImageOptions's
    "framework-version": {"metavar": "X.Y.Z", "help": "exact; default: the one we test with"},
    "base-image": {"help": "has bash, python3, pip3, perhaps the framework (default: %(default)s)"},
    "build-image": {"metavar": "IMAGE", "help": "compiles the runtime; default: the base image"},
    "tag": {"metavar": "NAME", "help": "default: sagemaker-dist:VERSION-FRAMEWORK"},
    "wheelhouse": {"type": Path, "metavar": "DIR", "help": "wheels that are taken first"},
    "offline": {"action": "store_true", "help": "download nothing; needs --wheelhouse"},
    "ca": {"type": Path, "metavar": "FILE", "help": "certificates that pip and apt trust, too"},
    "network": {"help": "of the build steps, such as host"},
    "platform": {"help": "such as linux/arm64"},
    "index-url": {"metavar": "URL", "help": "where pip finds packages, instead of PyPI"},
    "extra-index-url": {"metavar": "URL", "help": "where pip looks as well"},
}
_PUSH: Final = {
    "image": {"metavar": "NAME", "help": "default: sagemaker-dist:VERSION-FRAMEWORK"},
    "to": {"metavar": "HOST/NAME", "help": "another registry than Amazon ECR"},
    "repository": {"metavar": "NAME", "help": "in ECR (default: %(default)s)"},
    "create": {"action": "store_true", "help": "create it in ECR if there is none"},
}


def add(commands: Commands) -> None:
    """Add `image` and its subcommands."""
    text = "build, push and inspect training images"
    parser = commands.add_parser("image", help=text, description=text.capitalize() + ".")
    steps = parser.add_subparsers(metavar="STEP", required=True)
    build = _step(steps, "build", "Build the training image with Docker.", _build)
    _options(build, _BUILD, ImageOptions())
    push = _step(steps, "push", "Push the image to Amazon ECR or another registry.", _push)
    _options(push, _PUSH, PushOptions())
    push.add_argument("--region", help="of ECR; default: AWS's own settings")
    push.add_argument("--profile", help="of AWS credentials")
    look = _step(steps, "inspect", "Say what an image is, and whether it fits.", _inspect)
    look.add_argument("image", nargs="?", help="default: sagemaker-dist:VERSION-FRAMEWORK")
    look.add_argument("--json", action="store_true", help="for programs")


def _step(steps: Commands, name: str, text: str, run: Any) -> argparse.ArgumentParser:
    parser = steps.add_parser(name, help=text[0].lower() + text[1:-1], description=text)
    frameworks = sorted(FRAMEWORKS, reverse=True)
    parser.add_argument("--framework", choices=frameworks, default="torch", help="default: torch")
    parser.set_defaults(run=run)
    return parser


def _options(parser: argparse.ArgumentParser, options: dict[str, Any], defaults: Any) -> None:
    for name, settings in options.items():
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(f"--{name}", default=default, **settings)


def _chosen(parsed: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    names = ["framework", *(name.replace("-", "_") for name in options)]
    return {name: getattr(parsed, name) for name in names}


def _build(parsed: argparse.Namespace) -> None:
    _show(build_image(ImageOptions(**_chosen(parsed, _BUILD))))


def _push(parsed: argparse.Namespace) -> None:
    options = PushOptions(**_chosen(parsed, _PUSH))
    session = None if options.to else boto_session(parsed.region, parsed.profile)
    pushed = push_image(options, session=session)
    _line(f"{pushed.uri}\n{pushed.digest}")


def _inspect(parsed: argparse.Namespace) -> None:
    facts = inspect_image(parsed.image or default_tag(parsed.framework))
    if not parsed.json:
        _show(facts)
        return
    derived = ("version", "wire", "framework", "framework_version")
    document = {**asdict(facts), **{name: getattr(facts, name) for name in derived}}
    document["fits"] = _misfit(facts) is None
    print(json.dumps(document, indent=2, sort_keys=True))  # noqa: T201  what a program reads


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
    for name, value in rows.items():
        if value:
            _line(Text.assemble((f"{name:<14}", "dim"), value))


def _line(text: str | Text) -> None:
    Console(highlight=False, soft_wrap=True).print(text, soft_wrap=True)
