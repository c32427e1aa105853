// SPDX-License-Identifier: Apache-2.0
#include "held_copies.h"

#include <c10/util/Exception.h>

namespace test_device {

void HeldCopies::hold(CopyKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_new = marks_.emplace(kind, std::make_shared<Mark>()).second;
  TORCH_CHECK(is_new, "testdev: copies of the kind ", name_of(kind), " are held already");
}

void HeldCopies::release(CopyKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = marks_.find(kind);
  TORCH_CHECK(found != marks_.end(), "testdev: no copies of the kind ", name_of(kind), " are held");
  Scheduler::get().open(*found->second);
  marks_.erase(found);
}

void HeldCopies::block(const c10::Stream& stream, CopyKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = marks_.find(kind);
  if (found != marks_.end()) Scheduler::get().block(stream, found->second);
}

HeldCopies& held_copies() {
  static HeldCopies* const held = new HeldCopies;
  return *held;
}

}  // namespace test_device
