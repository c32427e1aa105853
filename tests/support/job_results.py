# SPDX-License-Identifier: Apache-2.0
"""Files that the ranks of a job have left in its model."""

import json
import tarfile


def files_of_model(estimator):
    """Return the files of the model that a local job has saved, by name."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
        members = [member for member in tar.getmembers() if member.isfile()]
        return {member.name: tar.extractfile(member).read() for member in members}


def check_survivors(estimator, num_hosts, killed):
    """Check what an elastic job with a rank on each host reports after the end of one rank.

    The ranks that are left have the same weights, each sample of both epochs is in the committed
    state once, and the loss has gone on to fall.
    """
    results = {name: json.loads(text) for name, text in files_of_model(estimator).items()}
    left = [f"{rank}.json" for rank in range(num_hosts) if rank != killed]
    first = results[left[0]]

    assert left == sorted(results)
    assert {num_hosts - 1} == {each["size"] for each in results.values()}
    assert all(first["weights"] == each["weights"] for each in results.values())
    assert [[epoch, i] for epoch in range(2) for i in range(240)] == sorted(first["seen"])
    assert first["losses"][-1] < 0.1 * first["losses"][0]
