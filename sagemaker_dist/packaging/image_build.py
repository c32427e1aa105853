# SPDX-License-Identifier: Apache-2.0
"""Build of a training image: the docker command line, and the error if the build fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from sagemaker_dist.contract import hyperparameter_format
from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.context import build_context
from sagemaker_dist.packaging.docker_cli import Builder, exporter, find_builder, run
from sagemaker_dist.packaging.docker_engine import connected
from sagemaker_dist.packaging.frameworks import installed_version
from sagemaker_dist.packaging.image_facts import ImageFacts, inspect_image
from sagemaker_dist.packaging.image_labels import LABEL
from sagemaker_dist.packaging.image_options import ImageOptions

if TYPE_CHECKING:
    from docker import DockerClient

_OURS: Final = re.compile(r"sagemaker-dist: (.+?): (.+)\. (.+?)\.?$")
_OUR_KIND: Final = re.compile(r"sagemaker-dist kind: (\w+)$")
_NO_SPACE: Final = "no space left on device"
_CAUSES: Final = (  # pattern of a message, kind, reason, hint
    (
        re.compile(r"load metadata for (?:docker\.io/)?(?:library/)?([^ :]+:[^ ]+):$"),
        "no_base_image",
        "the Docker engine does not have the base image {0}, and could not pull it",
        "Pull it (docker pull), or name another: --base-image, --build-image",
    ),
    (
        re.compile(r"Temporary failure in name resolution|Could not resolve"),
        "no_name_server",
        "no name server answers in the build's network",
        "Pass --network host, or fix the engine's DNS",
    ),
    (
        re.compile(r"(CERTIFICATE_VERIFY_FAILED)"),
        "untrusted_certificate",
        "a server has a certificate that the base image does not trust",
        "If a proxy inspects TLS, pass its certificates: --ca",
    ),
    (
        re.compile(r"No matching distribution found for (\S+)"),
        "missing_wheel",
        "pip found no {0} for the base image's Python",
        "Download it into the wheelhouse (pip download -d DIR '{0}'), or correct --index-url or the"
        " version",
    ),
)
_NOISE: Final = re.compile(
    r"^(?:-{3,}|=>|#\d+ (?:sha256:|CACHED|DONE|\.\.\.|CANCELED))|^Dockerfile:"
    r"|^(?:#\d+|>) \[[^]]+\] RUN "  # lines of the Dockerfile
)
_LAST_LINES: Final = 6


def build_image(options: ImageOptions | None = None) -> ImageFacts:
    """Build a training image with Docker, and return facts about it.

    The default of `options` is an image for torch. Progress is printed to standard error. Ctrl-C
    ends the build, and no image is made.

    Raises:
        SetupError: No Docker engine answers, no docker command has BuildKit, the engine's disk is
            full, or a step of the build failed.
    """
    options = options or ImageOptions()
    with connected() as client:
        builder = find_builder()
        with (
            build_context(options.wheelhouse, options.nccl_plugin) as context,
            _pip_config(options) as pip,
            TemporaryDirectory(prefix="sagemaker-dist-facts-") as folder,
        ):
            file = f"--file={context / 'container' / 'Dockerfile'}"
            words = [*arguments(options, pip), file, str(context)]
            export = ["--target=facts", f"--output=type=local,dest={folder}"]
            _build(client, exporter(builder), [*export, *words])
            facts = json.loads(Path(folder, "image.json").read_text("utf-8"))
            _build(client, builder, [*label_arguments(facts), *words])
        return inspect_image(options.name, client=client)


def _build(client: DockerClient, builder: Builder, words: Sequence[str]) -> None:
    status, lines = run(builder, words)
    if status:
        raise fault(status, lines, client.info().get("DockerRootDir", ""))


def label_arguments(facts: Mapping[str, str]) -> list[str]:
    """Return the arguments of `docker build` that record facts about the framework as labels.

    A Dockerfile cannot do that, because its labels are fixed before its steps run. So the image is
    built twice, the second time from the engine's cache.
    """
    return [f"--label={LABEL}{name}={value}" for name, value in facts.items()]


def arguments(options: ImageOptions, pip_config: Path | None = None) -> list[str]:
    """Return the arguments of `docker build` for an image, without the Dockerfile and the context.

    `pip_config` is a file with pip's settings that only the build sees, or None.
    """
    values = {
        "BASE_IMAGE": options.base_image,
        "BUILD_IMAGE": options.build_image or options.base_image,
        "FRAMEWORK": options.framework,
        "FRAMEWORK_VERSION": options.exact_version,
        "ACCELERATOR": options.accelerator or "",
        "COMPAT": options.compat or "",
        "OFFLINE": "1" if options.offline else "",
        "VERSION": installed_version(),
        "WIRE": str(hyperparameter_format.VERSION),
    }
    words = [f"--build-arg={name}={value}" for name, value in values.items()]
    words += [f"--{name}={value}" for name, value in _plain(options) if value]
    secrets = {"ca": options.ca, "pip": pip_config}
    words += [f"--secret=id={name},src={Path(at).absolute()}" for name, at in secrets.items() if at]
    return [*words, f"--tag={options.name}"]


def _plain(options: ImageOptions) -> Iterator[tuple[str, str | None]]:
    yield "network", "none" if options.offline else options.network
    yield "platform", options.platform


@contextmanager
def _pip_config(options: ImageOptions) -> Iterator[Path | None]:
    """Write the URLs of pip's indexes to a temporary file, and yield the file's path.

    The path is None if the options have no such URLs. A file is used because URLs may contain
    passwords, and the image's history would show a build argument.
    """
    urls = {"index-url": options.index_url, "extra-index-url": options.extra_index_url}
    lines = [f"{name} = {url}" for name, url in urls.items() if url]
    if not lines:
        yield None
        return
    with TemporaryDirectory(prefix="sagemaker-dist-pip-") as folder:
        path = Path(folder, "pip.conf")
        path.touch(mode=0o600)
        path.write_text("\n".join(["[global]", *lines, ""]))
        yield path


def fault(status: int, lines: Sequence[str], data_root: str) -> SetupError:
    """Return the error for a failed build, with reason and hint if the output has a known fault.

    `status` is the exit status, `lines` are the last lines of the output, `data_root` is the
    directory of the Docker engine's data.
    """
    if any(_NO_SPACE in line.lower() for line in lines):
        return SetupError(
            "the image was not built",
            f"the disk with the Docker engine's data, {data_root}, is full",
            "Free space (`docker system df`, `docker builder prune`), or give the engine another"
            " data-root",
            kind="disk_full",
        )
    reports = [match for line in lines if (match := _OURS.search(line))]
    if reports:
        kinds = [match[1] for line in lines if (match := _OUR_KIND.search(line))]
        what, why, hint = reports[-1].groups()
        return SetupError(what, why, hint, kind=kinds[-1] if kinds else "failed_step")
    for pattern, kind, why, hint in _CAUSES:
        found = next((match for line in lines if (match := pattern.search(line))), None)
        if found:
            why, hint = (each.format(*found.groups()) for each in (why, hint))
            return SetupError("the image was not built", why, hint, kind=kind)
    return SetupError(
        f"the image was not built (docker exited with code {status})",
        last_lines(lines),
        "Read the build's output above: it shows which step failed",
        kind="failed_step",
    )


def last_lines(lines: Sequence[str]) -> str:
    """Return the last lines of a build's output, joined by " / "; progress lines are left out."""
    kept = [re.sub(r"^#\d+ (?:[\d.]+ )?", "", line) for line in lines if not _NOISE.search(line)]
    last = list(dict.fromkeys(kept))[-_LAST_LINES:]
    return " / ".join(last).rstrip(".") or "the build printed nothing"
