// SPDX-License-Identifier: Apache-2.0
// The collectives that ended most recently.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "messaging/descriptor.h"
#include "messaging/operation_id.h"

namespace smdist {

// Stores the descriptors of the last 64 collectives of each group. If a peer announces the number
// of one of them again, it has called a different operation under that number, and the fault can
// name both.
//
// Thread safety: none.
class OperationHistory final {
 public:
  // Add a collective that has ended.
  void add(const OperationId& id, const Descriptor& descriptor);

  // Return the descriptor of a collective that has ended; null if it is not stored.
  const Descriptor* find(const OperationId& id) const;

  // Return whether this collective, or a later one of its group, has ended.
  bool is_past(const OperationId& id) const;

  // Remove the collectives of a group but for the last, whose number tells which are past.
  void forget(uint32_t group);

 private:
  struct EndedCollective {
    OperationId id;
    Descriptor descriptor;
  };
  std::unordered_map<uint32_t, std::deque<EndedCollective>> groups_;  // in the order of numbers
};

}  // namespace smdist
