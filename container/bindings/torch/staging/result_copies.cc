// SPDX-License-Identifier: Apache-2.0
#include "result_copies.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "failed_copy.h"

namespace smdist::torch_binding {
namespace {

using Clock = std::chrono::steady_clock;

// Time between two looks at copies that are not complete.
constexpr std::chrono::microseconds kCopyPoll{50};
// Longest time that the end of the threads waits for copies.
constexpr std::chrono::seconds kEndPatience{1};

}  // namespace

ResultCopies::ResultCopies(std::shared_ptr<Engine> engine, std::shared_ptr<PieceTable> pieces,
                           std::shared_ptr<AwaitedWorks> awaited)
    : engine_(std::move(engine)), pieces_(std::move(pieces)), awaited_(std::move(awaited)) {
  callbacks_.start();
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "smdist-to-dev");
}

void ResultCopies::stop() {
  thread_.join();
  callbacks_.finish();
}

void ResultCopies::run() {
  while (true) {
    const bool is_idle = queued_.empty() && failed_.empty();
    auto next = is_idle ? pieces_->next_ended() : pieces_->next_ended(kCopyPoll);
    if (next.ended) {
      copy(std::move(next.ended->first), next.ended->second);
    } else if (next.is_stopped) {
      return finish_copies();
    }
    look_after_copies();
  }
}

// Queues the copy of a piece's results to the device.
void ResultCopies::copy(PieceInFlight piece, const std::exception_ptr& error) {
  StagedOperation& staged = *piece.staged;
  PinnedSlots& slots = staged.device.slots;
  if (error && !staged.error) staged.error = error;
  CopyStreams::EventPtr copied;
  if (!staged.error && !piece.piece.to_device.empty()) {
    try {
      copied = staged.device.context.streams.copy_to_device(piece.piece.to_device, staged.ready);
      staged.copied = copied;
      queued_.push_back({piece.staged, staged.device, copied, std::nullopt});
    } catch (...) {
      staged.error = abort_after_failed_copy(*engine_, staged.work->device());
    }
  }
  if (!staged.pieces.is_divided()) {
    piece.slot
        .reset();  // no slot: the allocator waits for the copy before it uses the memory again
  } else if (staged.error) {
    slots.discard(std::move(piece.slot));
  } else {
    slots.release(std::move(piece.slot), copied);
  }
  if (++staged.num_ended == staged.pieces.count()) end_operation(std::move(piece));
}

void ResultCopies::end_operation(PieceInFlight last_piece) {
  StagedOperation& staged = *last_piece.staged;
  const CopyStreams& streams = staged.device.context.streams;
  try {
    if (!staged.error && !staged.copy_back.empty()) {
      staged.copied = streams.copy_to_device(staged.copy_back, staged.ready);
    }
    if (const auto signal = staged.error ? std::nullopt : staged.work->queue_signal()) {
      queued_.push_back(
          {last_piece.staged, staged.device, record_event(streams.to_device()), signal});
    }
  } catch (...) {
    staged.error = abort_after_failed_copy(*engine_, staged.work->device());
  }
  staged.ended();
  const bool is_complete = staged.work->complete_part(staged.error, staged.copied);
  if (is_complete && staged.work->has_failed() && staged.work->signal()) {
    failed_.push_back(last_piece.staged);
  }
  Operation called;
  called.done = [is_complete, held = std::make_shared<PieceInFlight>(std::move(last_piece))](
                    const std::exception_ptr&) {
    if (is_complete) held->staged->work->complete_futures();
  };
  callbacks_.push(called, nullptr);
}

// Lets the streams go on that wait for an operation that has failed. Returns false if the caller's
// work before the operation is not complete yet: it may wait for another operation that has failed.
bool ResultCopies::release_streams(const std::shared_ptr<StagedOperation>& staged) {
  try {
    if (!staged->ready->query()) return false;
    const auto released = staged->work->release_streams(staged->pieces.receives());
    queued_.push_back({staged, staged->device, released, staged->work->signal()});
  } catch (...) {
    staged->work->signal()->set();  // the device cannot
  }
  return true;
}

void ResultCopies::look_after_copies() {
  std::erase_if(failed_, [this](const auto& staged) { return release_streams(staged); });
  std::erase_if(queued_, [this](const Queued& copies) { return is_complete(copies); });
}

// Returns whether copies are complete or have failed. After a failure the device sets no signal.
bool ResultCopies::is_complete(const Queued& copies) {
  const DeviceContext& context = copies.device.context;
  try {
    if (!copies.copied->query()) return false;
    if (copies.signal && !copies.signal->is_set()) return false;
    if (copies.signal) context.signals->give_back(*copies.signal);
  } catch (...) {
    const std::exception_ptr error = abort_after_failed_copy(*engine_, context.streams.device());
    if (const auto staged = copies.staged.lock()) staged->error = error;
    awaited_->store(error);
    if (copies.signal) copies.signal->set();
  }
  return true;
}

// Waits until all copies are complete. What is not complete then, its device will not complete.
void ResultCopies::finish_copies() {
  const Clock::time_point end = Clock::now() + kEndPatience;
  while (!(queued_.empty() && failed_.empty()) && Clock::now() < end) {
    look_after_copies();
    std::this_thread::sleep_for(kCopyPoll);
  }
  for (const Queued& copies : queued_) {
    if (copies.signal) copies.signal->set();
  }
  for (const auto& staged : failed_) staged->work->signal()->set();
}

}  // namespace smdist::torch_binding
