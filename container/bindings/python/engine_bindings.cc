// SPDX-License-Identifier: Apache-2.0
#include "engine_bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "history_writer.h"
#include "smdist/engine.h"
#include "smdist/errors.h"
#include "smdist/joined_rank.h"
#include "smdist/probe.h"

namespace py = pybind11;

namespace smdist::python {
namespace {

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

Options options_from(int rank, int size, const std::string& address,
                     const std::vector<std::string>& names, const std::vector<int>& hosts,
                     const std::string& secret, const std::string& session, int pause,
                     std::optional<size_t> arriving_bytes, std::optional<uint32_t> lanes,
                     double start_timeout_seconds, const Protection& protection,
                     double silence_seconds, double late_seconds,
                     const std::string& ended_hosts_file) {
  Options options;
  options.protection = protection;
  options.rank = rank;
  options.size = size;
  options.bind_address = address;
  options.names = names;
  options.hosts = hosts;
  options.pause = std::chrono::microseconds(pause);
  options.secret = secret;
  options.tuning.arriving_bytes = arriving_bytes.value_or(options.tuning.arriving_bytes);
  options.max_lanes = lanes.value_or(options.max_lanes);
  options.start_timeout = milliseconds_of(start_timeout_seconds);
  options.silence = milliseconds_of(silence_seconds);
  options.late_after = milliseconds_of(late_seconds);
  options.ended_hosts_file = ended_hosts_file;
  if (session.size() != options.session.size()) {
    throw py::value_error("the session id has " + std::to_string(session.size()) +
                          " bytes, but it must have " + std::to_string(options.session.size()) +
                          " bytes");
  }
  std::copy(session.begin(), session.end(), options.session.begin());
  options.on_failure = &HistoryWriter::on_failure;
  options.log = [](const std::string& line) { fprintf(stderr, "smdist: %s\n", line.c_str()); };
  return options;
}

// Returns an engine that is destroyed without the GIL, because its destructor waits for threads
// whose callbacks may need the GIL.
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

Protection protection_from(const std::string& integrity, bool encrypt) {
  for (const auto each : {Integrity::kOff, Integrity::kCrc32c, Integrity::kMac}) {
    if (integrity == name_of(each)) return {each, encrypt};
  }
  throw py::value_error("integrity is '" + integrity +
                        "', but it must be 'off', 'crc32c' or 'mac'");
}

void bind_tuning(py::module_& module) {
  py::class_<Fixed>(module, "Fixed", py::module_local())
      .def(py::init<>())
      .def_readwrite("lanes", &Fixed::lanes)
      .def_readwrite("chunk_bytes", &Fixed::chunk_bytes)
      .def_readwrite("one_shot_bytes", &Fixed::one_shot_bytes)
      .def_readwrite("single_owner_bytes", &Fixed::single_owner_bytes)
      .def_readwrite("arriving_bytes", &Fixed::arriving_bytes)
      .def_readwrite("shard_weights", &Fixed::shard_weights);
  py::class_<Tuning>(module, "Tuning", py::module_local())
      .def_readonly("lanes", &Tuning::lanes)
      .def_readonly("chunk_bytes", &Tuning::chunk_bytes)
      .def_readonly("one_shot_bytes", &Tuning::one_shot_bytes)
      .def_readonly("single_owner_bytes", &Tuning::single_owner_bytes)
      .def_readonly("arriving_bytes", &Tuning::arriving_bytes)
      .def_readonly("shard_weights", &Tuning::shard_weights);
  py::class_<Findings>(module, "Findings", py::module_local())
      .def_readonly("tuning", &Findings::tuning)
      .def_readonly("seconds", &Findings::seconds)
      .def_readonly("latency", &Findings::latency)
      .def_readonly("bandwidth", &Findings::bandwidth);
}

std::tuple<std::string, uint16_t, std::string> endpoint_of(const Engine& engine) {
  const Endpoint endpoint = engine.endpoint();
  return {endpoint.host, endpoint.port, endpoint.local};
}

Findings probe_with(Engine& engine, int rank, const std::vector<int>& hosts, const Fixed& fixed,
                    double timeout_seconds) {
  return probe(engine, {rank, static_cast<int>(hosts.size()), hosts}, fixed,
               milliseconds_of(timeout_seconds));
}

// Raises OSError if the operating system refuses what the connections need.
void join(Engine& engine,
          const std::vector<std::tuple<std::string, uint16_t, std::string>>& peers) {
  std::vector<Endpoint> endpoints;
  for (const auto& [host, port, local] : peers) endpoints.push_back({host, port, local});
  try {
    const py::gil_scoped_release release;
    engine.join(endpoints);
  } catch (const SystemError& error) {
    const py::object arguments = py::make_tuple(error.error_number(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw py::error_already_set();
  }
}

void bind_joined_rank(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<JoinedRank>(module, "JoinedRank", py::module_local())
      .def(py::init([](std::shared_ptr<Engine> engine, const std::vector<uint32_t>& groups,
                       uint32_t control, double timeout_seconds) {
             return std::make_unique<JoinedRank>(std::move(engine), groups, control,
                                                 milliseconds_of(timeout_seconds));
           }),
           py::arg("engine"), py::arg("groups"), py::arg("control"), py::arg("timeout_seconds"),
           Released())
      .def(
          "advance",
          [](JoinedRank& self, int milliseconds) {
            return self.advance(std::chrono::milliseconds(milliseconds));
          },
          py::arg("milliseconds"), Released())
      .def_property_readonly("last", &JoinedRank::last);
}

void bind_history_writer(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<HistoryWriter>(module, "HistoryWriter", py::module_local())
      .def(py::init<std::string, int, int, bool>(), py::arg("folder"), py::arg("stacks"),
           py::arg("requests"), py::arg("writes_failures"))
      .def("watch", &HistoryWriter::watch, py::arg("engine"))
      .def("install", &HistoryWriter::install, py::arg("signal"))
      .def("replace_handler", &HistoryWriter::replace_handler)
      .def("close_in_child", &HistoryWriter::close_in_child)
      .def("stop", &HistoryWriter::stop, Released());
}

}  // namespace

py::object fault_fields(const std::exception_ptr& failure) {
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const Error& error) {
    const Fault* const fault = error.fault();
    if (fault == nullptr) return py::none();
    const auto text = [](const std::string& bytes) {  // may be truncated within a character
      return py::reinterpret_steal<py::str>(
          PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
    };
    return py::make_tuple(name_of(fault->kind), fault->culprit, fault->operation, text(fault->text),
                          text(fault->details));
  }
  return py::none();
}

void bind_engine(py::module_& module, size_t caller_memory_bytes) {
  bind_tuning(module);
  module.attr("has_openssl") = has_openssl();
  py::class_<Engine, std::shared_ptr<Engine>>(module, "Engine", py::module_local())
      .def(py::init([caller_memory_bytes](
                        int rank, int size, const std::string& address,
                        const std::vector<std::string>& names, const std::vector<int>& hosts,
                        const py::bytes& secret, const py::bytes& session, int pause,
                        std::optional<size_t> arriving_bytes, std::optional<uint32_t> lanes,
                        double start_timeout_seconds, const std::string& integrity, bool encrypt,
                        double silence_seconds, double late_seconds,
                        const std::string& ended_hosts_file) {
             Options options = options_from(rank, size, address, names, hosts, secret, session,
                                            pause, arriving_bytes, lanes, start_timeout_seconds,
                                            protection_from(integrity, encrypt), silence_seconds,
                                            late_seconds, ended_hosts_file);
             options.caller_memory_bytes = caller_memory_bytes;
             return make_engine(std::move(options));
           }),
           py::arg("rank"), py::arg("size"), py::arg("address"), py::arg("names"), py::arg("hosts"),
           py::arg("secret"), py::arg("session"), py::arg("pause_microseconds"),
           py::arg("arriving_bytes"), py::arg("lanes"), py::arg("start_timeout_seconds"),
           py::arg("integrity") = "off", py::arg("encrypt") = false,
           py::arg("silence_seconds") = 60.0, py::arg("late_seconds") = 10.0,
           py::arg("ended_hosts_file") = "")
      .def("endpoint", &endpoint_of)
      .def("probe", &probe_with, py::arg("rank"), py::arg("hosts"), py::arg("fixed"),
           py::arg("timeout_seconds"), py::call_guard<py::gil_scoped_release>())
      .def("join", &join, py::arg("peers"))
      .def("add_group", &Engine::add_group, py::arg("group"), py::arg("members"),
           py::call_guard<py::gil_scoped_release>())
      .def("abort", &Engine::abort, py::arg("reason"), py::arg("details") = "",
           py::call_guard<py::gil_scoped_release>())
      .def("fault", [](const Engine& engine) { return fault_fields(engine.last_error()); })
      .def("history", &Engine::history, py::arg("reason"))
      .def("is_running", &Engine::is_running)
      .def("close_in_child", &Engine::close_in_child)
      .def("shutdown", &Engine::shutdown, py::call_guard<py::gil_scoped_release>());
  bind_joined_rank(module);
  bind_history_writer(module);
}

std::tuple<uint64_t, double> activity_of(Activity& activity, const std::string& name) {
  for (uint8_t value = 0; value < kCollectives; ++value) {
    const auto kind = static_cast<Collective>(value);
    if (name != name_of(kind)) continue;
    const Activity::Total total = activity.total(kind);
    return {total.operations, std::chrono::duration<double>(total.busy).count()};
  }
  throw py::value_error("'" + name + "' is not the name of an operation, such as all_reduce.");
}

}  // namespace smdist::python
