// SPDX-License-Identifier: Apache-2.0
// The calls that have ended because ranks disagreed about them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "messaging/fault.h"
#include "messaging/operation_id.h"

namespace smdist {

// Stores why calls of collectives have ended early, so that their operations which this rank has
// not posted yet end with the same error, and so that frames which still arrive for them are
// discarded, and are not taken for frames that break the protocol.
//
// Per group, the last 64 calls that this rank has posted are stored, and of older ones only that
// they are over. Calls that it has not posted yet are stored until then, but at most 4,096.
//
// Thread safety: none.
class Disagreements final {
 public:
  // Record that a call has ended. is_posted: this rank has posted an operation of it. Throws
  // PeerError if too many calls are stored that this rank has not posted.
  void add(const OperationId& id, const Fault& fault, bool is_posted);

  // Return why the operation's call has ended; null if it has not ended early, or long ago.
  const Fault* find(const OperationId& id) const;
  // Return whether frames for the operation, which is not pending here, may still arrive.
  bool includes(const OperationId& id) const;
  // Record that this rank has posted an operation of a stored call.
  void on_posted(const OperationId& id);

  void clear();

 private:
  struct EndedCall {
    Fault fault;
    bool is_posted = false;
  };
  struct GroupState {
    std::map<uint64_t, EndedCall> calls;  // by number
    size_t num_posted = 0;                // among `calls`
    uint64_t forgotten_end = 0;           // calls below this number that have ended are forgotten
  };

  static void forget_oldest(GroupState& group);

  std::unordered_map<uint32_t, GroupState> groups_;
  size_t num_unposted_ = 0;  // in all groups
};

}  // namespace smdist
