# SPDX-License-Identifier: Apache-2.0
"""Launchers of an elastic job on three emulated hosts; the ranks import no framework."""

import json
import time

import pytest
from ports import free_port

from sagemaker_dist.contract import DataParallel, render
from sagemaker_dist.contract.hyperparameter_format import KEY
from smdist.launch.host_place import launcher_port

pytestmark = pytest.mark.timeout(90)
HOSTS = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
TRAIN = """
import json, os, signal, sys, time
from pathlib import Path
from smdist.dataparallel.rendezvous.engine_shutdown import register_shutdown
from smdist.elastic.agent_client import AgentClient, ElasticStore

register_shutdown()  # as ranks with an engine do: the guard gets the fields of an exception
rank, how = int(os.environ["RANK"]), json.loads(os.environ["SM_HPS"])["how"]
if how == "early":
    if rank == 0:
        os._exit(9)
    time.sleep(60)  # as init() does, which waits for rank 0
client = AgentClient(Path(os.environ["SMDIST_ELASTIC_SOCKET"]), int(os.environ["LOCAL_RANK"]))
if rank < 2 and how == "launcher":
    print("ready", flush=True)
    time.sleep(60)
if rank == 1:
    if how == "raise":
        raise ValueError("nope")
    os.kill(os.getpid(), signal.SIGKILL)
generation = client.next_generation(0, 1)
store = ElasticStore(client, generation)
store.add("met", 1)
store.set(f"rank {generation.rank}", b"")
for other in range(generation.size):
    store.get(f"rank {other}", 30)
Path(os.environ["SM_MODEL_DIR"], "result.json").write_text(json.dumps(
    [generation.rank, generation.size, generation.hosts, generation.lost]
))
"""


@pytest.fixture
def start(stage):
    """Start the launchers of three hosts with two ranks each, and return them."""

    def start(how, least=1):
        port = free_port()
        options = DataParallel(processes_per_host=2, elastic_min=least)
        launched = []
        for number, host in enumerate(HOSTS):
            base = stage.base(TRAIN, name=f"host-{number}", host=host, hosts=HOSTS, how=how)
            file = base / "input/config/hyperparameters.json"
            document = json.loads(file.read_text()) | {KEY: render(options, "tensorflow")}
            file.write_text(json.dumps(document))
            environ = {"SMDIST_MASTER_PORT": str(port), "SMDIST_SECRET": "secret" * 6}
            launched.append(stage.train(base, **environ))
        return launched

    return start


def results(launched):
    """Return what each host's ranks have found, or None; and the exit status of its launcher."""
    statuses = [each.wait(60) for each in launched]
    paths = [each.base / "model/result.json" for each in launched]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths], statuses


def test_the_launcher_of_a_lost_host_succeeds_with_the_others(start):
    """All ranks of the host are ended with the one that was killed, and the loss is on record."""
    launched = start("kill")
    (lost, *found), statuses = results(launched)

    assert [0, 0, 0] == statuses, launched[0].said()
    assert lost is None
    assert all(["algo-2", "algo-3"] == each[2] and 4 == each[1] for each in found)
    assert "rank 1 was killed by SIGKILL" == (launched[0].base / "output/lost").read_text()
    assert launched[0].failure() is None
    assert "the job has succeeded without this host" in launched[0].said()
    assert "lost algo-1: rank 1 was killed by SIGKILL. Hosts left: 2 of 3" in launched[1].said()


@pytest.mark.slow
def test_a_launcher_that_is_killed_is_a_lost_host(start, until):
    """Its ranks end with it, and its agent's connections, which the others see at once."""
    launched = start("launcher")
    until(lambda: launched[0].said().count("ready") == 2, 60)
    launched[0].process.kill()
    (_, one, other), statuses = results(launched)

    assert [-9, 0, 0] == statuses
    assert "its launcher has ended" == one[3][0]["why"] == other[3][0]["why"]


@pytest.mark.slow
def test_an_exception_of_a_rank_is_a_loss_with_its_text(start):
    launched = start("raise")
    (_, one, other), statuses = results(launched)

    assert [0, 0, 0] == statuses
    assert "rank 1 exited with code 1: ValueError: nope" == one[3][0]["why"] == other[3][0]["why"]


def test_too_few_hosts_fail_with_the_ranks_error(start):
    """The launchers that are left fail at once, and then that of the lost host does."""
    launched = start("kill", least=3)
    _, statuses = results(launched)
    fields = launched[1].fields()

    assert [137, 1, 1] == statuses
    assert "too_few_hosts" == fields["kind"]
    assert "2 of 3 hosts are left, and elastic_min is 3" in launched[1].failure()
    assert "algo-1: rank 1 was killed by SIGKILL" in launched[1].failure()
    assert "rank 1 was killed by SIGKILL" in launched[0].failure()


@pytest.mark.slow
def test_sigterm_ends_the_launcher_of_a_lost_host(start, until):
    launched = start("kill", least=1)
    until(lambda: "this host is lost" in launched[0].said(), 60)
    launched[0].process.terminate()
    _, statuses = results(launched)

    # 0 or -15 if the others have ended before the signal, or just before the interpreter ends
    assert statuses[0] in (143, 0, -15)
    assert [0, 0] == statuses[1:]


def test_a_rank_that_fails_before_the_ranks_connect_fails_the_job(start):
    """The others cannot connect without it: their launchers end them, and name the reason."""
    launched = start("early", least=2)
    before = time.monotonic()
    _, statuses = results(launched)

    assert [9, 1, 1] == statuses
    assert time.monotonic() - before < 40
    for each in launched[1:]:
        assert "not_started" == each.fields()["kind"]
        assert "rank 0 exited with code 9" in each.failure()
    assert "this host is lost" not in launched[0].said()


def test_ports_of_launchers_are_not_those_of_ranks():
    """Ranks may meet at the port after the rendezvous port, or before it if that is the last."""
    for num_hosts in (1, 3, 20_000):
        for port in (7777, 65_534, 65_535):
            ports = [launcher_port(port, num_hosts, number) for number in (1, 2, 3)]
            beside = port + 1 if port < 65_535 else port - 1
            assert len({*ports, port, beside}) == 5
            assert all(0 < each < 65_536 for each in ports)
