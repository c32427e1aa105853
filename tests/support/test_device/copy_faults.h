// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace test_device {

// Which way a copy goes. The names are those of the trace.
enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice };

const char* name_of(CopyKind kind);
CopyKind copy_kind(const std::string& name);  // throws c10::Error for another name

// Chooses the copies that fail. Copies count in the order in which the host queues them.
//
// Thread safety: every function may be called from any thread.
class CopyFaults final {
 public:
  // The `number`th copy from now on fails, counted from 1; with a kind, the `number`th of it.
  // Replaces an earlier choice. Zero takes it back.
  void fail_copy(int64_t number, std::optional<CopyKind> kind);

  // Whether the copy that is queued now is the chosen one.
  bool fails_next(CopyKind kind);

 private:
  std::mutex mutex_;
  int64_t remaining_ = 0;
  std::optional<CopyKind> kind_;
};

CopyFaults& copy_faults();

}  // namespace test_device
