# SPDX-License-Identifier: Apache-2.0
r"""The output of a job as CloudWatch has it: all hosts, in the order of time, each line once.

SageMaker gives every host of a job a stream `<job>/algo-N-<seconds since 1970>` of the
log group /aws/sagemaker/TrainingJobs, and a new one when an interrupted spot host comes
back (docs.aws.amazon.com/sagemaker/latest/dg/logging-cloudwatch.html, 2026-11-21).

Streams are read together, by FilterLogEvents with the prefix `<job>/`, and not one by
one, by DescribeLogStreams and GetLogEvents:

* An account may call FilterLogEvents 5 times a second in a region and GetLogEvents 10
  times, which AWS does not raise on request (repost.aws/knowledge-center/
  cloudwatch-logs-throttling and docs.aws.amazon.com/AmazonCloudWatch/latest/logs/
  cloudwatch_limits_cwl.html, 2026-11-21). A look at 64 hosts is one call here, of at most
  10,000 events or 1 MB; it would be 64 calls there, mostly for nothing. A look of several
  calls is followed by a pause of a second for each.
* Its answers come in the order of time, all hosts alike, and streams that begin late are
  in them unasked (API_FilterLogEvents.html, 2026-11-21).
* Its events have ids, GetLogEvents' have none. CloudWatch shows an event some seconds
  after it was written, those of one host later than another's. So each look goes two
  minutes back behind the newest line there was, and what was shown is known by its id.

What CloudWatch shows more than two minutes (of the log, not of the clock) late is not
in the output of a job that is being watched; it is in that of one that is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.runners.sagemaker.clock import Clock
from sagemaker_dist.runners.sagemaker.errors import PassingError

LATE_MS: Final = 120_000
TICK_SECONDS: Final = 0.2
PATIENCE: Final = 10  # failures in a row: some eight minutes at five seconds a look
_LONGEST_PAUSE_SECONDS: Final = 60.0
_QUIET_LOOKS: Final = 2
_SEGMENT: Final = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)")
_HOST: Final = re.compile(r"(.+)-\d+")

Fetch = Callable[[int, "str | None"], Mapping[str, Any]]


@dataclass
class Tail:
    """What a job said, and how far it was shown.

    Attributes:
        name: Of the job.
        fetch: A page of FilterLogEvents, for a start (ms since 1970) and a token.
        newest_ms: When the newest line that was shown was said; at first, when the
            job was created.
        num_calls: Pages of the newest look.
    """

    name: str
    fetch: Fetch
    newest_ms: int
    num_calls: int = 0
    _shown: dict[str, int] = field(default_factory=dict)

    def look(self) -> Iterator[str]:
        """Segments that were not shown yet, and are from now on."""
        start_ms, token = self._start_ms, None
        self.num_calls = 0
        while self.num_calls == 0 or token:
            self.num_calls += 1
            page = self.fetch(start_ms, token)
            for event in self._new(page.get("events", ())):
                yield from segments(event["message"], self._host(event))
            token = page.get("nextToken")

    @property
    def _start_ms(self) -> int:
        return max(0, self.newest_ms - LATE_MS)

    def _new(self, events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        new = []
        for event in sorted(events, key=lambda event: int(event["timestamp"])):
            is_its = event["logStreamName"].startswith(f"{self.name}/")
            if is_its and event["eventId"] not in self._shown:
                self._shown[event["eventId"]] = event["timestamp"]
                new.append(event)
        # a host whose clock is ahead must not make us skip what the others say
        said = (min(event["timestamp"], event.get("ingestionTime", 1 << 62)) for event in new)
        self.newest_ms = max(self.newest_ms, *said, 0)
        self._shown = {id_: at for id_, at in self._shown.items() if at >= self._start_ms}
        return new

    def _host(self, event: Mapping[str, Any]) -> str:
        stream = str(event["logStreamName"]).removeprefix(f"{self.name}/")
        match = _HOST.fullmatch(stream)
        return match[1] if match else stream


def segments(message: str, host: str) -> Iterator[str]:
    r"""A message, which has lost its line break, as segments with the name of its host.

    Those of our launcher have it already, as in "[algo-1 rank 0] text".
    """
    whole = message if message.endswith("\n") else message + "\n"
    marks = f"[{host}]", f"[{host} "
    for segment in _SEGMENT.findall(whole):
        yield segment if segment.startswith(marks) else f"[{host}] {segment}"


@dataclass
class Follower:
    """Looks at a tail again and again; an empty string means that nothing new came.

    Attributes:
        is_over: Whether the job has ended.
        is_settled: Whether it ended so long ago that CloudWatch has all it said.
        poll_seconds: Between two looks.
    """

    tail: Tail
    is_over: Callable[[], bool]
    is_settled: Callable[[], bool]
    poll_seconds: float
    clock: Clock = field(default_factory=Clock)

    def follow(self) -> Iterator[str]:
        """Segments until the job is over, and two looks in a row brought nothing."""
        num_quiet = 0
        while True:
            is_over, is_settled = self.is_over(), self.is_settled()
            is_news = False
            for segment in self.look():
                is_news = is_news or bool(segment)
                yield segment
            num_quiet = num_quiet + 1 if is_over and not is_news else 0
            if is_settled or num_quiet == _QUIET_LOOKS:
                return
            yield from self._pause(max(self.poll_seconds, self.tail.num_calls))

    def look(self) -> Iterator[str]:
        """One look, with pauses while CloudWatch cannot answer.

        Raises:
            PassingError: It could not, for some minutes.
        """
        for num_failures in range(PATIENCE + 1):
            try:
                yield from self.tail.look()
                return
            except PassingError:
                if num_failures == PATIENCE:
                    raise
            pause = self.poll_seconds * 2**num_failures
            yield from self._pause(min(pause, _LONGEST_PAUSE_SECONDS))

    def _pause(self, seconds: float) -> Iterator[str]:
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            yield ""
            self.clock.sleep(min(TICK_SECONDS, left))
