// SPDX-License-Identifier: Apache-2.0
// Table of the objects that know one type of device each.
#pragma once

#include <c10/core/Device.h>

#include <map>
#include <mutex>

namespace smdist::torch_binding {

// Objects by the type of device that they serve. Keeps pointers only: a registered object is never
// destroyed, because threads may use it until the process ends.
//
// Thread safety: all methods may be called from any thread.
template <typename T>
class ByDeviceType final {
 public:
  void put(c10::DeviceType type, const T* object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_[type] = object;
  }

  // Return the object of a type of device; null if there is none.
  const T* find(c10::DeviceType type) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(type);
    return found == objects_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceType, const T*> objects_;  // guarded by mutex_
};

}  // namespace smdist::torch_binding
