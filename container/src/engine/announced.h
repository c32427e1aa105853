// SPDX-License-Identifier: Apache-2.0
// What peers have announced and this rank has not posted yet, and what came with it.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "messaging/descriptor.h"
#include "messaging/meeting.h"
#include "messaging/operation_id.h"

namespace smdist {

// A message that came before the operation was posted.
struct Rider {
  uint32_t tag = 0;
  std::vector<uint8_t> bytes;  // none: there was no message
};

struct Announcement {
  Descriptor descriptor;
  Rider rider;
  std::optional<Meeting> meeting;  // the peer shares its memory for it
};

// Thread safety: none.
class Announced final {
 public:
  using Announcements = std::map<int, Announcement>;  // by engine rank

  // False if the peer has announced this before.
  bool add(const OperationId& ours, int peer, Announcement theirs);

  // Forgets the operation and returns what was said of it.
  Announcements take(const OperationId& ours);

  // Whose send with this tag came first, of those no receive was posted for.
  // members: the engine ranks that may send.
  std::optional<int> first_sender(uint32_t group, uint32_t channel,
                                  const std::vector<int>& members) const;

  void clear() { operations_.clear(); }

 private:
  struct Operation {
    Announcements announcements;
    uint64_t arrival = 0;  // of the first announcement
  };
  std::map<OperationId, Operation> operations_;
  uint64_t arrivals_ = 0;
};

}  // namespace smdist
