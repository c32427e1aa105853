# SPDX-License-Identifier: Apache-2.0
"""Builds a training image: the context, the docker command, and what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sagemaker_dist.contract import wire
from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.context import build_context
from sagemaker_dist.packaging.docker_cli import find_builder, run
from sagemaker_dist.packaging.engine import connected
from sagemaker_dist.packaging.facts import ImageFacts, inspect_image
from sagemaker_dist.packaging.frameworks import installed_version
from sagemaker_dist.packaging.options import ImageOptions

_OURS: Final = re.compile(r"sagemaker-dist: (.+?): (.+)\. (.+?)\.?$")
_NO_SPACE: Final = "no space left on device"
_CAUSES: Final = (  # what the engine or a step says, what it means, the mend
    (
        re.compile(r"load metadata for (?:docker\.io/)?(?:library/)?([^ :]+:[^ ]+):$"),
        "the engine does not have the image {0} to build on, and could not fetch it",
        "Fetch it (docker pull), or name another: --base-image, --build-image",
    ),
    (
        re.compile(r"Temporary failure in name resolution|Could not resolve"),
        "no name server answers in the network of builds",
        "Pass --network host, or mend the engine's DNS",
    ),
    (
        re.compile(r"(CERTIFICATE_VERIFY_FAILED)"),
        "a server showed a certificate that the base image does not trust",
        "Where a proxy inspects TLS, pass its certificates: --ca",
    ),
    (
        re.compile(r"No matching distribution found for (\S+)"),
        "pip found no {0} for the Python of the image to build on",
        "Download it into the wheelhouse (pip download -d DIR '{0}'), or correct --index-url or the"
        " version",
    ),
)
_NOISE: Final = re.compile(
    r"^(?:-{3,}|=>|#\d+ (?:sha256:|CACHED|DONE|\.\.\.|CANCELED))|^Dockerfile:"
    r"|^(?:#\d+|>) \[[^]]+\] RUN "  # the whole line of the file; which step it was is said below
)
_TELLING_LINES: Final = 6


def build_image(options: ImageOptions | None = None) -> ImageFacts:
    """Build a training image and return what it says about itself.

    Shows progress on standard error. Ctrl-C ends the build and leaves nothing.

    Raises:
        SetupError: No engine answers, no docker command has BuildKit, the
            engine's disk is full, or a step failed: then with its last lines.
    """
    options = options or ImageOptions()
    with connected() as client:
        builder = find_builder()
        with build_context(options.wheelhouse) as context, _pip_config(options) as pip:
            file = f"--file={context / 'container' / 'Dockerfile'}"
            status, lines = run(builder, [*arguments(options, pip), file, str(context)])
        if status:
            raise fault(status, lines, client.info().get("DockerRootDir", ""))
        return inspect_image(options.name, client=client)


def arguments(options: ImageOptions, pip_config: Path | None = None) -> list[str]:
    """What docker is told, but for the context and its file."""
    values = {
        "BASE_IMAGE": options.base_image,
        "BUILD_IMAGE": options.build_image or options.base_image,
        "FRAMEWORK": options.framework,
        "FRAMEWORK_VERSION": options.exact_version,
        "OFFLINE": "1" if options.offline else "",
        "VERSION": installed_version(),
        "WIRE": str(wire.VERSION),
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
    """The indexes, which may hold passwords: no build argument, which history would show."""
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
    """What a failed build's last lines come to."""
    if any(_NO_SPACE in line.lower() for line in lines):
        return SetupError(
            "the image was not built",
            f"no space is left where the Docker engine keeps its data, {data_root}",
            "Make room (`docker system df`, `docker builder prune`), or give the engine another"
            " data-root",
        )
    ours = [match for line in lines if (match := _OURS.search(line))]
    if ours:
        return SetupError(*ours[-1].groups())
    for pattern, why, mend in _CAUSES:
        found = next((match for line in lines if (match := pattern.search(line))), None)
        if found:
            why, mend = (each.format(*found.groups()) for each in (why, mend))
            return SetupError("the image was not built", why, mend)
    return SetupError(
        f"the image was not built (docker ended with {status})",
        telling(lines),
        "The lines above say which step failed",
    )


def telling(lines: Sequence[str]) -> str:
    """The last lines that say something, in one."""
    said = [re.sub(r"^#\d+ (?:[\d.]+ )?", "", line) for line in lines if not _NOISE.search(line)]
    last = list(dict.fromkeys(said))[-_TELLING_LINES:]
    return " / ".join(last).rstrip(".") or "it said nothing"
