// SPDX-License-Identifier: Apache-2.0
#include "level_decision_bindings.h"

#include <pybind11/stl.h>

#include <memory>

namespace smdist::torch_binding {
namespace {

namespace py = pybind11;

LevelDecision decision_of(const py::tuple& values) {
  const auto integer = [&values](size_t index) { return values[index].cast<int>(); };
  const auto group = [&values](size_t index) { return values[index].cast<uint32_t>(); };
  const auto backend = [&values](size_t index) {
    return values[index].cast<c10::intrusive_ptr<c10d::Backend>>();
  };
  return {.layout = {.num_hosts = integer(0),
                     .local_size = integer(2),
                     .host = integer(1),
                     .local_rank = integer(3)},
          .host_group = group(4),
          .between_group = group(5),
          .host_reduce = backend(6),
          .host_gather = backend(7)};
}

// Returns a pointer to a Python object that any thread may copy and destroy.
std::shared_ptr<PyObject> shared(const py::object& object) {
  return {object.inc_ref().ptr(), [](PyObject* held) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire lock;
            Py_DECREF(held);
          }};
}

}  // namespace

DecideLevels decide_levels_of(const py::object& function) {
  if (function.is_none()) return {};
  return [held = shared(function)](c10::Device device,
                                   const ExchangeTexts& exchange) -> std::optional<LevelDecision> {
    const py::gil_scoped_acquire lock;
    const auto exchange_in_python = py::cpp_function([&exchange](const std::string& text) {
      const py::gil_scoped_release release;
      return exchange(text);
    });
    const py::object decided =
        py::reinterpret_borrow<py::object>(held.get())(device.str(), exchange_in_python);
    if (decided.is_none()) return std::nullopt;
    return decision_of(decided.cast<py::tuple>());
  };
}

}  // namespace smdist::torch_binding
