# SPDX-License-Identifier: Apache-2.0
"""All hosts agree on who restarts and when; every wait has an end."""

from dataclasses import replace

import pytest

from smdist.launch.attempt_failure import AttemptFailure, culprit_of, failure_of, refusal
from smdist.launch.guard_protocol import RankFault, Report
from smdist.launch.job_attempts import END_SECONDS, JobAttempts, JobPhase, RestartRules

HOSTS = ("algo-1", "algo-2", "algo-3")


def failed(**fields):
    given = {"attempt": 0, "host": "algo-2", "rank": 1, "kind": "raised", "exit_code": 1}
    return AttemptFailure(**{**given, "text": "boom", "at_seconds": 1.0, **fields})


class Job:
    """Hosts of a job as the coordinator sees them, with a clock of its own."""

    def __init__(self, *, hosts=HOSTS, max_restarts=3, replaces_hosts=False):
        self.now, self.sent, self.lines = 0.0, [], []
        rules = RestartRules(
            hosts=hosts,
            max_restarts=max_restarts,
            start_timeout_seconds=600,
            replaces_hosts=replaces_hosts,
        )
        self.attempts = JobAttempts(
            rules,
            lambda host, message: self.sent.append((host, message)),
            self.lines.append,
            lambda: self.now,
        )

    def say(self, host, kind, **fields):
        attempt = {} if kind == "ready" else {"attempt": self.attempts.attempt}
        self.attempts.receive(host, {"type": kind, **attempt, **fields})

    def ready(self, *hosts, attempt=-1, history=()):
        for host in hosts:
            self.say(host, "ready", attempt=attempt, history=list(history))

    def fail(self, host, failure, *, progress=False):
        """A rank fails, and all hosts end their ranks."""
        self.say(host, "failed", failure=failure.to_json())
        for each in HOSTS:
            own = failure.to_json() if each == host else None
            self.say(each, "ended", failure=own, progress=progress)


@pytest.fixture
def job():
    """Three hosts that run their first attempt."""
    job = Job()
    job.ready(*HOSTS)
    return job


def kinds(job):
    """Return the messages sent since the last call, as (host, kind)."""
    sent, job.sent = job.sent, []
    return [(host, message["type"]) for host, message in sent]


def test_ranks_start_when_all_hosts_are_ready():
    job = Job()
    job.ready("algo-1", "algo-3")

    assert [] == kinds(job)

    job.ready("algo-2")

    assert {(host, "start") for host in HOSTS} == set(kinds(job))
    assert 0 == job.attempts.attempt


def test_no_rank_restarts_before_all_have_ended(job):
    """The host where a rank failed ends its ranks by itself."""
    kinds(job)
    job.say("algo-2", "failed", failure=failed().to_json())

    assert [("algo-1", "end"), ("algo-3", "end")] == kinds(job)

    job.say("algo-2", "ended", failure=failed().to_json(), progress=True)
    job.say("algo-1", "ended", failure=None, progress=False)

    assert [] == kinds(job)

    job.say("algo-3", "ended", failure=None, progress=False)

    assert {(host, "start") for host in HOSTS} == set(kinds(job))
    assert 1 == job.attempts.attempt
    assert [replace(failed(), progress=True)] == job.attempts.history
    (line,) = job.lines
    assert line.startswith("attempt 0 failed: boom; restart 1 of 3 begins ")


def test_a_host_that_is_done_waits_and_restarts_with_the_others(job):
    """A rank that fails at the very end does so on one host alone."""
    job.say("algo-1", "done")
    kinds(job)
    job.say("algo-2", "failed", failure=failed().to_json())

    assert [("algo-1", "end"), ("algo-3", "end")] == kinds(job)


def test_all_done(job):
    kinds(job)
    for host in HOSTS:
        job.say(host, "done")

    # the first host's launcher may end the coordinator, so it is the last to know
    assert [("algo-3", "finish"), ("algo-2", "finish"), ("algo-1", "finish")] == kinds(job)
    assert JobPhase.OVER is job.attempts.phase


def test_messages_of_an_older_attempt_are_ignored(job):
    job.fail("algo-2", failed(), progress=True)
    kinds(job)
    job.attempts.receive("algo-1", {"type": "failed", "attempt": 0, "failure": failed().to_json()})
    job.attempts.receive("algo-1", {"type": "done", "attempt": 0})

    assert [] == kinds(job)
    assert JobPhase.RUNNING is job.attempts.phase


def test_restarts_are_limited(job):
    for attempt in range(4):
        job.fail("algo-2", failed(attempt=attempt), progress=True)

    stops = [message for _, message in job.sent if message["type"] == "stop"]
    assert ["limit"] * 3 == [message["kind"] for message in stops]
    assert 3 == stops[0]["culprit"]["attempt"]
    assert [0, 1, 2, 3] == [each["attempt"] for each in stops[0]["history"]]


def test_a_crash_loop_ends_early(job):
    """The same failure twice, without progress: the second attempt is the last."""
    job.fail("algo-2", failed())
    job.fail("algo-2", failed(attempt=1, at_seconds=9.0, text="boom again"))

    stops = [message for _, message in job.sent if message["type"] == "stop"]
    assert ["loop"] * 3 == [message["kind"] for message in stops]


@pytest.mark.parametrize(
    "other",
    [
        {"rank": 2},
        {"host": "algo-1"},
        {"kind": "signal"},
        {"exception": "OSError"},
        {"exit_code": 3},
        {"frame": "train.py:3 in main"},
        {"progress": True},
    ],
)
def test_another_failure_or_progress_is_no_loop(other):
    last = failed(attempt=1, **other)

    assert refusal([failed(), last], 5) is None
    assert refusal([last, failed()], 5) is None


def test_lost_hosts_are_no_loop():
    lost = failed(kind="host", rank=None, exit_code=None)

    assert refusal([lost, replace(lost, attempt=1)], 5) is None


def test_a_lost_launcher_ends_the_job(job):
    """As on SageMaker, which starts no host again."""
    kinds(job)
    job.attempts.lose("algo-3")

    stops = [(host, message["kind"]) for host, message in job.sent]
    assert {(host, "lost") for host in HOSTS} == set(stops)
    assert ("algo-3", "host") == (
        job.sent[0][1]["culprit"]["host"],
        job.sent[0][1]["culprit"]["kind"],
    )


def test_a_host_that_is_replaced_is_awaited():
    job = Job(replaces_hosts=True)
    job.ready(*HOSTS)
    kinds(job)
    job.attempts.lose("algo-3")

    assert [("algo-1", "end"), ("algo-2", "end")] == kinds(job)

    job.say("algo-1", "ended", failure=failed(distance=2).to_json(), progress=False)
    job.say("algo-2", "ended", failure=None, progress=False)

    assert [] == kinds(job)

    job.ready("algo-3")

    assert {(host, "start") for host in HOSTS} == set(kinds(job))
    assert [("algo-3", "host")] == [(each.host, each.kind) for each in job.attempts.history]


def test_a_host_may_return_before_its_loss_is_noticed():
    job = Job(replaces_hosts=True)
    job.ready(*HOSTS)
    kinds(job)
    job.ready("algo-3")

    assert [("algo-1", "end"), ("algo-2", "end")] == kinds(job)


def test_a_new_coordinator_learns_the_attempt_from_the_others():
    """The first host was killed and replaced; the others know what happened before."""
    job = Job(replaces_hosts=True)
    before = failed().to_json()
    job.ready("algo-1")
    job.ready("algo-2", "algo-3", attempt=1, history=[before])

    assert 2 == job.attempts.attempt
    assert [("algo-2", "raised", 0), ("algo-1", "host", 1)] == [
        (each.host, each.kind, each.attempt) for each in job.attempts.history
    ]


@pytest.mark.parametrize(
    ("seconds", "is_over"), [(END_SECONDS - 1, False), (END_SECONDS + 1, True)]
)
def test_a_host_has_thirty_seconds_to_end_its_ranks(job, seconds, is_over):
    job.say("algo-2", "failed", failure=failed().to_json())
    job.say("algo-2", "ended", failure=failed().to_json(), progress=False)
    kinds(job)
    job.now += seconds
    job.attempts.check_deadline()

    assert is_over == (JobPhase.OVER is job.attempts.phase)
    texts = {message["text"] for _, message in job.sent}
    assert is_over == any("algo-1, algo-3" in text for text in texts)


def test_hosts_have_the_start_timeout_to_join():
    job = Job()
    job.ready("algo-1")
    job.now = 601.0
    job.attempts.check_deadline()

    assert {"late"} == {message["kind"] for _, message in job.sent}


def test_training_has_no_deadline(job):
    job.now = 1e9
    job.attempts.check_deadline()

    assert JobPhase.RUNNING is job.attempts.phase


def test_a_signal_ends_the_job_without_a_restart(job):
    """The other hosts get the signal themselves: their ranks may save."""
    kinds(job)
    job.say("algo-2", "stopping")

    assert [("algo-1", "stopping"), ("algo-3", "stopping")] == kinds(job)

    job.say("algo-1", "failed", failure=failed().to_json())
    job.attempts.lose("algo-2")

    assert [] == kinds(job)


def test_the_culprit_is_the_first_rank_that_failed_by_itself():
    lost_peer = failed(host="algo-1", at_seconds=1.0, distance=2)
    first = failed(host="algo-3", at_seconds=2.0)

    assert first == culprit_of([lost_peer, first, failed(at_seconds=3.0)])
    assert "host" == culprit_of([first, failed(kind="host", at_seconds=9.0)]).kind
    assert culprit_of([]) is None


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({"status": -9}, ("signal", "", 137)),
        ({"status": 3}, ("exit", "", 3)),
        ({"status": 137}, ("signal", "", 137)),
        (
            {"status": 1, "fault": RankFault(kind="lost", exception="DistBackendError")},
            ("lost", "DistBackendError", 1),
        ),
    ],
)
def test_kind_of_a_failure(report, expected):
    found = failure_of(Report(rank=1, at_seconds=0.0, **report), "algo-2", 4)

    assert expected == (found.kind, found.exception, found.exit_code)
    assert (4, "algo-2", 1) == (found.attempt, found.host, found.rank)
    assert found == AttemptFailure.from_json(found.to_json())
