# SPDX-License-Identifier: Apache-2.0
"""Planner problems: models whose costs are round numbers, on small clusters."""

from __future__ import annotations

from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Costs, Link, NodeCost
from smdist.modelparallel.core.graph import Graph, Node, NodeKind, Parameter, Value
from smdist.modelparallel.core.planner import Problem

MIB = 1 << 20
FAST = Link(latency_seconds=1e-5, bytes_per_second=1e11)
SLOW = Link(latency_seconds=3e-5, bytes_per_second=1e10)


class Model:
    """Chain of blocks between an embedding and a head, which may be tied to it.

    The model is called as a problem's `at`, and `captured` records the arguments of each call.

    Args:
        seconds: Forward seconds of each block for one sample; backward takes twice that.
        opens: Numbers of blocks that consist of two halves when opened.
        fixed_seconds: Seconds of each forward pass, however many samples.
    """

    def __init__(
        self,
        seconds=(1e-3,) * 8,
        *,
        batch=8,
        head=1e-3,
        elements=MIB,
        saved=MIB,
        tied=False,
        opens=(),
        fixed_seconds=0.0,
    ):
        self.seconds, self.batch, self.head, self.tied = seconds, batch, head, tied
        self.elements, self.saved, self.opens = elements, saved, frozenset(opens)
        self.fixed_seconds, self.captured = fixed_seconds, []

    def __call__(self, num_microbatches, opened):
        self.captured.append((num_microbatches, opened))
        samples = self.batch // num_microbatches
        return self.graph(samples, opened), self.costs(samples, opened)

    def blocks(self, opened=frozenset()):
        for number, seconds in enumerate(self.seconds):
            name = f"h.{number}"
            if name in opened and number in self.opens:
                yield from ((f"{name}.attn", seconds / 2), (f"{name}.mlp", seconds / 2))
            else:
                yield name, seconds

    def graph(self, samples=1, opened=frozenset()):
        names = ["wte", *(name for name, _ in self.blocks(opened)), "lm_head"]
        nodes = [_node(NodeKind.INPUT, "ids", (), (), samples, has_gradient=False)]
        for name in names:
            nodes.append(
                _node(NodeKind.UNIT, name, (nodes[-1].writes[0].name,), self._uses(name), samples)
            )
        parameters = dict.fromkeys(each for name in names for each in self._uses(name))
        return Graph(
            model="GPT",
            nodes=tuple(nodes),
            outputs=("lm_head",),
            parameters=tuple(self._parameter(name) for name in parameters),
        )

    def costs(self, samples=1, opened=frozenset()):
        times = {"wte": 0.0, **dict(self.blocks(opened)), "lm_head": self.head}
        nodes = {
            name: NodeCost(
                forward_seconds=seconds * samples + (self.fixed_seconds if seconds else 0),
                input_gradient_seconds=seconds * samples,
                weight_gradient_seconds=seconds * samples,
                saved_bytes=self.saved * samples,
            )
            for name, seconds in times.items()
        }
        return Costs(nodes=nodes, source="measured", device="cpu")

    def _uses(self, name):
        return ("wte.weight",) if name == "lm_head" and self.tied else (f"{name}.weight",)

    def _parameter(self, name):
        aliases = ("lm_head.weight",) if self.tied and name == "wte.weight" else ()
        return Parameter(
            name=name,
            shape=(self.elements,),
            dtype="float32",
            num_elements=self.elements,
            num_bytes=4 * self.elements,
            aliases=aliases,
        )


def _node(kind, name, reads, parameters, samples, *, has_gradient=True):
    value = Value(
        name=name,
        shape=(samples, 256),
        dtype="float32",
        num_bytes=1024 * samples,
        has_gradient=has_gradient,
    )
    classes = {"wte": "Embedding", "lm_head": "Linear", "ids": ""}
    return Node(
        name=name,
        kind=kind,
        module=name,
        reads=reads,
        writes=(value,),
        parameters=parameters,
        type=classes.get(name, "Block"),
    )


def problem(model=None, *, hosts=1, ranks=4, inside=FAST, across=SLOW, **options):
    """Return a problem with this model on so many hosts and ranks."""
    model = model or Model()
    cluster = Cluster(
        num_hosts=hosts,
        ranks_per_host=ranks,
        inside=inside,
        across=across,
        device=Device(name="cpu"),
    )
    return Problem(cluster=cluster, at=model, batch_size=model.batch, **options)
