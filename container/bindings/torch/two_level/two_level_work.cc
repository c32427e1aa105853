// SPDX-License-Identifier: Apache-2.0
#include "two_level_work.h"

#include "../work.h"

namespace smdist::torch_binding {

bool TwoLevelWork::wait(std::chrono::milliseconds timeout) {
  StagedWork::wait(timeout);
  if (is_awaited_by_streams() || isCompleted()) return true;
  if (const std::exception_ptr failure = engine_->failure()) {
    std::rethrow_exception(translated(failure));
  }
  return true;
}

}  // namespace smdist::torch_binding
