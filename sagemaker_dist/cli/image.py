# SPDX-License-Identifier: Apache-2.0
"""The command `sagemaker-dist image build | push | inspect`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from sagemaker_dist.cli import screen
from sagemaker_dist.cli.dry_run_session import DryRunSession
from sagemaker_dist.cli.hosts import hosts_of
from sagemaker_dist.cli.shared_options import FILE, aws_options, json_option
from sagemaker_dist.errors import SkewError
from sagemaker_dist.jobs.job_file import read_job_file
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
from sagemaker_dist.packaging.image_options import ACCELERATORS, COMPATIBLE

_BUILD: Final[dict[str, Any]] = {  # the fields of ImageOptions
    "framework-version": {"metavar": "X.Y.Z", "help": "Exact version. Default: the tested one."},
    "accelerator": {
        "type": click.Choice(ACCELERATORS),
        "help": "Build of torch. Default: for JOB's instance type; else cpu, if there is one.",
    },
    "nccl-plugin": {
        "type": FILE,
        "multiple": True,
        "metavar": "FILE",
        "help": "Package, tarball or library of aws-ofi-nccl, for EFA. May be repeated.",
    },
    "base-image": {
        "metavar": "IMAGE",
        "help": "Base of the image; needs bash, python3 and pip3.",
        "show_default": True,
    },
    "build-image": {
        "metavar": "IMAGE",
        "help": "Image that compiles the runtime. Default: the base image.",
    },
    "compat": {
        "type": click.Choice(COMPATIBLE),
        "help": "A package of this name for scripts that import it, on the engine of smdist.",
    },
    "tag": {"metavar": "NAME", "help": "Default: sagemaker-dist:VERSION-FRAMEWORK."},
    "wheelhouse": {"type": FILE, "metavar": "DIR", "help": "Wheels that are preferred to PyPI's."},
    "offline": {"is_flag": True, "help": "Download nothing; needs --wheelhouse."},
    "ca": {"type": FILE, "metavar": "FILE", "help": "CA certificates that pip and apt trust, too."},
    "network": {"metavar": "NAME", "help": "Network of the build steps, such as host."},
    "platform": {"metavar": "NAME", "help": "Platform of the image, such as linux/arm64."},
    "index-url": {"metavar": "URL", "help": "Package index instead of PyPI."},
    "extra-index-url": {"metavar": "URL", "help": "Package index beside the first."},
}
_RECORDED: Final = (  # properties of ImageLabels
    "version",
    "wire",
    "framework",
    "framework_version",
    "accelerator",
    "cuda_version",
    "gpu_code",
    "nccl_version",
    "nccl_plugin",
    "nvidia_packages",
    "nvidia_bytes",
)
_PUSH: Final[dict[str, Any]] = {
    "image": {"metavar": "NAME", "help": "Default: sagemaker-dist:VERSION-FRAMEWORK."},
    "to": {"metavar": "HOST/NAME", "help": "Registry and name, instead of Amazon ECR."},
    "repository": {"metavar": "NAME", "help": "Repository in ECR.", "show_default": True},
    "create": {"is_flag": True, "help": "Create the repository in ECR if it does not exist."},
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
    help="Framework of the image.",
)


@click.group()
def image() -> None:
    """Build, push and inspect training images."""


@image.command()
@click.argument("job", type=FILE, required=False)
@_options(_BUILD, ImageOptions())
@click.pass_context
def build(context: click.Context, /, *, job: Path | None, **chosen: Any) -> None:
    """Build the training image with Docker.

    JOB is a job file, such as job.toml: the image is built for its framework and its instance type.
    """
    if job is not None:
        for name, value in _options_for(job).items():
            if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                chosen[name] = value
    _show(build_image(ImageOptions(**chosen)))


def _options_for(job_file: Path) -> dict[str, Any]:
    """Return the options of the build that follow from a job file, by name."""
    job = read_job_file(job_file).job(session=DryRunSession())
    has_gpus = any(
        each.type == "local_gpu" or (each.instance is not None and each.instance.has_gpu)
        for each in hosts_of(job)
    )
    is_cuda = has_gpus and job.framework == "torch"
    return {"framework": job.framework, "accelerator": "cuda" if is_cuda else None}


@image.command()
@_options(_PUSH, PushOptions())
@aws_options
def push(region: str | None, profile: str | None, **chosen: Any) -> None:
    """Push a training image to Amazon ECR, or to the registry of --to.

    Without --image, the image sagemaker-dist:VERSION-FRAMEWORK is pushed.
    """
    options = PushOptions(**chosen)
    session = None if options.to else boto_session(region, profile)
    pushed = push_image(options, session=session)
    screen.line(f"{pushed.uri}\n{pushed.digest}")


@image.command()
@click.argument("image", required=False)
@_framework
@json_option
def inspect(image: str | None, framework: str, as_json: bool) -> None:
    """Show what is in an image, and whether sagemaker-dist can use it.

    IMAGE defaults to sagemaker-dist:VERSION-FRAMEWORK.
    """
    found = inspect_image(image or default_tag(framework))
    if not as_json:
        _show(found)
        return
    document = {**asdict(found), **{name: getattr(found, name) for name in _RECORDED}}
    document["fits"] = _version_error(found) is None
    screen.print_json(document, is_sorted=True)


def _version_error(facts: ImageFacts) -> str | None:
    try:
        check_versions(facts)
    except SkewError as error:
        return str(error)
    return None


def _show(facts: ImageFacts) -> None:
    content = (
        f"{facts.framework} {facts.framework_version}"
        if facts.framework
        else "not a sagemaker-dist image"
    )
    rows = {
        "image": facts.name,
        "id": facts.id,
        "tags": ", ".join(facts.tags),
        "digests": ", ".join(facts.digests),
        "size": f"{facts.size_bytes / 1e6:,.0f} MB",
        "architecture": facts.architecture,
        "framework": content,
        "accelerator": facts.accelerator or "",
        "GPU code": " ".join(facts.gpu_code or ()),
        "CUDA": facts.cuda_version or "",
        "NCCL": facts.nccl_version or "",
        "NCCL's plugin": facts.nccl_plugin or "",
        "runtime": f"{facts.version}, hyperparameter format {facts.wire}" if facts.version else "",
        "fits": _version_error(facts) or "yes" if facts.version else "",
    }
    screen.plain_facts(rows)
    if facts.nvidia_packages:
        size = f"{facts.nvidia_bytes / 1e6:,.0f} MB, under their own licences:"
        screen.plain_facts([("of NVIDIA", size), *(("", each) for each in facts.nvidia_packages)])
