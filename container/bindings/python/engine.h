// SPDX-License-Identifier: Apache-2.0
// The engine's Python face: the same in every framework's module.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "smdist/activity.h"

namespace smdist::python {

// Adds Engine, Fixed, Tuning and Findings. They belong to this module alone, so that
// the modules of two frameworks may live in one process.
void bind_engine(pybind11::module_& module);

// How many operations of a kind have ended, and the seconds in which one was under way.
// Raises ValueError for a name that is no operation's.
std::tuple<uint64_t, double> activity_of(Activity& activity, const std::string& name);

}  // namespace smdist::python
