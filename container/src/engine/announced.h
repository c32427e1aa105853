// SPDX-License-Identifier: Apache-2.0
// What peers have announced and this rank has not posted yet.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "messaging/descriptor.h"
#include "messaging/operation_id.h"

namespace smdist {

// Thread safety: none.
class Announced final {
 public:
  using Descriptors = std::map<int, Descriptor>;  // by engine rank

  // False if the peer has announced this before.
  bool add(const OperationId& ours, int peer, const Descriptor& theirs);

  // Forgets the operation and returns what was said of it.
  Descriptors take(const OperationId& ours);

  // Whose send with this tag came first, of those no receive was posted for.
  // members: the engine ranks that may send.
  std::optional<int> first_sender(uint32_t group, uint32_t channel,
                                  const std::vector<int>& members) const;

  void clear() { operations_.clear(); }

 private:
  struct Operation {
    Descriptors descriptors;
    uint64_t arrival = 0;  // of the first announcement
  };
  std::map<OperationId, Operation> operations_;
  uint64_t arrivals_ = 0;
};

}  // namespace smdist
