# SPDX-License-Identifier: Apache-2.0
"""Errors that tell the ranks of an elastic job why training cannot go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smdist.launch.elastic.membership import FINISHED, NO_MAJORITY, TOO_FEW, Loss, ReformRefusal

DROPPED = "dropped"
NOT_STARTED = "not_started"


def refusal_fields(
    refusal: ReformRefusal, labels: Sequence[str], losses: Mapping[int, Loss], least: int
) -> dict[str, Any]:
    """Return the fields of the error that the ranks raise: kind, what, why, hint, about and lost.

    Args:
        refusal: Reason why no generation can follow.
        labels: Names of all hosts of the job, by number.
        losses: Hosts that were lost, by number.
        least: The option elastic_min.
    """
    lost = lost_hosts(labels, losses.values())
    if refusal.kind == TOO_FEW:
        left, total = len(refusal.hosts), len(labels)
        are = "is" if left == 1 else "are"
        return {
            "kind": TOO_FEW,
            "what": f"{left} of {total} hosts {are} left, and elastic_min is {least}",
            "why": sentence_of(lost),
            "hint": "Read the logs of the lost hosts; pass a smaller elastic_min if fewer hosts may"
            " go on",
            "about": "elastic_min",
            "lost": lost,
        }
    names = ", ".join(labels[host] for host in refusal.hosts)
    if refusal.kind == NO_MAJORITY:
        silent = [each for each in lost if not each["is_certain"]]
        return {
            "kind": NO_MAJORITY,
            "what": f"training cannot go on with {names} alone",
            "why": f"{sentence_of(silent)}; a silent host may still train on with others, and the"
            " hosts that are left are not more than half of those before",
            "hint": "Repair the network between the hosts, and start the job from its checkpoint",
            "about": "elastic_min",
            "lost": lost,
        }
    assert refusal.kind == FINISHED
    return {
        "kind": FINISHED,
        "what": f"training cannot go on after {sentence_of(lost) or 'a failure'}",
        "why": f"all ranks of {names} have ended already, with success",
        "hint": "Let every rank make the same number of steps, and end together",
        "about": "elastic_min",
        "lost": lost,
    }


def dropped_fields(label: str) -> dict[str, Any]:
    """Return the fields of the error on a host that the others have left out; `label` names it."""
    return {
        "kind": DROPPED,
        "what": f"the other hosts go on without {label}",
        "why": "it did not reply to them in time after a failure",
        "hint": "Read the logs of the other hosts for the reason",
        "about": "elastic_min",
        "lost": [],
    }


def not_started_fields(label: str, why: str) -> dict[str, Any]:
    """Return the fields of the error if a rank has ended before the ranks were connected.

    Args:
        label: Name of the rank's host.
        why: How the rank has ended, such as "rank 0 exited with code 1".
    """
    return {
        "kind": NOT_STARTED,
        "what": "the ranks cannot connect with each other at the start of the job",
        "why": f"{label}: {why}, before it was connected",
        "hint": f"Read the log of {label}; an elastic job goes on after losses that come later",
        "about": "elastic_min",
        "lost": [{"host": label, "why": why, "is_certain": True}],
    }


def lost_hosts(labels: Sequence[str], losses: Iterable[Loss]) -> list[dict[str, Any]]:
    """Return the losses as dicts with the host's name, the reason, and whether it is certain."""
    return [
        {"host": labels[loss.host], "why": loss.why, "is_certain": loss.is_certain}
        for loss in losses
    ]


def sentence_of(lost: Iterable[Mapping[str, Any]]) -> str:
    """Return results of `lost_hosts` as one sentence: "algo-2: rank 1 was killed by SIGKILL"."""
    return "; ".join(f"{each['host']}: {each['why']}" for each in lost)
