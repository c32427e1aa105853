// SPDX-License-Identifier: Apache-2.0
// The Python face of the adapter: an engine to connect, a backend to hand to torch.
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "backend.h"
#include "smdist/probe.h"

namespace py = pybind11;
using smdist::Endpoint;
using smdist::Engine;
using smdist::Findings;
using smdist::Fixed;
using smdist::Options;
using smdist::Tuning;
using smdist::torch_binding::Backend;

namespace {

Options options_from(int rank, int size, const std::string& address,
                     const std::vector<std::string>& names, const std::vector<int>& hosts,
                     const std::string& secret, const std::string& session, int pause,
                     std::optional<size_t> arriving_bytes) {
  Options options;
  options.rank = rank;
  options.size = size;
  options.bind_address = address;
  options.names = names;
  options.hosts = hosts;
  options.pause = std::chrono::microseconds(pause);
  options.secret = secret;
  options.tuning.arriving_bytes = arriving_bytes.value_or(options.tuning.arriving_bytes);
  TORCH_CHECK_VALUE(session.size() == options.session.size(), "a session has ",
                    options.session.size(), " bytes, not ", session.size());
  std::copy(session.begin(), session.end(), options.session.begin());
  options.log = [](const std::string& line) { fprintf(stderr, "smdist: %s\n", line.c_str()); };
  return options;
}

// The destructor waits for the completion thread, whose callbacks may wait for
// Python's lock: whoever drops the last reference must not hold it meanwhile.
std::shared_ptr<Engine> make_engine(Options options) {
  return {new Engine(std::move(options)), [](Engine* engine) {
            if (!PyGILState_Check()) {
              delete engine;
              return;
            }
            const py::gil_scoped_release release;
            delete engine;
          }};
}

// Backends may end when Python has ended: what they hold of it they never give back.
std::function<void()> callback_of(const py::object& callable) {
  if (callable.is_none()) return {};
  return [held = callable.inc_ref().ptr()] {
    const py::gil_scoped_acquire lock;
    try {
      py::reinterpret_borrow<py::object>(held)();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("smdist, before a group ends");
    }
  };
}

c10::intrusive_ptr<c10d::Backend> make_backend(std::shared_ptr<Engine> engine, uint32_t group,
                                               int rank, int size, double timeout_seconds,
                                               bool owns_engine,
                                               const py::object& before_shutdown) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  return c10::make_intrusive<Backend>(std::move(engine), group, rank, size, timeout, owns_engine,
                                      callback_of(before_shutdown));
}

// How many operations of a kind have ended, and the seconds in which one was under way.
std::tuple<uint64_t, double> activity_of(const std::string& name) {
  for (uint8_t value = 0; value < smdist::kCollectives; ++value) {
    const auto kind = static_cast<smdist::Collective>(value);
    if (name != smdist::name_of(kind)) continue;
    const auto total = smdist::torch_binding::activity().total(kind);
    return {total.operations, std::chrono::duration<double>(total.busy).count()};
  }
  TORCH_CHECK_VALUE(false, "there is no operation called ", name, ".");
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.attr("built_for_torch") = SMDIST_TORCH_VERSION;

  py::class_<Fixed>(module, "Fixed")
      .def(py::init<>())
      .def_readwrite("lanes", &Fixed::lanes)
      .def_readwrite("chunk_bytes", &Fixed::piece_bytes)
      .def_readwrite("one_shot_bytes", &Fixed::one_shot_bytes)
      .def_readwrite("single_owner_bytes", &Fixed::single_owner_bytes)
      .def_readwrite("arriving_bytes", &Fixed::arriving_bytes)
      .def_readwrite("shard_weights", &Fixed::shard_weights);
  py::class_<Tuning>(module, "Tuning")
      .def_readonly("lanes", &Tuning::lanes)
      .def_readonly("chunk_bytes", &Tuning::piece_bytes)
      .def_readonly("one_shot_bytes", &Tuning::one_shot_bytes)
      .def_readonly("single_owner_bytes", &Tuning::single_owner_bytes)
      .def_readonly("arriving_bytes", &Tuning::arriving_bytes);
  py::class_<Findings>(module, "Findings")
      .def_readonly("tuning", &Findings::tuning)
      .def_readonly("seconds", &Findings::seconds)
      .def_readonly("latency", &Findings::latency)
      .def_readonly("bandwidth", &Findings::bandwidth);
  py::class_<Engine, std::shared_ptr<Engine>>(module, "Engine")
      .def(py::init([](int rank, int size, const std::string& address,
                       const std::vector<std::string>& names, const std::vector<int>& hosts,
                       const py::bytes& secret, const py::bytes& session, int pause,
                       std::optional<size_t> arriving_bytes) {
             return make_engine(options_from(rank, size, address, names, hosts, secret, session,
                                             pause, arriving_bytes));
           }),
           py::arg("rank"), py::arg("size"), py::arg("address"), py::arg("names"), py::arg("hosts"),
           py::arg("secret"), py::arg("session"), py::arg("pause_microseconds"),
           py::arg("arriving_bytes"))
      .def("endpoint",
           [](const Engine& engine) {
             const Endpoint endpoint = engine.endpoint();
             return std::make_tuple(endpoint.host, endpoint.port, endpoint.local);
           })
      .def(
          "probe",
          [](Engine& engine, int rank, const std::vector<int>& hosts, const Fixed& fixed,
             double patience_seconds) {
            const auto patience =
                std::chrono::milliseconds(static_cast<int64_t>(patience_seconds * 1000));
            return smdist::probe(engine, {rank, static_cast<int>(hosts.size()), hosts}, fixed,
                                 patience);
          },
          py::arg("rank"), py::arg("hosts"), py::arg("fixed"), py::arg("patience_seconds"),
          py::call_guard<py::gil_scoped_release>())
      .def(
          "join",
          [](Engine& engine,
             const std::vector<std::tuple<std::string, uint16_t, std::string>>& peers) {
            std::vector<Endpoint> endpoints;
            for (const auto& [host, port, local] : peers) endpoints.push_back({host, port, local});
            engine.join(endpoints);
          },
          py::arg("peers"), py::call_guard<py::gil_scoped_release>())
      .def("add_group", &Engine::add_group, py::arg("group"), py::arg("members"),
           py::call_guard<py::gil_scoped_release>())
      .def("abort", &Engine::abort, py::arg("reason"), py::call_guard<py::gil_scoped_release>())
      .def("is_running", &Engine::is_running)
      .def("close_in_child", &Engine::close_in_child)
      .def("shutdown", &Engine::shutdown, py::call_guard<py::gil_scoped_release>());

  module.def("make_backend", &make_backend, py::arg("engine"), py::arg("group"), py::arg("rank"),
             py::arg("size"), py::arg("timeout_seconds"), py::arg("owns_engine"),
             py::arg("before_shutdown") = py::none());
  module.def("activity", &activity_of, py::arg("kind"));
}
