// SPDX-License-Identifier: Apache-2.0
// Python module of the TensorFlow adapter: the engine, and the state of the ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <utility>

#include "../python/engine_bindings.h"
#include "async_operation.h"
#include "process_engine.h"
#include "tensor_buffers.h"

namespace py = pybind11;
using smdist::Engine;
namespace binding = smdist::tensorflow_binding;

PYBIND11_MODULE(_C, module) {
  smdist::python::bind_engine(module);
  module.def(
      "adopt",
      [](std::shared_ptr<Engine> engine, double timeout_seconds) {
        const auto timeout = static_cast<int64_t>(std::ceil(timeout_seconds * 1000));
        if (timeout <= 0) throw py::value_error("timeout_seconds must be above zero");
        binding::adopt(std::move(engine), std::chrono::milliseconds(timeout));
      },
      py::arg("engine"), py::arg("timeout_seconds"));
  module.def("add_group", &binding::add_group, py::arg("group"), py::arg("members"),
             py::call_guard<py::gil_scoped_release>());
  module.def("join_by_name", &binding::join_by_name, py::call_guard<py::gil_scoped_release>());
  module.def("release", &binding::release, py::call_guard<py::gil_scoped_release>());
  module.def(
      "activity",
      [](const std::string& kind) {
        return smdist::python::activity_of(binding::activity(), kind);
      },
      py::arg("kind"));
  module.def(
      "ends_within",
      [](int64_t handle, int milliseconds) {
        return binding::ends_within(handle, std::chrono::milliseconds(milliseconds));
      },
      py::arg("handle"), py::arg("milliseconds"), py::call_guard<py::gil_scoped_release>());
  module.def("live_buffers", &binding::live_buffers);
  module.def("open_handles", &binding::open_handles);
  module.def("under_way", &binding::under_way);
  module.def("num_called", &binding::num_called);
  module.def("num_failed", &binding::num_failed);
}
