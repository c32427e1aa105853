// SPDX-License-Identifier: Apache-2.0
#include "process_engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "smdist/errors.h"
#include "status.h"

namespace smdist::tensorflow_binding {
namespace {

constexpr uint32_t kNamed = 0x6e616d65;  // makes the number of a group for named operations

// The current engine. Never destroyed, because ops may run while the process ends.
struct Adopted {
  std::mutex mutex;
  EngineContext current;                         // guarded by mutex
  std::map<uint32_t, std::vector<int>> members;  // ranks by number of the group; guarded by mutex
  // Order of named operations by number of the group; guarded by mutex.
  std::map<uint32_t, std::shared_ptr<NameOrder>> orders;
  std::atomic<pid_t> pid{-1};  // process that called adopt()
};

Adopted& adopted() {
  static auto* const of_process = new Adopted;
  return *of_process;
}

std::vector<int> members_of(const Adopted& here, uint32_t group, const Engine& engine) {
  if (group == 0) {
    std::vector<int> all(static_cast<size_t>(engine.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const auto found = here.members.find(group);
  if (found != here.members.end()) return found->second;
  throw UsageError("there is no group " + std::to_string(group) +
                   ". Add it with add_group() on all its ranks first");
}

GroupPlace place_among(const std::vector<int>& members, const Engine& engine) {
  const auto mine = std::find(members.begin(), members.end(), engine.rank());
  return {static_cast<int>(mine - members.begin()), static_cast<int>(members.size())};
}

void log(const std::string& line) { std::fprintf(stderr, "smdist: %s\n", line.c_str()); }

}  // namespace

void adopt(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout) {
  Adopted& here = adopted();
  const std::lock_guard<std::mutex> lock(here.mutex);
  here.current = {std::move(engine), timeout};
  here.members.clear();
  here.orders.clear();
  here.pid = getpid();
}

void release() {
  Adopted& here = adopted();
  if (here.pid.exchange(-1) != getpid()) return;
  // destroyed after the lock, because the engine's shutdown takes time
  EngineContext last;
  std::map<uint32_t, std::shared_ptr<NameOrder>> orders;
  const std::lock_guard<std::mutex> lock(here.mutex);
  std::swap(last, here.current);
  std::swap(orders, here.orders);
}

EngineContext current_engine() {
  Adopted& here = adopted();
  const pid_t pid = here.pid;
  if (pid == -1) {
    throw NoEngineError(
        "there is no engine: this process has not connected to the other ranks, or has "
        "disconnected. Call smdist.dataparallel.tensorflow.init() first.");
  }
  // A forked child must not lock: another thread may have held the lock at the fork.
  if (pid != getpid()) {
    throw NoEngineError(
        "this process was forked from a rank, and the engine belongs to the parent. "
        "Run collectives in the rank itself, or start the process by \"spawn\".");
  }
  const std::lock_guard<std::mutex> lock(here.mutex);
  const bool is_running = here.current.engine && here.current.engine->is_running();
  if (!is_running) {
    throw NoEngineError(
        "the engine of this process was shut down. Run collectives before the shutdown.");
  }
  return here.current;
}

void add_group(uint32_t group, std::vector<int> members) {
  current_engine().engine->add_group(group, members);
  Adopted& here = adopted();
  const std::lock_guard<std::mutex> lock(here.mutex);
  here.members[group] = std::move(members);
}

GroupPlace place_in(uint32_t group, const EngineContext& current) {
  if (group == 0) return {current.engine->rank(), current.engine->size()};
  Adopted& here = adopted();
  const std::lock_guard<std::mutex> lock(here.mutex);
  return place_among(members_of(here, group, *current.engine), *current.engine);
}

NamedGroup named_group(uint32_t group, const EngineContext& current) {
  Adopted& here = adopted();
  const std::lock_guard<std::mutex> lock(here.mutex);
  const uint32_t number = group ^ kNamed;
  std::shared_ptr<NameOrder>& order = here.orders[group];
  if (!order) {
    const std::vector<int> members = members_of(here, group, *current.engine);
    const GroupPlace place = place_among(members, *current.engine);
    current.engine->add_group(number, members);
    order = NameOrder::create({current.engine, number, members, place.rank, current.timeout, &log});
  }
  return {number, order};
}

uint32_t join_by_name() {
  const NamedGroup named = named_group(0, current_engine());
  named.order->join();
  return named.group;
}

Activity& activity() {
  static auto* const of_process = new Activity;
  return *of_process;
}

}  // namespace smdist::tensorflow_binding
