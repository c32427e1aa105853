# SPDX-License-Identifier: Apache-2.0
"""Emulated hosts of an elastic job: their agents as threads of this process."""

from concurrent.futures import ThreadPoolExecutor

from ports import free_port

from smdist.launch.elastic.agent import ElasticAgent, ElasticPlace

SECRET = b"a secret of sixteen bytes or more"


class Hosts:
    """Agents of all hosts of one job, and a thread for each request of a rank."""

    def __init__(self, folder, num_hosts, *, least=1, local_size=1, timeout_seconds=60):
        self.lines = []
        self.port = free_port()
        self.places = [
            ElasticPlace(
                me=host,
                labels=tuple(f"algo-{number + 1}" for number in range(num_hosts)),
                addresses=tuple(f"127.0.0.{number + 1}" for number in range(num_hosts)),
                port=self.port,
                least=least,
                local_size=local_size,
                start_timeout_seconds=60,
                timeout_seconds=timeout_seconds,
                socket=folder / f"{host}.sock",
                secret=SECRET,
            )
            for host in range(num_hosts)
        ]
        self.agents = [ElasticAgent(place, self.lines.append) for place in self.places]
        self.clients = []
        self.threads = ThreadPoolExecutor(16)

    def start(self):
        """Start all agents, and wait until they are connected with each other."""
        for agent in self.agents:
            agent.start()
        for agent in self.agents:
            agent.wait_until_connected(30)
        return self

    def close(self):
        for agent in self.agents:
            agent.close()
        for client in self.clients:
            client.close()
        self.threads.shutdown(cancel_futures=True)
