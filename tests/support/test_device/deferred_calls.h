// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "boxed_calls.h"

namespace test_device {

// Whether operators run later, on their stream, as a real device's kernels do. Starts as true.
void set_deferred(bool is_deferred);

// Queues an operator on the current stream, to run there with the CPU's kernel over aliases, and
// returns its results at once. None if that can't be done, and nothing was queued then: the
// operator draws random numbers, returns something other than tensors, resizes an argument, or
// PyTorch's meta device can't tell the shapes of its results.
//
// An error that the meta device doesn't see, for example an index out of range, becomes the
// stream's error, as on a real device.
std::optional<std::vector<c10::IValue>> defer(const BoxedCall& call);

}  // namespace test_device
