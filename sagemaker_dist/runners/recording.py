# SPDX-License-Identifier: Apache-2.0
"""`RecordingRunner`: records requests and runs nothing, for tests and dry runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from sagemaker_dist.errors import JobError
from sagemaker_dist.runners.protocol import Description, Request


@dataclass
class RecordingRunner:
    """Runner that records requests; its jobs count as completed at once, without running.

    Attributes:
        requests: All requests, in the order in which they were started.
        stopped: Names of the jobs that were stopped.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def start(self, request: Request, *, attended: bool = False) -> str:  # noqa: ARG002 - protocol
        """Record the request, without running it, and return the job's name; ignore `attended`."""
        self.requests.append(dict(request))
        return str(request["TrainingJobName"])

    def release(self, name: str) -> None:
        """Do nothing, because nothing runs."""

    def exists(self, name: str) -> bool:
        """Return whether a request of this name was recorded."""
        return any(request["TrainingJobName"] == name for request in self.requests)

    def describe(self, name: str) -> Description:
        """Return the newest request of this name, described as a completed or stopped job.

        Raises:
            JobError: No request of this name was recorded.
        """
        for request in reversed(self.requests):
            if request["TrainingJobName"] == name:
                now = datetime.now(timezone.utc)
                status = "Stopped" if name in self.stopped else "Completed"
                model = f"{request['OutputDataConfig']['S3OutputPath']}/{name}/output/model.tar.gz"
                return {
                    **request,
                    "TrainingJobStatus": status,
                    "SecondaryStatus": status,
                    "CreationTime": now,
                    "ModelArtifacts": {"S3ModelArtifacts": model},
                }
        raise JobError(
            f"there is no job {name!r}",
            "this runner has started no job of this name",
            "Check the name",
            kind="not_found",
        )

    def stop(self, name: str, *, now: bool = False) -> None:  # noqa: ARG002 - protocol
        """Record that the job was stopped; `now` has no effect."""
        self.stopped.append(name)

    def logs(
        self,
        name: str,  # noqa: ARG002 - protocol
        *,
        follow: bool = False,  # noqa: ARG002 - protocol
        new_only: bool = False,  # noqa: ARG002 - protocol
    ) -> Iterator[str]:
        """Return an empty iterator: nothing runs, so there is no output.

        The options have no effect.
        """
        return iter(())

    def logs_at(self, name: str) -> str:  # noqa: ARG002 - protocol
        """Return a text that says that there are no logs."""
        return "nowhere: nothing ran"
