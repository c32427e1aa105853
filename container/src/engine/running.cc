// SPDX-License-Identifier: Apache-2.0
// How an engine runs: on its own thread, and on those of callers who wait.
#include <algorithm>

#include "engine/batch_scheduling.h"
#include "engine/default_floats.h"
#include "engine/impl.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFarewell{300};  // how long a goodbye may take
constexpr milliseconds kAfterFault{100};

}  // namespace

bool Engine::Impl::wait(Ending& ending, Clock::time_point until) {
  const Lead::Visit visit(lead_);
  while (!ending.is_over() && Clock::now() < until) {
    if (lead_.try_take()) {
      lead_to(ending, until);
      lead_.give_up(is_quiet());
    } else {
      lead_.stand_by(ending, until);
    }
  }
  return ending.is_over();
}

// Who leads already when he submits need not wake anybody.
uint64_t Engine::Impl::run(uint32_t group, Operation operation, Ending& ending) {
  const Lead::Visit visit(lead_);
  uint64_t sequence = 0;
  if (lead_.try_take()) {
    try {
      sequence = submit(group, std::move(operation));
    } catch (...) {
      lead_.give_up(false);
      throw;
    }
    lead_to(ending, Clock::time_point::max());
    lead_.give_up(is_quiet());
  } else {
    sequence = submit(group, std::move(operation));
  }
  wait(ending, Clock::time_point::max());
  return sequence;
}

// The engine's own thread.
void Engine::Impl::run() {
  const DefaultFloats floats;
  Looking looking;
  while (true) {
    lead_.take_back();
    if (!step()) break;
    const milliseconds patience = this->patience();
    lead_.watch();
    transport_->await(patience, looking);
  }
  end();
  lead_.watch();  // over for ever: callers may lead no more
}

// Moves bytes on a caller's thread.
void Engine::Impl::lead_to(const Ending& ending, Clock::time_point until) {
  const DefaultFloats floats;
  const BatchScheduling scheduling(options_.pause.count() == 0);
  while (step() && !ending.is_over()) {
    const Clock::duration left = until - Clock::now();
    if (left.count() <= 0) return;
    const auto rounded = std::chrono::duration_cast<milliseconds>(left) + milliseconds(1);
    transport_->await(std::min(patience(), rounded), looking_);
  }
}

milliseconds Engine::Impl::patience() {
  if (conductor_.is_busy()) return milliseconds(0);
  return transport_->patience(conductor_.until_deadline());
}

bool Engine::Impl::is_quiet() { return conductor_.is_quiet() && transport_->is_quiet(); }

// Does all that can be done without waiting. False: the engine is to end.
bool Engine::Impl::step() {
  try {
    return step_or_throw();
  } catch (const std::exception& error) {
    conductor_.abort(FaultKind::kSystem, error.what());
    std::this_thread::sleep_for(kAfterFault);  // should it happen again at once
    return true;
  }
}

bool Engine::Impl::step_or_throw() {
  lead_.hear();  // first: whatever it forgets is in the inbox
  Inbox inbox = take_inbox();
  if (inbox.tuning) transport_->tune(*inbox.tuning);
  for (Submission& submission : inbox.submissions) conductor_.post(std::move(submission));
  for (const uint32_t group : inbox.forgotten_groups) conductor_.forget(group);
  if (inbox.fault) conductor_.abort(inbox.fault->kind, inbox.fault->text);
  if (inbox.is_ended) return false;
  conductor_.check_deadlines();
  transport_->poll(milliseconds(0));
  conductor_.advance();
  return true;
}

void Engine::Impl::end() {
  try {
    spread_fault();
    conductor_.leave();
    transport_->close(kFarewell);
  } catch (const std::exception& error) {
    if (options_.log) options_.log(std::string("the goodbye failed: ") + error.what());
  }
}

// A connection that is still being greeted would otherwise end without a word,
// and its rank would blame us instead of whoever we know to be at fault.
void Engine::Impl::spread_fault() {
  const Clock::time_point end = Clock::now() + kFarewell;
  while (conductor_.has_untold_peers() && Clock::now() < end) {
    transport_->poll(milliseconds(20));
  }
}

Engine::Impl::Inbox Engine::Impl::take_inbox() {
  MutexLock lock(mutex_);
  const bool is_ended = inbox_.is_ended;
  Inbox taken = std::exchange(inbox_, {});
  inbox_.is_ended = is_ended;
  return taken;
}

}  // namespace smdist
