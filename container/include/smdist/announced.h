// SPDX-License-Identifier: Apache-2.0
// Collectives that other ranks have submitted before this one.
#pragma once

#include <cstdint>
#include <functional>

#include "smdist/collective.h"
#include "smdist/dtype.h"
#include "smdist/reduce_op.h"

namespace smdist {

// Collective that a peer has submitted, and this rank has not. The fields are those of Operation.
struct Announced {
  Collective kind = Collective::kBarrier;
  Dtype dtype = Dtype::kUint8;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
  uint64_t bytes = 0;       // length of the buffer, or of one rank's part of it
  uint64_t call_bytes = 0;  // length of all operations of the call
  uint64_t layout = 0;
  bool has_ended = false;  // ranks disagree about the call, which has ended; nothing else is known
};

// Called on the thread that moves operations forward; must be as short as Operation::ended, and may
// call no method of the engine.
using OnAnnounced = std::function<void(const Announced&)>;

}  // namespace smdist
