// SPDX-License-Identifier: Apache-2.0
// torch's Work object for collectives in two levels.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "../staging/staged_work.h"
#include "smdist/engine.h"

namespace smdist::torch_binding {

// One Work for one or more collectives in two levels. It completes when the last level of all its
// collectives has been queued on the device. wait() is that of a StagedWork: it makes the current
// stream wait for the results, and blocks the host on a device without signals alone.
//
// Thread safety: all methods may be called from any thread.
class TwoLevelWork final : public StagedWork {
 public:
  // pieces: number of all pieces of the collectives; each of them calls complete_part(). Other
  // arguments: as those of StagedWork.
  TwoLevelWork(std::shared_ptr<Engine> engine, int rank, c10d::OpType type, const char* title,
               const std::vector<at::Tensor>& shown, std::vector<at::Tensor> results,
               const DeviceContext& context, const c10::Stream& result_stream, size_t pieces)
      : StagedWork(rank, type, title, shown, std::move(results), context, result_stream, pieces),
        engine_(std::move(engine)) {}

  // Raises the engine's error also if the last level was queued before it: without the other ranks
  // the results may never be complete.
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  const std::shared_ptr<Engine> engine_;
};

}  // namespace smdist::torch_binding
