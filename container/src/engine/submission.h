// SPDX-License-Identifier: Apache-2.0
// A submitted operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "collectives/plan.h"
#include "engine/algorithm_choice.h"
#include "engine/group.h"
#include "messaging/descriptor.h"
#include "messaging/operation_id.h"
#include "smdist/operation.h"

namespace smdist {

using Clock = std::chrono::steady_clock;

// An operation that a caller has submitted, and what the engine has derived from it.
struct Submission {
  std::shared_ptr<Group> group;
  OperationId id;
  uint64_t serial = 0;  // number of the operation, counted over all groups of this engine
  Operation operation;
  Descriptor descriptor;
  AlgorithmChoice choice;
  Plan plan;  // empty while the operation is a sum in shared memory, or may become one
  Clock::time_point submitted;
  Clock::time_point deadline;
  bool is_extended = false;  // the deadline has been extended, which is done at most once

  Clock::time_point late_at;   // when its late ranks are reported next; collectives only
  uint64_t late_progress = 0;  // see ProgressEngine::look_for_late()
  uint64_t record = 0;         // number in the FlightRecorder

  bool may_be_shared() const { return choice.is_shareable; }
  int rank_of(int member) const { return group->members[static_cast<size_t>(member)]; }
  Descriptor descriptor_to(int member) const {
    return descriptor_for(descriptor, operation, member, group->size());
  }
  void make_plan() { plan = plan_of(operation, *group, choice); }
};

}  // namespace smdist
