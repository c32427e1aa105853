// SPDX-License-Identifier: Apache-2.0
// Starts of operations that carry a name, for a thread of Python that carries them out.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/name_order.h"

namespace smdist::torch_binding {

// Number of an operation that take() returns, and why it cannot start.
struct Event {
  int64_t number = 0;
  std::optional<std::string> error = std::nullopt;  // none: it starts now
};

// Events that one thread takes, one after another. No thread of the engine waits for Python.
//
// Thread safety: all methods may be called from any thread.
class EventQueue final {
 public:
  void put(Event event);
  // Block until there is an event; none after close().
  std::optional<Event> take();
  void close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;  // guarded by mutex_
  bool is_closed_ = false;    // guarded by mutex_
};

// Operations that carry a name, and the events that they cause: an operation becomes an event when
// all ranks have brought its name (NameOrder), in the same order on all ranks.
//
// Thread safety: all methods may be called from any thread.
class NamedStarts final {
 public:
  // group: number of the group of the engine for the messages about names. members: its ranks.
  // rank: this rank's number in it.
  NamedStarts(const std::shared_ptr<Engine>& engine, uint32_t group, std::vector<int> members,
              int rank, std::chrono::milliseconds timeout);

  // Bring an operation; an event with its number follows.
  void bring(const std::string& name, int64_t number);
  // Let operations of other ranks start without this one; see NameOrder.
  void join() { order_->join(); }
  // Add an event of the caller, behind those that are there.
  void put(int64_t number) { events_->put({number}); }
  std::optional<Event> take() { return events_->take(); }
  void close() { events_->close(); }

 private:
  const std::shared_ptr<EventQueue> events_;
  const std::shared_ptr<NameOrder> order_;
};

// Add the class NamedStarts to a module of Python.
void bind_named_starts(pybind11::module_& module);

}  // namespace smdist::torch_binding
