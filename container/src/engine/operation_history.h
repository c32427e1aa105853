// SPDX-License-Identifier: Apache-2.0
// The collectives that ended most recently.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>

#include "messaging/descriptor.h"
#include "messaging/operation_id.h"

namespace smdist {

// Remembers the last few collectives of each group. A peer that announces one of them again has
// called something else under the same number: its descriptor shows what.
//
// Thread safety: none.
class OperationHistory final {
 public:
  void add(const OperationId& id, const Descriptor& descriptor);

  // Descriptor of a collective that has ended; null if it is not among those remembered.
  const Descriptor* find(const OperationId& id) const;

  // Return whether this collective, or a later one of its group, has ended.
  bool is_past(const OperationId& id) const;

  void forget(uint32_t group) { groups_.erase(group); }

 private:
  struct EndedCollective {
    uint64_t sequence;
    Descriptor descriptor;
  };
  std::unordered_map<uint32_t, std::deque<EndedCollective>> groups_;  // each by rising sequence
};

}  // namespace smdist
