# SPDX-License-Identifier: Apache-2.0
"""Script of a rank: sums in a loop, causes a fault if asked to, and records its errors.

The launcher runs a copy of this file on every host. Events are lines of JSON in
FOLDER/rank-N.jsonl, with times of the monotonic clock, which all processes of a machine share:

    {"event": "ready", "at": 12.5}
    {"event": "fault", "at": 13.0}        the victim is about to cause the fault
    {"event": "error", "at": 13.1, "kind": "lost", "culprit": 2, "operation": "all_reduce", ...}
    {"event": "alive", "at": 13.2, "step": 40}
    {"event": "end", "at": 14.0, "step": 80}
"""

import argparse
import faulthandler
import json
import os
import signal
import socket
import stat
import sys
import time
from pathlib import Path

LATE_SECONDS = 20.0
READY_STEPS, FAULT_STEP = 3, 20
ALIVE_SECONDS = 0.2


class Torch:
    """Collectives of torch.distributed."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        import smdist.dataparallel.torch  # noqa: F401  registers the backend

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        self.errors = (dist.DistBackendError, ValueError)
        self.disagreements = ValueError

    def start(self):
        self.dist.init_process_group("smdist")

    def elastic_state(self):
        """Return what an elastic job restores; this script has no model that matters."""
        from smdist import elastic

        model = self.torch.nn.Linear(2, 1)
        return elastic.TorchState(model, self.torch.optim.SGD(model.parameters(), lr=0.1))

    def start_again(self, store, rank, size):
        self.dist.destroy_process_group()
        where = self.dist.FileStore(str(store), size)
        self.dist.init_process_group("smdist", store=where, rank=rank, world_size=size)

    def leave(self):
        self.dist.destroy_process_group()

    def total(self, flag, count):
        numbers = self.torch.zeros(count)
        numbers[0] = flag
        self.dist.all_reduce(numbers)
        return numbers[0].item()

    def disagree(self, what, differs):
        torch, dist = self.torch, self.dist
        size, ones = dist.get_world_size(), torch.ones(4)
        usual, other = {
            "shape": (
                lambda: dist.all_reduce(ones),
                lambda: dist.all_reduce(torch.ones(5)),
            ),
            "dtype": (
                lambda: dist.all_reduce(ones),
                lambda: dist.all_reduce(ones.int()),
            ),
            "op": (
                lambda: dist.all_reduce(ones),
                lambda: dist.all_reduce(ones, op=dist.ReduceOp.MAX),
            ),
            "root": (
                lambda: dist.broadcast(ones, 0),
                lambda: dist.broadcast(ones, 1),
            ),
            "kind": (
                lambda: dist.all_reduce(ones),
                lambda: dist.all_gather([torch.ones(4) for _ in range(size)], ones),
            ),
        }[what]
        (other if differs else usual)()


class TensorFlow:
    """Collectives of smdist.dataparallel.tensorflow."""

    def __init__(self):
        import tensorflow as tf

        import smdist.dataparallel.tensorflow as sdp

        self.tf, self.sdp = tf, sdp
        self.errors = (tf.errors.AbortedError, tf.errors.FailedPreconditionError)
        self.disagreements = tf.errors.FailedPreconditionError

    def start(self):
        self.sdp.init()

    def elastic_state(self):
        """Return what an elastic job restores; this script has no model that matters."""
        import keras

        from smdist import elastic

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return elastic.KerasState(model, keras.optimizers.SGD(0.1))

    def leave(self):
        self.sdp.shutdown()

    def total(self, flag, count):
        numbers = self.tf.concat([[float(flag)], self.tf.zeros([count - 1])], 0)
        return float(self.sdp.allreduce(numbers, op=self.sdp.Sum)[0])

    def disagree(self, what, differs):
        tf, sdp = self.tf, self.sdp
        ones = tf.ones([4])
        usual, other = {
            "shape": (lambda: sdp.allreduce(ones), lambda: sdp.allreduce(tf.ones([5]))),
            "dtype": (
                lambda: sdp.allreduce(ones),
                lambda: sdp.allreduce(tf.ones([4], tf.float64)),
            ),
            "op": (
                lambda: sdp.allreduce(ones, op=sdp.Sum),
                lambda: sdp.allreduce(ones, op=sdp.Max),
            ),
            "root": (lambda: sdp.broadcast(ones, 0), lambda: sdp.broadcast(ones, 1)),
            "kind": (lambda: sdp.allreduce(ones), lambda: sdp.broadcast(ones, 0)),
        }[what]
        (other if differs else usual)()


class Rank:
    """One rank of the job, and its file of events."""

    def __init__(self, options):
        self.options = options
        self.number = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.folder = Path(options.folder)
        path = self.folder / f"rank-{self.number}.jsonl"
        self._events = path.open("a", buffering=1)
        self._alive = 0.0
        self.step = 0
        self.fault = options.fault
        self.attempt = int(os.environ.get("SMDIST_RESTART_COUNT", "0"))
        self.generation = 0

    @property
    def is_victim(self):
        return self.number == self.options.victim

    def note(self, event, **fields):
        line = {
            "event": event,
            "at": time.monotonic(),
            "step": self.step,
            "fault": self.fault,
            "attempt": self.attempt,
            **fields,
        }
        self._events.write(json.dumps(line) + "\n")

    def note_error(self, error):
        from smdist.dataparallel.rendezvous.engine_shutdown import last_fault

        fault = last_fault()
        names = ("kind", "culprit", "operation")
        is_ours = hasattr(error, "about")  # smdist's own error before there is an engine
        kind = error.kind if is_ours else "raised"
        culprit = getattr(error, "culprit", None) if is_ours else self.number
        fields = {"kind": kind, "culprit": culprit, "operation": None}
        if fault:
            fields = {name: getattr(fault, name) for name in names}
        text = fault.text if fault else str(error)
        self.note("error", exception=type(error).__name__, text=text[:400], **fields)

    def run(self):
        self.note("started", pid=os.getpid(), files=open_files())
        framework = (Torch if self.options.framework == "torch" else TensorFlow)()
        self.note("imported")
        try:
            if self.is_victim and self.options.fault in BEFORE_START:
                self.note("fault")
                BEFORE_START[self.options.fault](self, framework)
            framework.start()
            if self.options.elastic:
                self.run_elastic(framework)
            else:
                self.loop(framework)
        except BaseException as error:
            if not isinstance(error, SystemExit):
                self.note_error(error)
            if self.options.then and isinstance(error, framework.errors):
                THEN[self.options.then](self, framework)
            else:
                raise
        self.note("end", files=open_files())

    def run_elastic(self, framework):
        """Sum with the ranks that are left after each loss."""
        from smdist import elastic

        def train(_):
            self.step = 0
            try:
                self.loop(framework)
            except framework.errors as error:
                self.note_error(error)
                self.generation += 1
                raise

        elastic.run(train, framework.elastic_state())

    def due(self):
        """Return the fault of this step, or "": the first at step 20, others 5 steps later each.

        After a restart, and in a smaller world, there are no faults but those of each attempt.
        """
        if (self.attempt or self.generation) and not self.options.fault.endswith(EACH_ATTEMPT):
            return ""
        number, rest = divmod(self.step - FAULT_STEP, 5)
        names = self.options.fault.split(",")
        name = names[number] if rest == 0 and 0 <= number < len(names) else ""
        return name if name in AT_A_STEP else ""

    def loop(self, framework):
        while True:
            if self.step == READY_STEPS:
                self.note("ready", files=open_files())
            if fault := self.due():
                self.fault = fault
                if self.is_victim:
                    self.note("fault")
                AT_A_STEP[fault](self, framework)
            if framework.total((self.folder / "stop").exists(), self.options.count):
                return
            self.step += 1
            if time.monotonic() - self._alive > ALIVE_SECONDS:
                self._alive = time.monotonic()
                self.note("alive")
            time.sleep(self.options.pause)


def open_files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # a count


EACH_ATTEMPT = " in each attempt"


def of_victim(cause):
    """Return a fault that the victim alone causes."""
    return lambda rank, framework: cause(rank, framework) if rank.is_victim else None


def disagreement(what):
    """Return a fault that all ranks see: each catches its error and goes on."""

    def cause(rank, framework):
        try:
            framework.disagree(what, rank.is_victim)
        except framework.disagreements as error:
            rank.note_error(error)

    return cause


def start_twice(rank, framework):
    try:
        framework.start()
    except ValueError as error:
        rank.note("refused", exception=type(error).__name__)


def abort(rank, _):
    """End the engine on all ranks, as a script may that finds a loss that is no number."""
    from smdist.dataparallel.rendezvous import engine_shutdown

    if rank.is_victim:
        engine_shutdown.abort("the loss is nan")


def raise_error(*_):
    raise RuntimeError("bad record 17")


def kill_the_parent_of_a_fork(*_):
    if os.fork() == 0:
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


def spin(*_):
    while True:
        pass


def sleep(*_):
    time.sleep(600)


def leave_and_sleep(_, framework):
    framework.leave()
    time.sleep(600)


def break_the_connections(*_):
    """Shut down every TCP connection of this process, as a firewall that forgets them does."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                listens = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if each.family == socket.AF_INET and not listens:  # without it, dials are refused
                    each.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue


AT_A_STEP = {
    "raise": of_victim(raise_error),
    "exit 0": of_victim(lambda *_: sys.exit(0)),
    "exit 3": of_victim(lambda *_: os._exit(3)),
    f"exit 3{EACH_ATTEMPT}": of_victim(lambda *_: os._exit(3)),
    "late": of_victim(lambda *_: time.sleep(LATE_SECONDS)),
    "segfault": of_victim(lambda *_: os.kill(os.getpid(), signal.SIGSEGV)),
    "bus error": of_victim(lambda *_: os.kill(os.getpid(), signal.SIGBUS)),
    "interrupt": of_victim(lambda *_: os.kill(os.getpid(), signal.SIGINT)),
    "fork": of_victim(kill_the_parent_of_a_fork),
    "sleep": of_victim(sleep),
    "spin": of_victim(spin),
    "leave": of_victim(leave_and_sleep),
    "shutdown": of_victim(break_the_connections),
    "start twice": start_twice,
    "abort": abort,
    **{what: disagreement(what) for what in ("shape", "dtype", "op", "root", "kind")},
}
BEFORE_START = {
    "raise before": raise_error,
    "never starts": sleep,
    "exit before": lambda *_: sys.exit(0),
}


def go_on_without_the_victim(rank, framework):
    """Make a world of the other ranks, and sum there."""
    others = [number for number in range(rank.size) if number != rank.options.victim]
    framework.start_again(rank.folder / "store", others.index(rank.number), len(others))
    rank.note("again", sum=framework.total(1, 1000))
    framework.leave()


def go_on_together(rank, framework):
    framework.start_again(rank.folder / "store", rank.number, rank.size)
    rank.note("again", sum=framework.total(1, 1000))
    framework.leave()


def go_on_alone(rank, framework):
    framework.start_again(rank.folder / f"store-{rank.number}", 0, 1)
    rank.note("again", sum=framework.total(1, 1000))
    framework.leave()


THEN = {"others": go_on_without_the_victim, "together": go_on_together, "alone": go_on_alone}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", choices=["torch", "tensorflow"], required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--victim", type=int, default=2)
    parser.add_argument("--count", type=int, default=250_000, help="numbers in each sum")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between sums")
    parser.add_argument("--then", choices=["", *THEN], default="")
    parser.add_argument("--elastic", default="", help="yes: go on without ranks that are lost")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    Rank(parser.parse_args()).run()


if __name__ == "__main__":
    main()
