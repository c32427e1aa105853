// SPDX-License-Identifier: Apache-2.0
#include "copy_faults.h"

#include <c10/util/Exception.h>

namespace test_device {

const char* name_of(CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostToDevice:
      return "copy_host_to_device";
    case CopyKind::kDeviceToHost:
      return "copy_device_to_host";
    case CopyKind::kDeviceToDevice:
      return "copy_device_to_device";
  }
  return "";
}

CopyKind copy_kind(const std::string& name) {
  for (const CopyKind kind :
       {CopyKind::kHostToDevice, CopyKind::kDeviceToHost, CopyKind::kDeviceToDevice}) {
    if (name == name_of(kind)) return kind;
  }
  TORCH_CHECK(false, "testdev: there is no kind of copy named ", name);
}

void CopyFaults::fail_copy(int64_t number, std::optional<CopyKind> kind) {
  TORCH_CHECK(number >= 0, "testdev: copies count from 1, and ", number, " is negative");
  const std::lock_guard<std::mutex> lock(mutex_);
  remaining_ = number;
  kind_ = kind;
}

bool CopyFaults::fails_next(CopyKind kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (remaining_ == 0 || (kind_ && *kind_ != kind)) return false;
  return --remaining_ == 0;
}

CopyFaults& copy_faults() {
  static CopyFaults* const faults = new CopyFaults;
  return *faults;
}

}  // namespace test_device
