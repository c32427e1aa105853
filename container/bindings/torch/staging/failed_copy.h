// SPDX-License-Identifier: Apache-2.0
// Abort of an engine because a copy between a device and the host has failed.
#pragma once

#include <c10/core/Device.h>

#include <exception>

#include "smdist/engine.h"

namespace smdist::torch_binding {

// Abort the engine because of the current exception, a failed copy, and return an error that says
// so on all ranks; the engine's first error, if it had failed already. Call in a catch clause.
std::exception_ptr abort_after_failed_copy(Engine& engine, c10::Device device);

}  // namespace smdist::torch_binding
