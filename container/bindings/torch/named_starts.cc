// SPDX-License-Identifier: Apache-2.0
#include "named_starts.h"

#include <pybind11/stl.h>

#include <cstdio>
#include <tuple>
#include <utility>

namespace py = pybind11;

namespace smdist::torch_binding {
namespace {

void log_name(const std::string& line) { std::fprintf(stderr, "smdist: %s\n", line.c_str()); }

std::string text_of_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

// Returns an object that is destroyed without the GIL, because its destructor waits for a thread.
std::shared_ptr<NamedStarts> make_named_starts(const std::shared_ptr<Engine>& engine,
                                               uint32_t group, std::vector<int> members, int rank,
                                               double timeout_seconds) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
  return {new NamedStarts(engine, group, std::move(members), rank, timeout),
          [](NamedStarts* starts) {
            const py::gil_scoped_release release;
            delete starts;
          }};
}

}  // namespace

void EventQueue::put(Event event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(std::move(event));
  }
  changed_.notify_one();
}

std::optional<Event> EventQueue::take() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return is_closed_ || !events_.empty(); });
  if (is_closed_) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void EventQueue::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

NamedStarts::NamedStarts(const std::shared_ptr<Engine>& engine, uint32_t group,
                         std::vector<int> members, int rank, std::chrono::milliseconds timeout)
    : events_(std::make_shared<EventQueue>()),
      order_(NameOrder::create({engine, group, std::move(members), rank, timeout, &log_name})) {}

void NamedStarts::bring(const std::string& name, int64_t number) {
  order_->bring(
      name, [events = events_, number] { events->put({number}); },
      [events = events_, number](const std::exception_ptr& error) {
        events->put({number, text_of_error(error)});
      });
}

void bind_named_starts(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<NamedStarts, std::shared_ptr<NamedStarts>>(module, "NamedStarts", py::module_local())
      .def(py::init(&make_named_starts), py::arg("engine"), py::arg("group"), py::arg("members"),
           py::arg("rank"), py::arg("timeout_seconds"))
      .def("bring", &NamedStarts::bring, py::arg("name"), py::arg("number"), Released())
      .def("join", &NamedStarts::join, Released())
      .def("put", &NamedStarts::put, py::arg("number"), Released())
      .def("take",
           [](NamedStarts& self) -> std::optional<std::tuple<int64_t, std::optional<std::string>>> {
             std::optional<Event> event;
             {
               const py::gil_scoped_release release;
               event = self.take();
             }
             if (!event) return std::nullopt;
             return std::tuple{event->number, event->error};
           })
      .def("close", &NamedStarts::close, Released());
}

}  // namespace smdist::torch_binding
