# SPDX-License-Identifier: Apache-2.0
"""Hosts that do not come are named on every host that has come, also if it is the first one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from ports import free_port
from torch.distributed.elastic.rendezvous import RendezvousParameters

from sagemaker_dist.errors import LaunchError
from smdist.dataparallel.starter_report import StarterReport, read_report, write_error
from smdist.dataparallel.torchrun import BACKEND, OneAddressRendezvous

HOSTS = "algo-1|algo-2|algo-3|algo-4"


@pytest.fixture
def arrive():
    """Return a function: these hosts join a job of four; what each gets, and what each waits for.

    The process of each host has a working directory of its own; here it is a list of reports.
    """
    reports = {}
    port = free_port()

    def join(number, timeout):
        conf = {"rank": str(number), "timeout": str(timeout), "hosts": HOSTS, "ranks_per_host": "8"}
        parameters = RendezvousParameters(
            BACKEND, "", "attempt-0", 1, 4, **conf, listen="127.0.0.1"
        )
        rendezvous = OneAddressRendezvous("127.0.0.1", port, parameters)
        arrivals = rendezvous._arrivals
        object.__setattr__(arrivals, "note", reports.setdefault(number, []).append)
        try:
            return rendezvous.next_rendezvous()
        except LaunchError as error:
            return error

    def arrive(numbers, timeout):
        with ThreadPoolExecutor(len(numbers)) as pool:
            found = list(pool.map(join, numbers, [timeout] * len(numbers)))
        return found, {number: [list(each) for each in reports[number]] for number in numbers}

    return arrive


def test_all_come(arrive):
    found, reports = arrive([0, 1, 2, 3], 60)

    assert [(number, 4) for number in range(4)] == [(each.rank, each.world_size) for each in found]
    assert [[]] * 4 == [each[-1] for each in reports.values()]


def test_two_that_do_not_come_are_named_on_the_others(arrive):
    found, reports = arrive([0, 2], 2)

    for error in found:
        assert ("timeout", 8) == (error.kind, error.culprit)  # the first rank of algo-2
        assert [False, True, False, True] == [name in error.what for name in HOSTS.split("|")]
    assert ["algo-2", "algo-4"] == reports[0][-1]


def test_a_first_host_that_does_not_come_is_named_on_the_others(arrive):
    (error,), reports = arrive([3], 1)

    assert "algo-1" in error.what
    assert ("timeout", 0) == (error.kind, error.culprit)
    assert [["algo-1"]] == reports[3]


def test_a_report_is_read_as_it_was_written_and_anything_else_is_none(tmp_path):
    assert StarterReport() == read_report(tmp_path)
    write_error(tmp_path, LaunchError("what", "why", "hint", kind="timeout", culprit=3))
    found = read_report(tmp_path)

    assert "what: why. hint." == found.error
    assert ("timeout", 3) == (found.fields["kind"], found.fields["culprit"])
    for text in ("[]", "{", '{"missing": 3, "error": "", "fields": {}}'):
        (tmp_path / "starter.json").write_text(text)
        assert StarterReport() == read_report(tmp_path)
