// SPDX-License-Identifier: Apache-2.0
// Python bindings of the engine, shared by the modules of all frameworks.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <tuple>

#include "smdist/activity.h"

namespace smdist::python {

// Add the classes Engine, Fixed, Tuning and Findings to a Python module. They are local to the
// module, so that the modules of two frameworks can be loaded in one process. caller_memory_bytes:
// see Options.
void bind_engine(pybind11::module_& module, size_t caller_memory_bytes = 0);

// Return the fault of an engine's error as the tuple (kind, culprit, operation, text, details).
// None if the error is null, or is of a call that has never started.
pybind11::object fault_fields(const std::exception_ptr& failure);

// Return the number of ended operations of a kind, and the seconds during which at least one was in
// flight. name: name of the kind, such as "all_reduce". Raises ValueError for an unknown name.
std::tuple<uint64_t, double> activity_of(Activity& activity, const std::string& name);

}  // namespace smdist::python
