// SPDX-License-Identifier: Apache-2.0
// Every fault that the engine can find, as a pure function from facts to a Fault.
//
// Each function fills in the kind, the culprit and the operation, and writes the sentence that
// users read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/rank_names.h"
#include "engine/submission.h"
#include "messaging/descriptor.h"
#include "messaging/fault.h"
#include "messaging/operation_id.h"

namespace smdist {

// Name of an operation at the beginning of a sentence, such as
// "operation 5 of group 0, all_reduce(sum, float32, 1024)".
std::string title_of(const Submission& submission);

// This rank could not allocate the scratch memory of an operation.
Fault out_of_memory(const RankNames& names, const Submission& submission, size_t bytes);

// A peer broke the protocol. predicate: the rest of a sentence that begins with the peer's name.
Fault protocol_error(const RankNames& names, int peer, const std::string& predicate);

// A peer is gone that an operation needs. has_sent_all: this rank has received all of its data.
// kind: kLeft or kLost. reason: as in protocol_error().
Fault peer_lost(const RankNames& names, const Submission& submission, FaultKind kind, int peer,
                const std::string& reason, bool has_sent_all);

// A peer is gone that a receive without a matching send may have waited for. kind: kLeft or kLost.
Fault sender_lost(const RankNames& names, const Submission& receive, FaultKind kind, int peer,
                  const std::string& reason);

// An operation's timeout is over. blocking: engine ranks that the operation waits for.
Fault operation_timed_out(const RankNames& names, const Submission& submission,
                          const std::vector<int>& blocking);

// The timeout of a receive is over, and no send matches it.
Fault receive_timed_out(const RankNames& names, const Submission& receive);

// Two ranks called different things under one number.
Fault descriptor_mismatch(const RankNames& names, const OperationId& id, const Descriptor& ours,
                          int peer, const Descriptor& theirs);

// A peer called a collective whose number this rank has passed long ago.
Fault collective_count_mismatch(const RankNames& names, const OperationId& id, int peer,
                                const Descriptor& theirs);

// This rank shut its engine down while operations were pending.
Fault engine_shut_down(const RankNames& names);

}  // namespace smdist
