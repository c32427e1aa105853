# SPDX-License-Identifier: Apache-2.0
"""Output of a job from CloudWatch: all hosts, in the order of time, each line once.

SageMaker gives every host of a job a stream `<job>/algo-N-<seconds since 1970>` of the
log group /aws/sagemaker/TrainingJobs. An interrupted spot host that starts again gets a new stream
(docs.aws.amazon.com/sagemaker/latest/dg/logging-cloudwatch.html, 2026-11-21).

All streams are read together, by FilterLogEvents with the prefix `<job>/`. To read them one by one,
by DescribeLogStreams and GetLogEvents, has three disadvantages:

* More calls are needed. For 64 hosts, GetLogEvents is called 64 times, mostly without new events.
  One call of FilterLogEvents is enough; it returns up to 10,000 events or 1 MB. An account may call
  FilterLogEvents 5 times a second in a region, and GetLogEvents 10 times. AWS does not raise these
  quotas (repost.aws/knowledge-center/cloudwatch-logs-throttling and docs.aws.amazon.com/
  AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html, 2026-11-21).
* The events of different hosts are not in the order of time. FilterLogEvents sorts them, including
  streams that begin late (API_FilterLogEvents.html, 2026-11-21).
* The events of GetLogEvents have no ids; the events of FilterLogEvents have ids. CloudWatch shows
  an event some seconds after it was written, with different delays for different hosts. So each
  read starts two minutes before the newest line, and the ids show which lines were already read.

After a read that took N calls, the next read starts at least N seconds later.

If a line appears in CloudWatch more than two minutes late (by the log's times), the output of a
followed job lacks this line. The output of a finished job has all lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.runners.sagemaker.api_errors import PassingError
from sagemaker_dist.runners.sagemaker.clock import Clock

LATE_MS: Final = 120_000
TICK_SECONDS: Final = 0.2
MAX_FAILURES: Final = 10  # failed reads in a row; about 8 minutes at 5 seconds a read
_LONGEST_PAUSE_SECONDS: Final = 60.0
_QUIET_READS: Final = 2
_SEGMENT: Final = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)")
_HOST: Final = re.compile(r"(.+)-\d+")

Fetch = Callable[[int, "str | None"], Mapping[str, Any]]


@dataclass
class Tail:
    """Reader of a job's log that yields every line once.

    Attributes:
        name: Name of the job.
        fetch: Function that returns one page of FilterLogEvents. Its arguments are the time to
            start from (ms since 1970), and a page token or None.
        newest_ms: Time of the newest line that was read; before the first read, the time when the
            job was created.
        num_calls: Number of pages that the last read fetched.
    """

    name: str
    fetch: Fetch
    newest_ms: int
    num_calls: int = 0
    _shown: dict[str, int] = field(default_factory=dict)

    def read(self) -> Iterator[str]:
        """Yield the lines that no earlier read has yielded."""
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
            is_of_job = event["logStreamName"].startswith(f"{self.name}/")
            if is_of_job and event["eventId"] not in self._shown:
                self._shown[event["eventId"]] = event["timestamp"]
                new.append(event)
        # a host whose clock is fast must not hide later lines of other hosts
        times = (min(event["timestamp"], event.get("ingestionTime", 1 << 62)) for event in new)
        self.newest_ms = max(self.newest_ms, *times, 0)
        self._shown = {id_: at for id_, at in self._shown.items() if at >= self._start_ms}
        return new

    def _host(self, event: Mapping[str, Any]) -> str:
        stream = str(event["logStreamName"]).removeprefix(f"{self.name}/")
        match = _HOST.fullmatch(stream)
        return match[1] if match else stream


def segments(message: str, host: str) -> Iterator[str]:
    r"""Yield the lines of a log message, each after its host's name, as in "[algo-1] text\n".

    CloudWatch removes the last line break of a message; here it is added again. Lines that already
    begin with the host's name, such as the launcher's "[algo-1 rank 0] text", do not change.
    """
    whole = message if message.endswith("\n") else message + "\n"
    prefixes = f"[{host}]", f"[{host} "
    for segment in _SEGMENT.findall(whole):
        yield segment if segment.startswith(prefixes) else f"[{host}] {segment}"


@dataclass
class Follower:
    """Repeated reads of a job's log, until the job has ended.

    Attributes:
        tail: Reader of the log.
        is_over: Function that returns whether the job has ended.
        is_settled: Function that returns whether the job ended so long ago that CloudWatch has all
            its output.
        poll_seconds: Pause between two reads.
    """

    tail: Tail
    is_over: Callable[[], bool]
    is_settled: Callable[[], bool]
    poll_seconds: float
    clock: Clock = field(default_factory=Clock)

    def follow(self) -> Iterator[str]:
        """Yield the lines of the log as they appear, until the job has ended.

        After the job's end, two reads in a row must find no new lines, so that late lines are read.
        Between two reads, an empty string is yielded several times.
        """
        num_quiet = 0
        while True:
            is_over, is_settled = self.is_over(), self.is_settled()
            has_new = False
            for segment in self.read():
                has_new = has_new or bool(segment)
                yield segment
            num_quiet = num_quiet + 1 if is_over and not has_new else 0
            if is_settled or num_quiet == _QUIET_READS:
                return
            yield from self._pause(max(self.poll_seconds, self.tail.num_calls))

    def read(self) -> Iterator[str]:
        """Read the log once, and yield its new lines.

        If CloudWatch does not answer, wait, yielding empty strings, and try again.

        Raises:
            PassingError: CloudWatch did not answer for some minutes.
        """
        for num_failures in range(MAX_FAILURES + 1):
            try:
                yield from self.tail.read()
                return
            except PassingError:
                if num_failures == MAX_FAILURES:
                    raise
            pause = self.poll_seconds * 2**num_failures
            yield from self._pause(min(pause, _LONGEST_PAUSE_SECONDS))

    def _pause(self, seconds: float) -> Iterator[str]:
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            yield ""
            self.clock.sleep(min(TICK_SECONDS, left))
