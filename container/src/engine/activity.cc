// SPDX-License-Identifier: Apache-2.0
#include "smdist/activity.h"

namespace smdist {

void Activity::begin(Collective kind, Clock::time_point now) {
  KindState& state = at(kind);
  const std::lock_guard<std::mutex> lock(state.mutex);
  advance(state, now);
  ++state.in_flight;
}

void Activity::end(Collective kind, Clock::time_point now) {
  KindState& state = at(kind);
  const std::lock_guard<std::mutex> lock(state.mutex);
  advance(state, now);
  --state.in_flight;
  ++state.total.operations;
}

Activity::Total Activity::total(Collective kind, Clock::time_point now) {
  KindState& state = at(kind);
  const std::lock_guard<std::mutex> lock(state.mutex);
  advance(state, now);
  return state.total;
}

void Activity::advance(KindState& state, Clock::time_point now) {
  if (now <= state.latest) return;
  if (state.in_flight > 0) state.total.busy += now - state.latest;
  state.latest = now;
}

}  // namespace smdist
