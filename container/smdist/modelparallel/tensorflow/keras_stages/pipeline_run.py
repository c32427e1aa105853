# SPDX-License-Identifier: Apache-2.0
"""Run of one batch through this rank's stages, in the order of a schedule.

Receives start one action before they are needed, so that a message travels while the rank computes.
Sends end by themselves; the run waits for them at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.tensorflow.keras_stages.pipeline_batch import PipelineBatch
from smdist.modelparallel.tensorflow.keras_stages.stage_function import StageFunction
from smdist.modelparallel.tensorflow.keras_stages.stage_messages import (
    BACKWARD,
    FORWARD,
    MessageKey,
    StageMessages,
)
from smdist.modelparallel.tensorflow.keras_stages.stage_parts import StageLink, StagePart


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """Stages of a pipeline, and the world ranks that run them.

    Attributes:
        parts: Part of each stage.
        rank_of: World rank of each stage.
        rank: World rank of this process.
        reader: World rank whose batch counts, which has the first stage.
    """

    parts: tuple[StagePart, ...]
    rank_of: tuple[int, ...]
    rank: int
    reader: int

    @property
    def num_links(self) -> int:
        """Number of values that stages send to each other."""
        return sum(len(part.received) for part in self.parts)


@dataclass(slots=True)
class _Kept:
    """Tape, inputs and results of a forward pass, kept for the backward pass."""

    tape: Any
    received: dict[str, Any]
    sent: dict[str, Any]
    loss: Any


@dataclass(slots=True, kw_only=True)
class PipelineRun:
    """One batch on its way through the stages of this rank.

    Attributes:
        layout: Stages, and their ranks.
        functions: Function of each stage of this rank, by stage.
        variables: Trained variables of each stage of this rank, by stage.
        num_microbatches: Number of microbatches of the batch.
        loss_scale: Factor of the gradients of every loss.
        prepare: Function that computes the model's inputs from a microbatch.
        sends_all: True if the ranks of all stages that read inputs need the whole batch.
        gradients: Sums of the gradients over microbatches, by id() of the variable.
        loss: Sum of the losses of this rank's stages over microbatches.
        outputs: For each microbatch, on the rank of the last stage: what the model returns if no
            loss is computed, else what the objective returns beside the loss.
    """

    layout: RunLayout
    functions: Mapping[int, StageFunction]
    variables: Mapping[int, Sequence[Any]]
    num_microbatches: int
    loss_scale: Any = 1.0
    prepare: Callable[[PipelineBatch], PipelineBatch] = lambda part: part
    sends_all: bool = False
    gradients: dict[int, Any] = field(default_factory=dict)
    loss: Any = 0.0
    outputs: list[Any] = field(default_factory=list)
    _rows: dict[int, list[Any]] = field(default_factory=dict)
    _kept: dict[tuple[int, int], _Kept] = field(default_factory=dict)
    _local: dict[MessageKey, Any] = field(default_factory=dict)
    _parts: list[PipelineBatch] = field(default_factory=list)
    _messages: StageMessages | None = None

    @property
    def microbatches(self) -> Sequence[PipelineBatch]:
        """Parts of the batch, with the tensors that the stages of this rank need."""
        return self._parts

    def train(self, batch: PipelineBatch, order: Sequence[Action]) -> None:
        """Run the forward and backward passes of all microbatches.

        Args:
            batch: Batch that this rank read.
            order: Actions of this rank in the schedule.
        """
        self._begin(batch)
        for action, following in zip(order, [*order[1:], None], strict=True):
            self._post(action)
            if following is not None:
                self._post(following)
            if action.do is Do.F:
                self._forward(action, with_tape=True, with_loss=True)
            else:
                self._backward(action)
        for stage in self.functions:
            for variable in self.variables[stage]:
                self._add_rows(variable)
        self._end()

    def infer(self, batch: PipelineBatch, *, with_loss: bool) -> None:
        """Run the forward passes of all microbatches, without gradients.

        Args:
            batch: Batch that this rank read.
            with_loss: True to compute the loss and metrics, False to keep the model's outputs.
        """
        self._begin(batch)
        stages = sorted(self.functions)
        order = [
            Action(Do.F, stage, microbatch)
            for microbatch in range(self.num_microbatches)
            for stage in stages
        ]
        for action, following in zip(order, [*order[1:], None], strict=True):
            self._post(action)
            if following is not None:
                self._post(following)
            self._forward(action, with_tape=False, with_loss=with_loss)
        self._end()

    def _begin(self, batch: PipelineBatch) -> None:
        self._messages = StageMessages(self.num_microbatches)
        parts = self._exchanged(batch).split(self.num_microbatches)
        self._parts = [self.prepare(part) for part in parts]

    def _end(self) -> None:
        assert self._messages is not None
        self._messages.finish()

    def _exchanged(self, batch: PipelineBatch) -> PipelineBatch:
        """Return the batch of the reader, as far as the stages of this rank need it."""
        assert self._messages is not None
        layout, leaves = self.layout, batch.leaves
        for rank in dict.fromkeys(layout.rank_of):
            if rank == layout.reader or layout.rank not in (rank, layout.reader):
                continue
            for index in self._needed(batch, rank):
                key = MessageKey(layout.num_links + index, FORWARD, 0)
                if layout.rank == layout.reader:
                    self._messages.send(leaves[index], rank, key)
                else:
                    own = leaves[index]
                    leaves[index] = self._messages.receive(
                        own.shape.as_list(), own.dtype.name, layout.reader, key
                    )
        return batch.with_leaves(leaves)

    def _needed(self, batch: PipelineBatch, rank: int) -> list[int]:
        parts = [part for part in self.layout.parts if self.layout.rank_of[part.stage] == rank]
        inputs = {int(name.partition(".")[2]) for part in parts for name in part.inputs}
        if self.sends_all:
            is_reader = bool(inputs) or any(part.is_last for part in parts)
            return list(range(len(batch.leaves))) if is_reader else []
        return batch.needed(inputs, with_targets=any(part.is_last for part in parts))

    def _post(self, action: Action) -> None:
        """Start to receive what an action needs."""
        assert self._messages is not None
        for link, rank, key in self._incoming(action):
            if rank != self.layout.rank:
                self._messages.post(link.spec.shape, link.spec.dtype, rank, key)

    def _incoming(self, action: Action) -> list[tuple[StageLink, int, MessageKey]]:
        part = self.layout.parts[action.stage]
        if action.do is Do.F:
            return [
                (link, self.layout.rank_of[link.source], _key(link, FORWARD, action))
                for link in part.received
            ]
        return [
            (link, self.layout.rank_of[link.target], _key(link, BACKWARD, action))
            for link in part.sent
            if link.has_gradient
        ]

    def _received(self, action: Action) -> list[tuple[StageLink, Any]]:
        assert self._messages is not None
        found = []
        for link, rank, key in self._incoming(action):
            if rank == self.layout.rank:
                value = self._local.pop(key)
            else:
                value = self._messages.receive(link.spec.shape, link.spec.dtype, rank, key)
            found.append((link, value))
        return found

    def _send(self, value: Any, rank: int, key: MessageKey) -> None:
        assert self._messages is not None
        if rank == self.layout.rank:
            self._local[key] = value
        else:
            self._messages.send(value, rank, key)

    def _forward(self, action: Action, *, with_tape: bool, with_loss: bool) -> None:
        part = self.layout.parts[action.stage]
        pieces = self._parts[action.microbatch]
        received = {link.value: value for link, value in self._received(action)}
        moving = {link.value for link in part.received if link.has_gradient}
        inputs = {name: pieces.inputs[int(name.partition(".")[2])] for name in part.inputs}
        targets = pieces.targets if part.is_last else None
        function = self.functions[action.stage]
        if with_tape:
            with tf.GradientTape() as tape:
                for name in moving:
                    tape.watch(received[name])
                result = function({**inputs, **received}, targets, with_loss=True)
            kept = {name: received[name] for name in received if name in moving}
            self._kept[action.stage, action.microbatch] = _Kept(
                tape, kept, {name: result.sent[name] for name in part.moving_values}, result.loss
            )
        else:
            result = function({**inputs, **received}, targets, with_loss=with_loss)
        self.loss += result.loss
        if part.is_last:
            self.outputs.append(result.outputs)
        for link in part.sent:
            key = _key(link, FORWARD, action)
            self._send(result.sent[link.value], self.layout.rank_of[link.target], key)

    def _backward(self, action: Action) -> None:
        part = self.layout.parts[action.stage]
        kept = self._kept.pop((action.stage, action.microbatch))
        upstream: dict[str, Any] = {}
        for link, value in self._received(action):
            known = upstream.get(link.value)
            upstream[link.value] = value if known is None else known + value
        scale = tf.cast(self.loss_scale / self.num_microbatches, kept.loss.dtype)
        variables = self.variables[action.stage]
        sources = [*kept.received.values(), *(each.value for each in variables)]
        found = kept.tape.gradient(
            [*kept.sent.values(), kept.loss],
            sources,
            output_gradients=[*(upstream[name] for name in kept.sent), scale],
        )
        by_name = dict(zip(kept.received, found, strict=False))
        for link in part.received:
            if link.has_gradient:
                value = by_name[link.value]
                if value is None:
                    value = tf.zeros(link.spec.shape, link.spec.dtype)
                rank = self.layout.rank_of[link.source]
                self._send(tf.convert_to_tensor(value), rank,
                           _key(link, BACKWARD, action))  # fmt: skip
        self._accumulate(variables, found[len(kept.received) :])

    def _accumulate(self, variables: Sequence[Any], found: Sequence[Any]) -> None:
        for variable, gradient in zip(variables, found, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                rows = self._rows.setdefault(id(variable), [])
                rows.append(gradient)
                if sum(each.values.shape[0] for each in rows) >= variable.shape[0]:
                    self._add_rows(variable)
            elif gradient is not None:
                self._add(variable, gradient)

    def _add_rows(self, variable: Any) -> None:
        """Add the rows of a table that microbatches used: one dense tensor for many of them."""
        rows = self._rows.pop(id(variable), None)
        if rows:
            values = tf.concat([each.values for each in rows], 0)
            indices = tf.concat([each.indices for each in rows], 0)
            self._add(variable, tf.math.unsorted_segment_sum(values, indices, variable.shape[0]))

    def _add(self, variable: Any, gradient: Any) -> None:
        known = self.gradients.get(id(variable))
        # A raw operation takes less of Python's time than `+`.
        total = gradient if known is None else tf.raw_ops.AddV2(x=known, y=gradient)
        self.gradients[id(variable)] = total


def _key(link: StageLink, direction: int, action: Action) -> MessageKey:
    return MessageKey(link.number, direction, action.microbatch)
