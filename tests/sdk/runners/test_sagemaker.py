# SPDX-License-Identifier: Apache-2.0
"""Jobs on SageMaker, played by moto, or by an HTTP server with prepared answers."""

import pickle
import time
from datetime import datetime, timezone

import boto3
import pytest
from cloudwatch import HANG_UP, REQUEST, Refusal, Time, described, in_ireland, prepared_server
from moto import mock_aws
from moto.server import ThreadedMotoServer

from sagemaker_dist.errors import JobError, OptionError, SetupError
from sagemaker_dist.runners import Runner, SageMakerRunner
from sagemaker_dist.runners.sagemaker.api import LOG_GROUP
from sagemaker_dist.runners.viewer import watch

pytestmark = pytest.mark.timeout(120)
THROTTLED = Refusal("ThrottlingException", "Rate exceeded")
MISSING = Refusal("ValidationException", "Requested resource not found.")


@pytest.fixture
def amazon(monkeypatch):
    with prepared_server(monkeypatch) as server:
        yield server


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def aws(clock):
    """Return a runner on the prepared server, whose clock does not wait."""
    with in_ireland(clock.clock) as runner:
        yield runner


def test_is_a_runner(aws):
    runner: Runner = aws

    assert all(callable(getattr(runner, name)) for name in ("start", "describe", "logs"))


@mock_aws
def test_job_from_start_to_end(aws, capsys):
    """A job of moto completes at once; its output and the place of its model are shown."""
    logs = boto3.client("logs", region_name="eu-west-1")
    logs.create_log_group(logGroupName=LOG_GROUP)
    now_ms = round(time.time() * 1000)
    for host in ("algo-1", "algo-2"):
        stream = {"logGroupName": LOG_GROUP, "logStreamName": f"job/{host}-1700000000"}
        logs.create_log_stream(**stream)
        logs.put_log_events(
            **stream, logEvents=[{"timestamp": now_ms + i, "message": f"{i}"} for i in range(3)]
        )

    assert not aws.exists("job")
    assert "job" == aws.start(REQUEST, attended=True)
    assert aws.exists("job")
    lines = [f"[algo-{host}] {i}\n" for i in range(3) for host in (1, 2)]
    assert lines == list(aws.logs("job"))
    assert lines == [segment for segment in aws.logs("job", follow=True) if segment]
    watch(aws, "job")
    aws.release("job")
    shown = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines] == shown[1:-1]
    assert "Completed after 00:00, model: s3://bucket/output/job/output/model.tar.gz" == shown[-1]


def test_motos_server(aws, monkeypatch):
    """The runner works over HTTP with moto's server; earlier output is left out with new_only."""
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    try:
        aws.start(REQUEST)
        logs = aws._api._logs
        stream = {"logGroupName": LOG_GROUP, "logStreamName": "job/algo-1-1700000000"}
        logs.create_log_group(logGroupName=LOG_GROUP)
        logs.create_log_stream(**stream)
        now_ms = round(time.time() * 1000)
        logs.put_log_events(**stream, logEvents=[{"timestamp": now_ms, "message": "text"}])

        assert ["[algo-1] text\n"] == [s for s in aws.logs("job", follow=True) if s]
        assert [] == [s for s in aws.logs("job", follow=True, new_only=True) if s]
    finally:
        server.stop()


@mock_aws
def test_no_log_group_yet(aws):
    """A missing log group, as in a new account, is no error."""
    aws.start(REQUEST)

    assert [] == list(aws.logs("job"))


def test_request_is_sent_as_it_is(aws, amazon):
    aws.start(REQUEST)

    assert [("CreateTrainingJob", REQUEST)] == amazon.calls


def test_description_is_asked_for_once_in_five_seconds(aws, amazon, clock):
    """However often a viewer reads the state, SageMaker is called once in 5 s."""
    for _ in range(101):
        aws.describe("job")
        clock.now += 0.1

    assert 3 == len(amazon.calls)


def test_stop_and_start_are_seen_at_once(aws, amazon):
    amazon.say("DescribeTrainingJob", described(), described("Stopping"), described("Stopped"))
    before = aws.describe("job")["TrainingJobStatus"]
    aws.stop("job")
    after = aws.describe("job")["TrainingJobStatus"]
    aws.start(REQUEST)

    assert ("InProgress", "Stopping", "Stopped") == (
        before,
        after,
        aws.describe("job")["TrainingJobStatus"],
    )


def test_last_description_counts_while_sagemaker_cannot_answer(aws, amazon, clock):
    """The last description is used for some minutes; then there is an error."""
    aws.describe("job")
    amazon.say("DescribeTrainingJob", HANG_UP, *[THROTTLED] * 4, *[HANG_UP] * 100)
    for _ in range(10):
        clock.now += 6
        assert "InProgress" == aws.describe("job")["TrainingJobStatus"]
    clock.now += 6
    with pytest.raises(SetupError) as raised:
        aws.describe("job")

    assert "unreachable" == raised.value.kind


def test_new_job_that_has_its_tags_later(aws, amazon, clock):
    """A denied description of a job that is seconds old is repeated, because IAM policies may use
    its tags.
    """
    denied = Refusal("AccessDeniedException", "not authorized to perform: x")
    aws.start(REQUEST)
    amazon.say("DescribeTrainingJob", denied, denied, described())

    assert "InProgress" == aws.describe("job")["TrainingJobStatus"]
    assert [5.0, 5.0] == clock.naps


@pytest.mark.parametrize("now", [False, True])
def test_stop(aws, amazon, now):
    aws.stop("job", now=now)

    assert [("StopTrainingJob", {"TrainingJobName": "job"})] == amazon.calls


@pytest.mark.parametrize("status", ["Completed", "Failed", "Stopped", "Stopping"])
def test_stop_of_a_job_that_is_over(aws, amazon, status):
    """Stopping a job that has ended is no error, although SageMaker refuses it."""
    refused = f"The request was rejected because the training job is in status {status}."
    amazon.say("StopTrainingJob", Refusal("ValidationException", refused))
    amazon.say("DescribeTrainingJob", described(status))
    aws.stop("job")

    assert ["StopTrainingJob", "DescribeTrainingJob"] == amazon.names()


def test_stop_that_is_refused(aws, amazon):
    amazon.say("StopTrainingJob", Refusal("ValidationException", "Not now."))
    with pytest.raises(OptionError) as raised:
        aws.stop("job")

    assert ((), "refused") == (raised.value.about, raised.value.kind)


def test_unknown_job(aws, amazon):
    for operation in ("DescribeTrainingJob", "StopTrainingJob"):
        amazon.say(operation, MISSING)

    assert not aws.exists("job")
    for act in (aws.describe, aws.stop, lambda name: list(aws.logs(name))):
        with pytest.raises(JobError) as raised:
            act("job")
        assert "not_found" == raised.value.kind
        assert raised.value.as_dict() == pickle.loads(pickle.dumps(raised.value)).as_dict()


def event(number, at_ms, host=1):
    stream = f"job/algo-{host}-1700000000"
    return {"eventId": str(number), "logStreamName": stream, "timestamp": at_ms} | {
        "ingestionTime": at_ms,
        "message": f"line {number}",
    }


def test_job_is_watched_to_its_end(aws, amazon, capsys):
    """Pages, throttling, a broken connection, and lines after the end are handled."""
    now_ms = round(time.time() * 1000)
    events = [event(number, now_ms + number, host=number % 3 + 1) for number in range(6)]
    amazon.say(
        "FilterLogEvents",
        Refusal("ResourceNotFoundException", "The specified log group does not exist."),
        {"events": events[:2], "nextToken": "more"},
        *[THROTTLED] * 6,
        {"events": events[:2], "nextToken": "more"},
        HANG_UP,
        {"events": events[2:4]},
        {"events": events[:4]},
        {"events": events},
        {"events": events},
    )
    amazon.say(
        "DescribeTrainingJob",
        described(secondary="Starting"),
        described(secondary="Training"),
        described("Failed", FailureReason="AlgorithmError", ModelArtifacts={}),
    )
    ended = watch(aws, "job")
    lines = capsys.readouterr().out.splitlines()

    assert [f"[algo-{n % 3 + 1}] line {n}" for n in range(6)] == [s for s in lines if "line" in s]
    assert "Failed" == ended["TrainingJobStatus"]
    assert (
        "Failed after 00:00, logs: CloudWatch in region eu-west-1,"
        " log group /aws/sagemaker/TrainingJobs, streams job/*" == lines[-1]
    )
    assert {"job/"} == {
        call["logStreamNamePrefix"] for name, call in amazon.calls if name == "FilterLogEvents"
    }


def test_job_that_was_stopped_before_it_trained(aws, amazon, capsys):
    """The description has no model and no end time, and this machine's clock is late."""
    description = described("Stopped", age_seconds=-60)
    amazon.say("DescribeTrainingJob", description)
    watch(aws, "job")

    assert "Stopped after 00:00, no model was saved" == capsys.readouterr().out.splitlines()[-1]


def test_new_lines_only(aws, amazon):
    """With new_only, earlier lines are left out, also if CloudWatch returns them again."""
    now_ms = round(time.time() * 1000)
    old, new = event(0, now_ms - 1000), event(1, now_ms)
    amazon.say("DescribeTrainingJob", described("Completed", age_seconds=250))
    amazon.say("FilterLogEvents", {"events": [old]}, {"events": [old, new]})

    assert ["[algo-1] line 1\n"] == [s for s in aws.logs("job", follow=True, new_only=True) if s]
    starts = [call["startTime"] for name, call in amazon.calls if name == "FilterLogEvents"]
    assert now_ms - 120_000 == pytest.approx(starts[0], abs=10_000)  # not since the beginning


def test_new_lines_by_the_clock_of_aws(aws, amazon):
    """new_only uses AWS's clock: a local clock that is a day fast loses no line."""
    amazon.skew_seconds = -86_400
    then_ms = round((time.time() - 86_400) * 1000)
    amazon.say("DescribeTrainingJob", described("Completed", age_seconds=86_400))
    amazon.say("FilterLogEvents", {"events": []}, {"events": [event(0, then_ms)]})

    assert ["[algo-1] line 0\n"] == [s for s in aws.logs("job", follow=True, new_only=True) if s]


def test_job_that_ended_yesterday_is_shown_without_waiting(aws, amazon, clock):
    amazon.say("DescribeTrainingJob", described("Completed", age_seconds=86_400))
    watch(aws, "job")

    assert [] == clock.naps


@pytest.mark.parametrize("poll_seconds", [0, -1.0, float("nan"), float("inf")])
def test_time_between_questions_is_some_time(poll_seconds):
    with pytest.raises(OptionError) as raised:
        SageMakerRunner(poll_seconds=poll_seconds)

    assert ("poll_seconds",) == raised.value.about


def test_session_of_ones_own_settings(amazon, monkeypatch):
    """Without a session, boto3's settings are read at the first call."""
    runner = SageMakerRunner()
    for name, value in (
        ("ACCESS_KEY_ID", "a"),
        ("SECRET_ACCESS_KEY", "b"),
        ("REGION", "us-east-2"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")

    assert "job" == runner.start(REQUEST)
    assert "CloudWatch in region us-east-2, log group" in runner.logs_at("job")
    runner._api._sagemaker.close()


def test_creation_time_is_a_moment(aws, amazon):
    """CreationTime has a time zone, as boto3 returns it."""
    created = aws.describe("job")["CreationTime"]

    assert abs((datetime.now(timezone.utc) - created).total_seconds()) < 60
    assert "ResponseMetadata" not in aws.describe("job")
