# SPDX-License-Identifier: Apache-2.0
"""Fakes of AWS: logs that appear when a test decides, and a server with prepared answers."""

import json
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import boto3

from sagemaker_dist.runners.sagemaker import Clock, SageMakerRunner
from sagemaker_dist.runners.sagemaker.api_errors import PassingError

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/job"
HANG_UP = object()  # the connection ends without an answer
GONE_WRONG = PassingError("what", "why", "hint")


REQUEST = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::123456789012:role/training",
    "AlgorithmSpecification": {"TrainingInputMode": "File", "TrainingImage": "image"},
    "HyperParameters": {"epochs": "3"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/output"},
    "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
}


def described(status="InProgress", secondary="", age_seconds=0.0, **more):
    """Return SageMaker's description of REQUEST's job, as on the wire."""
    resources = {**REQUEST["ResourceConfig"], "VolumeKmsKeyId": ""}
    return {
        **REQUEST,
        "ResourceConfig": resources,
        "TrainingJobArn": ARN,
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary or status,
        "CreationTime": time.time() - age_seconds,
        "LastModifiedTime": time.time() - age_seconds,
        **more,
    }


@dataclass
class Time:
    """Clock that advances only when a caller sleeps."""

    now: float = 1000.0
    naps: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.naps.append(seconds)
        self.now += seconds


@dataclass
class Logs:
    """FilterLogEvents over events that become visible call by call.

    Attributes:
        arrivals: Events that become visible before each call: (stream, timestamp, message).
        faults: Numbers of the calls that fail.
        between_pages: Whether events become visible between the pages of one call.
    """

    arrivals: list[list[tuple[str, int, str]]]
    page_size: int = 3
    faults: frozenset[int] = frozenset()
    between_pages: bool = False
    calls: list[int] = field(default_factory=list)
    events: list[dict] = field(default_factory=list)

    def fetch(self, start_ms: int, token: str | None) -> dict:
        self.calls.append(start_ms)
        if token is None or self.between_pages:
            self._arrive()
        if len(self.calls) in self.faults:
            raise GONE_WRONG
        events = sorted((e for e in self.events if e["timestamp"] >= start_ms), key=_place)
        first = bisect_right([_place(e) for e in events], tuple(json.loads(token))) if token else 0
        page = events[first : first + self.page_size]
        is_last = first + self.page_size >= len(events)
        more = {} if is_last else {"nextToken": json.dumps(_place(page[-1]))}
        return {"events": [dict(event) for event in page], **more}

    def _arrive(self) -> None:
        for stream, at, message in self.arrivals.pop(0) if self.arrivals else ():
            self.events.append(
                {
                    "eventId": str(len(self.events)),
                    "logStreamName": stream,
                    "timestamp": at,
                    "ingestionTime": at + 1,
                    "message": message,
                }
            )


def _place(event: dict) -> tuple[int, int]:
    return event["timestamp"], int(event["eventId"])


@dataclass(frozen=True)
class Refusal:
    """Error response of AWS."""

    code: str
    message: str = ""
    status: int = 400


class Amazon(ThreadingHTTPServer):
    """Server of AWS's JSON protocol with prepared answers; `calls` has each operation and request.

    Attributes:
        skew_seconds: Time by which its clock is ahead of this machine's.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers, self.calls, self.skew_seconds = defaultdict(list), [], 0.0
        self._thread = Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def say(self, operation: str, *answers: object) -> None:
        """Set the answers of this operation, in order; the last one repeats."""
        self.answers[operation] = list(answers)

    def names(self) -> list[str]:
        return [operation for operation, _ in self.calls]

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((operation, body))
        answers = self.server.answers[operation]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer = answer(body) if callable(answer) else answer
        if answer is HANG_UP:
            self.close_connection = True
        elif isinstance(answer, Refusal):
            self._send(answer.status, {"__type": answer.code, "message": answer.message})
        else:
            self._send(200, answer)

    def _send(self, status: int, answer: dict) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(time.time() + self.server.skew_seconds)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def in_ireland(clock: Clock) -> Iterator[SageMakerRunner]:
    """Yield a runner in eu-west-1 and close its connections at the end."""
    runner = SageMakerRunner(
        boto3.Session("testing", "testing", region_name="eu-west-1"), clock=clock
    )
    yield runner
    for client in ("_sagemaker", "_logs"):
        if client in vars(runner._api):
            getattr(runner._api, client).close()


@contextmanager
def prepared_server(monkeypatch) -> Iterator[Amazon]:
    """Start an AWS server that boto3 finds; botocore retries without a pause."""
    server = Amazon()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    server.say("CreateTrainingJob", {"TrainingJobArn": ARN})
    server.say("StopTrainingJob", {})
    server.say("DescribeTrainingJob", described())
    server.say("FilterLogEvents", {"events": []})
    yield server
    server.close()
