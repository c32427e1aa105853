// SPDX-License-Identifier: Apache-2.0
// Python module of the torch adapter: the engine, and the backend for torch.
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "../python/engine_bindings.h"
#include "backend.h"
#include "named_starts.h"
#include "staging/host_registration.h"
#include "staging/registry.h"
#include "staging/stream_memory.h"
#include "two_level/level_decision_bindings.h"
#include "two_level/two_level_group.h"

namespace py = pybind11;
using smdist::Engine;
using smdist::torch_binding::Backend;

namespace {

// Returns a C++ function that calls a Python function; empty for None. It never releases the Python
// object, because a backend may be destroyed after Python has been finalized.
std::function<void()> callback_of(const py::object& callable) {
  if (callable.is_none()) return {};
  return [held = callable.inc_ref().ptr()] {
    const py::gil_scoped_acquire lock;
    try {
      py::reinterpret_borrow<py::object>(held)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(
          "smdist called a function before the shutdown of a process group, and the function "
          "raised this exception. The shutdown continues");
    }
  };
}

c10::intrusive_ptr<c10d::Backend> make_backend(
    std::shared_ptr<Engine> engine, uint32_t group, int rank, int size, double timeout_seconds,
    size_t staging_slot_bytes, size_t staging_slots, bool wait_blocks_host,
    const py::object& decide_levels, int64_t two_level_bytes, int64_t two_level_piece_bytes,
    bool owns_engine, const py::object& before_shutdown) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  return c10::make_intrusive<Backend>(
      std::move(engine), group, rank, size, timeout,
      smdist::torch_binding::StagingOptions{.slot_bytes = staging_slot_bytes,
                                            .max_slots = staging_slots,
                                            .wait_blocks_host = wait_blocks_host},
      smdist::torch_binding::LevelOptions{smdist::torch_binding::decide_levels_of(decide_levels),
                                          two_level_bytes, two_level_piece_bytes},
      owns_engine, callback_of(before_shutdown));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.attr("built_for_torch") = SMDIST_TORCH_VERSION;

  const smdist::torch_binding::StagingOptions staging;
  smdist::python::bind_engine(module, staging.slot_bytes * staging.max_slots);
  module.def("make_backend", &make_backend, py::arg("engine"), py::arg("group"), py::arg("rank"),
             py::arg("size"), py::arg("timeout_seconds"), py::kw_only(),
             py::arg("staging_slot_bytes") = 4 << 20, py::arg("staging_slots") = 16,
             py::arg("wait_blocks_host") = false, py::arg("decide_levels") = py::none(),
             py::arg("two_level_bytes") = 64 << 10, py::arg("two_level_piece_bytes") = 16 << 20,
             py::arg("owns_engine"), py::arg("before_shutdown") = py::none());
  module.def(
      "allreduce_of_layout",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, at::Tensor tensor,
         const c10d::AllreduceOptions& options, uint64_t layout) {
        return dynamic_cast<Backend&>(*backend).allreduce_of_layout(tensor, options, layout);
      },
      py::arg("backend"), py::arg("tensor"), py::arg("options"), py::arg("layout"),
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "fault_of",
      [](const c10::intrusive_ptr<c10d::Work>& work) -> py::object {
        auto* const ours = dynamic_cast<smdist::torch_binding::EngineWork*>(work.get());
        return ours ? smdist::python::fault_fields(ours->engine_error()) : py::none();
      },
      py::arg("work"));
  smdist::torch_binding::bind_named_starts(module);
  module.def(
      "register_stream_memory",
      [](const std::string& device_type, uintptr_t address) {
        smdist::torch_binding::register_stream_memory(
            c10::Device(device_type).type(),
            reinterpret_cast<const smdist::torch_binding::StreamMemory*>(address));
      },
      py::arg("device_type"), py::arg("address"));
  module.def(
      "register_host_registration",
      [](const std::string& device_type, uintptr_t address) {
        smdist::torch_binding::register_host_registration(
            c10::Device(device_type).type(),
            reinterpret_cast<const smdist::torch_binding::HostRegistration*>(address));
      },
      py::arg("device_type"), py::arg("address"));
  module.def("finish_staging", &smdist::torch_binding::finish_all_staging,
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "stop_staging",
      [] {
        smdist::torch_binding::stop_all_two_level_groups();
        smdist::torch_binding::stop_all_staging();
      },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "activity",
      [](const std::string& kind) {
        return smdist::python::activity_of(smdist::torch_binding::activity(), kind);
      },
      py::arg("kind"));
}
