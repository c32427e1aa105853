// SPDX-License-Identifier: Apache-2.0
// Conversion of the decision between two levels and staging from Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "level_decision.h"

namespace smdist::torch_binding {

// Return a C++ function that calls a Python function; empty for None. The Python function gets the
// name of the device and a function that exchanges texts. It returns None, or a tuple: number of
// hosts, host, ranks on each host, local rank, numbers of the two groups in the engine, backend for
// reduce-scatters, backend for all-gathers. Never releases the Python function, because a backend
// may be destroyed after Python has been finalized.
DecideLevels decide_levels_of(const pybind11::object& function);

}  // namespace smdist::torch_binding
