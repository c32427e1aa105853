// SPDX-License-Identifier: Apache-2.0
// Python bindings of the engine, shared by the modules of all frameworks.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "smdist/activity.h"

namespace smdist::python {

// Adds Engine, Fixed, Tuning and Findings to a module. They are local to it, so that the modules
// of two frameworks can be loaded in one process.
void bind_engine(pybind11::module_& module);

// Returns the number of completed operations of a kind, and the seconds during which at least one
// was in flight. Raises ValueError for an unknown name.
std::tuple<uint64_t, double> activity_of(Activity& activity, const std::string& name);

}  // namespace smdist::python
