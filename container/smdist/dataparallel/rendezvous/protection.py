# SPDX-License-Identifier: Apache-2.0
"""Log lines about the protection of a job: of its start by a secret, of its data by options."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous.engine_interface import EngineModule

UNPROTECTED: Final = (
    "smdist: the start of this job is not protected: a process that reaches MASTER_ADDR:MASTER_PORT"
    " can read the secret of the ranks and join the job as one of them. To protect it, write the"
    " same random text to a file of mode 0600 on every host, and set SMDIST_SECRET_FILE to its"
    " path\n"
)
OPEN_START: Final = (
    "smdist: {options} cannot keep out a process that has read this secret: protect the start,"
    " too\n"
)
READABLE: Final = (
    "smdist: other users of {host} can read the secret of this job: the file {path!r} has mode"
    " {mode:04o}."
    " Change the mode to 0600\n"
)
SHORT: Final = (
    "smdist: the secret of this job has only {length} bytes, so it can be guessed. Use a random one"
    " of at least 16, such as the output of: openssl rand -hex 32\n"
)
_MIN_SECRET_BYTES: Final = 16
_CHECKED: Final = {
    "off": "",
    "crc32c": "checked by CRC-32C",
    "mac": "checked by message authentication codes",
}


@cache
def warn_unprotected(secret_options: tuple[str, ...]) -> None:
    """Log once per process that the start of the job is not protected by a secret.

    `secret_options` are the options of the job whose keys come from the secret, as NAME=VALUE.
    """
    sys.stderr.write(UNPROTECTED)
    if secret_options:
        sys.stderr.write(OPEN_START.format(options=" and ".join(secret_options)))


def warn_weak(secret: bytes, config: RankConfig, rank: int, hosts: Sequence[int]) -> None:
    """Log that the secret is easy to guess, and that other users of this host can read its file.

    The first is logged by rank 0, the second by the first rank of each host.

    Args:
        secret: The job's secret.
        config: This rank's configuration.
        rank: This rank's number.
        hosts: Host number of each rank.
    """
    is_first = rank == hosts.index(hosts[rank])
    mode = config.secret_file.stat().st_mode if config.secret_file and is_first else 0
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        line = READABLE.format(
            host=config.host_label, path=str(config.secret_file), mode=stat.S_IMODE(mode)
        )
        sys.stderr.write(line)
    if rank == 0 and len(secret) < _MIN_SECRET_BYTES:
        sys.stderr.write(SHORT.format(length=len(secret)))


def log_protection(config: RankConfig, hosts: Sequence[int]) -> None:
    """Log how the data between hosts is protected.

    Args:
        config: This rank's configuration.
        hosts: Host number of each rank.
    """
    encrypted = "encrypted with TLS 1.3" if config.encrypt else ""
    measures = " and ".join(filter(None, (encrypted, _CHECKED[config.integrity])))
    is_one_host = len(set(hosts)) == 1
    if not measures and is_one_host:
        return
    if not measures:
        line = "data between hosts is not encrypted, and checked by TCP alone"
    elif is_one_host:
        line = f"no data is {measures.replace(' and ', ' or ')}: all ranks are on one host"
    else:
        line = f"data between hosts is {measures}"
    sys.stderr.write(f"smdist: {line}\n")
    sys.stderr.flush()


def openssl_faults(config: RankConfig, module: EngineModule[Any]) -> Iterator[OptionError]:
    """Yield the faults of options that need OpenSSL if the compiled module has none."""
    for option in secret_options(config):
        if not module.has_openssl:
            variable, _, value = option.partition("=")
            yield OptionError(
                f"{variable} is {value}",
                "it needs OpenSSL, and this build of sagemaker-dist-runtime has none",
                "Install libssl-dev in the image before sagemaker-dist-runtime, which is then"
                " built with it, or leave the option out",
                about=variable,
                kind="missing",
            )


def secret_options(config: RankConfig) -> Iterator[str]:
    """Yield the options whose keys come from the job's secret, as NAME=VALUE."""
    if config.encrypt:
        yield "SMDIST_ENCRYPT=1"
    if config.integrity == "mac":
        yield "SMDIST_INTEGRITY=mac"
