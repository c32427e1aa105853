# SPDX-License-Identifier: Apache-2.0
"""Ranks exchange names and places, and each makes an engine of them; the engine is a recording."""

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from ports import free_port

from sagemaker_dist.errors import LaunchError, OptionError
from smdist.config import RankConfig
from smdist.dataparallel.rendezvous import engine_shutdown, history_dump
from smdist.dataparallel.rendezvous.connect import connect
from smdist.dataparallel.rendezvous.engine_setup import connect_world
from smdist.dataparallel.rendezvous.store_protocol import NO_MATCH
from smdist.dataparallel.rendezvous.world import World
from smdist.tuning import TuningConfig


class Recording:
    """Engine that records its calls."""

    def __init__(
        self,
        rank,
        size,
        address,
        names,
        hosts,
        secret,
        session,
        pause,
        arriving,
        lanes,
        timeout,
        integrity,
        encrypt,
        silence,
        ended_hosts_file,
    ):
        self.rank, self.names, self.hosts = rank, names, hosts
        self.lanes, self.start_timeout = lanes, timeout
        self.protection, self.silence = (integrity, encrypt), silence
        self.secret, self.session = secret, session
        self.ended_hosts_file = ended_hosts_file
        self.groups, self.said, self.running = {}, [], True

    def endpoint(self):
        return "127.0.0.1", 1000 + self.rank, f"local {self.rank}"

    def join(self, peers):
        self.peers = peers

    def probe(self, rank, hosts, fixed, timeout_seconds):
        self.fixed = fixed
        return SimpleNamespace(seconds=0)

    def add_group(self, group, members):
        self.groups[group] = members

    def abort(self, reason, details=""):
        self.said.append(reason)

    def is_running(self):
        return self.running


class NoHistory:
    """A history of operations that is never written."""

    def __init__(self, folder, stacks, requests, writes_failures):
        pass

    def install(self, signal):
        return False

    def watch(self, engine):
        pass

    def stop(self):
        pass

    def close_in_child(self):
        pass


MODULE = SimpleNamespace(
    Engine=Recording, Fixed=SimpleNamespace, HistoryWriter=NoHistory, has_openssl=True
)


@pytest.fixture(autouse=True)
def no_engines(monkeypatch):
    """Engines registered here are not shut down at the end: recordings have no shutdown()."""
    monkeypatch.setattr(engine_shutdown, "_live", [])
    monkeypatch.setattr(history_dump, "_writers", [])


def meet_all(size, *, ranks=None, **options):
    """By rank: its engine, or its error."""
    port = free_port()
    defaults = {"start_timeout_seconds": 10}

    def one(rank):
        values = {key: each(rank) if callable(each) else each for key, each in options.items()}
        config = RankConfig(host_label=f"host {rank % 2}", **{**defaults, **values})
        world = World(rank=rank, size=size, host="127.0.0.1", port=port)
        try:
            return connect_world(world, config, MODULE)
        except Exception as error:
            return error

    ranks = list(range(size) if ranks is None else ranks)
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(one, ranks, timeout=30))


def test_every_rank_knows_all_names_hosts_and_places():
    engines = meet_all(4, host_id=lambda rank: f"machine {rank // 2}")

    for engine in engines:
        assert [f"rank {rank} on host {rank % 2}" for rank in range(4)] == engine.names
        assert [0, 0, 1, 1] == engine.hosts
        assert [("127.0.0.1", 1000 + rank, f"local {rank}") for rank in range(4)] == engine.peers
        assert {0: [0, 1, 2, 3]} == engine.groups
    assert 1 == len({(engine.secret, engine.session) for engine in engines})
    assert (32, 16) == (len(engines[0].secret), len(engines[0].session))


def test_many_ranks_meet_soon():
    """What rank 0 has to answer grows with the ranks, not with their square."""
    start = time.monotonic()
    engines = meet_all(64)

    assert [64] * 64 == [len(engine.peers) for engine in engines]
    assert 15 > time.monotonic() - start


def test_protection_reaches_the_engines():
    assert [("off", False)] * 2 == [each.protection for each in meet_all(2)]
    protected = meet_all(2, integrity="mac", encrypt=True)
    assert [("mac", True)] * 2 == [each.protection for each in protected]


def test_silence_reaches_the_engines():
    assert [60] * 2 == [each.silence for each in meet_all(2)]
    assert [5] * 2 == [each.silence for each in meet_all(2, silence_seconds=5)]


def test_the_second_meeting_has_another_session():
    first, second = meet_all(2)[0], meet_all(2)[0]

    assert first.session != second.session
    assert first.secret != second.secret


def test_a_process_alone_meets_itself_without_a_port():
    engine = connect_world(World(), RankConfig(host_label="x"), MODULE)

    assert [("127.0.0.1", 1000, "local 0")] == engine.peers
    assert "smdist-store" not in [each.name for each in threading.enumerate()]


class SlowStore:
    """Store of several threads whose ranks above 0 read late, and which ends with rank 0."""

    def __init__(self):
        self.values, self.changed, self.is_open = {}, threading.Condition(), True

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key, timeout_seconds):
        if key.endswith("/who/all"):
            time.sleep(0.3)
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_seconds):
                raise TimeoutError(key)
            if not self.is_open:
                raise RuntimeError("the store has ended")
            return self.values[key]

    def add(self, key, count):
        return 1

    def delete(self, key):
        self.values.pop(key, None)


def test_rank_0_keeps_its_store_until_others_know_why_the_job_cannot_start():
    store = SlowStore()

    def one(rank):
        config = RankConfig(host_label="host", fusion_bytes=(rank + 1) << 20)
        try:
            connect(store, rank, 2, config, MODULE)
        except Exception as error:
            return type(error), getattr(error, "about", None)
        finally:
            store.is_open = store.is_open and rank > 0

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(one, range(2), timeout=30))

    assert [(OptionError, ("SMDIST_FUSION_BYTES",))] * 2 == errors


def test_a_missing_rank_is_named_on_all_others():
    """Either the rank's own limit has passed, or that of a rank whose reason it receives."""
    for error in meet_all(4, ranks=[0, 1, 3], start_timeout_seconds=1):
        assert isinstance(error, LaunchError)
        assert error.kind in {"timeout", "lost"}
        assert 2 == error.culprit
        assert "rank 2 " in error.what


def test_several_missing_ranks_are_named():
    (error,) = meet_all(3, ranks=[0], start_timeout_seconds=0.3)

    assert ("timeout", ("start_timeout_seconds",), 1) == (error.kind, error.about, error.culprit)
    assert (
        "rank 1, rank 2 have not joined the job within 0.3 s: training starts only after all ranks"
        " have joined. Search the logs of all hosts for the reason why these ranks did not start;"
        " if they only start slowly, raise start_timeout_seconds."
    ) == str(error)


def test_the_secret_of_a_file_is_the_engines(tmp_path):
    path = tmp_path / "secret"
    path.write_text("of the job\n")

    assert [b"of the job"] * 2 == [each.secret for each in meet_all(2, secret_file=path)]


def test_a_rank_with_another_secret_is_refused(tmp_path, capfd):
    for rank in range(2):
        (tmp_path / str(rank)).write_text(f"secret {rank}")
    first, second = meet_all(
        2, secret_file=lambda rank: tmp_path / str(rank), start_timeout_seconds=2
    )

    assert ("refused", NO_MATCH) == (second.kind, second.why)
    assert ("timeout", ("start_timeout_seconds",)) == (first.kind, first.about)
    assert f"was refused: {NO_MATCH}" in capfd.readouterr().err


def test_ranks_with_different_options_all_report_it():
    tunings = [TuningConfig(lanes=1), TuningConfig(lanes=2)]
    errors = meet_all(2, tuning=tunings.__getitem__)

    for error in errors:
        assert (("SMDIST_LANES",), "conflict") == (error.about, error.kind)
        assert (
            "SMDIST_LANES is 2 on rank 1 on host 1 and 1 on rank 0 on host 0: all ranks of a job"
            " must have the same value of this option. Set SMDIST_LANES to the same value on all"
            " ranks, or pass lanes to DataParallel(...), which sets it on all ranks."
        ) == str(error)


def test_lanes_and_the_start_timeout_reach_the_engine():
    tuning = TuningConfig(lanes=3)
    engines = meet_all(2, tuning=tuning, start_timeout_seconds=7)

    assert [(3, 7)] * 2 == [(engine.lanes, engine.start_timeout) for engine in engines]


def test_too_few_open_files_are_an_error_of_the_start(monkeypatch):
    monkeypatch.setattr(Recording, "join", lambda self, peers: open_too_many())
    error = meet_all(2)[1]

    assert isinstance(error, LaunchError)
    assert ("system", ("RLIMIT_NOFILE",)) == (error.kind, error.about)


def open_too_many():
    raise OSError(errno.EMFILE, "needs 300 open files")


def test_all_engines_that_run_are_aborted():
    """With the reason that other ranks read."""
    one, other = meet_all(2)
    one.running = False

    engine_shutdown.abort("rank 1 raised")

    assert [[], ["rank 1 raised"]] == [one.said, other.said]
