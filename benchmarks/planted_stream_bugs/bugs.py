# SPDX-License-Identifier: Apache-2.0
"""Bugs in the order of streams: each replaces one statement of the code that stages tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug.

    Attributes:
        name: What is wrong.
        file: File in container/bindings/torch/staging.
        statement: The right statement, which occurs once in the file.
        instead: What replaces it; empty if it is left out.
    """

    name: str
    file: str
    statement: str
    instead: str = ""


BUGS = (
    Bug(
        name="a copy does not wait for the caller's work",
        file="staging_queue.cc",
        statement="staged.ready->synchronize();",
    ),
    Bug(
        name="the allocator does not know which stream writes a target",
        file="copy_streams.cc",
        statement="torch_binding::record_use(tensor, to_device_);",
    ),
    Bug(
        name="the event of a copy is one before the copy",
        file="copy_streams.cc",
        statement="return record_event(stream);",
        instead="return after;",
    ),
    Bug(
        name="the event of a copy is recorded on the other stream",
        file="copy_streams.cc",
        statement="return record_event(stream);",
        instead="return record_event(stream == to_host_ ? to_device_ : to_host_);",
    ),
    Bug(
        name="results are copied on the stream of copies to the host",
        file="copy_streams.cc",
        statement="return copy(to_device_, copies, after);",
        instead="return copy(to_host_, copies, after);",
    ),
    Bug(
        name="the caller's work is marked on another stream",
        file="copy_streams.cc",
        statement="return record_event(current());",
        instead="return record_event(to_host_);",
    ),
    Bug(
        name="a slot is used again before its event",
        file="pinned_slots.cc",
        statement="if (!is_complete(each->after)) continue;",
    ),
    Bug(
        name="a slot is given back without an event",
        file="result_copies.cc",
        statement="slots.release(std::move(piece.slot), copied);",
        instead="slots.release(std::move(piece.slot), nullptr);",
    ),
    Bug(
        name="a piece is submitted before its copy is on the host",
        file="staging_queue.cc",
        statement="on_host->synchronize();",
    ),
    Bug(
        name="results are copied before the sum",
        file="staging_queue.cc",
        statement="""operation.ended = [pieces = pieces_, number](const std::exception_ptr& error) {
    pieces->end(number, error);
  };""",
        instead="""operation.ended = [](const std::exception_ptr&) {};
  pieces_->end(number, nullptr);""",
    ),
    Bug(
        name="operations overtake each other",
        file="staging_queue.cc",
        statement="entries_.push_back(std::move(entry));",
        instead="entries_.push_front(std::move(entry));",
    ),
    Bug(
        name="operations of the host overtake those of the device",
        file="staging_queue.cc",
        statement="if (num_unsubmitted_ == 0 || is_stopped_) return false;",
        instead="return false;",
    ),
    Bug(
        name="a result is copied back on a stream that does not follow its copies",
        file="result_copies.cc",
        statement="staged.copied = streams.copy_to_device(staged.copy_back, staged.ready);",
        instead="staged.copied = streams.copy_to_host(staged.copy_back, staged.ready);",
    ),
    Bug(
        name="the signal is set before the last operation of a work",
        file="staged_work.cc",
        statement="if (!signal_ || error_ || incomplete_parts_ > 1) return std::nullopt;",
        instead="if (!signal_ || error_) return std::nullopt;",
    ),
    Bug(
        name="the host sets the signal, not behind the copies",
        file="staged_work.cc",
        statement="context_.signals->set_behind(result_stream_, *signal_);",
        instead="signal_->set();",
    ),
    Bug(
        name="the signal is set on another stream",
        file="staged_work.cc",
        statement="context_.signals->set_behind(result_stream_, *signal_);",
        instead="context_.signals->set_behind(side_stream(device()), *signal_);",
    ),
    Bug(
        name="wait() does not wait for the signal",
        file="staged_work.cc",
        statement="context_.signals->wait(stream, *signal_);",
    ),
    Bug(
        name="wait() after the end does not wait for the copies",
        file="staged_work.cc",
        statement="if (copied_) copied_->block(current);",
    ),
    Bug(
        name="a Future records a stream that waits for nothing",
        file="staged_work.cc",
        statement="mark_future_completed(stream);",
        instead="mark_future_completed(side_stream(device()));",
    ),
    Bug(
        name="a signal is used again with its last value",
        file="stream_signal.cc",
        statement="return {last.word, last.value + 1};",
        instead="return last;",
    ),
)
