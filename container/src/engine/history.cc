// SPDX-License-Identifier: Apache-2.0
// The history of an engine as JSON.
#include <chrono>
#include <string>

#include "base/json_text.h"
#include "engine/engine_impl.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

std::string json_of(const std::exception_ptr& failure) {
  if (!failure) return "null";
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    const Fault* const fault = error.fault();
    if (fault == nullptr) return "null";
    return std::string("{\"kind\":\"") + name_of(fault->kind) +
           "\",\"culprit\":" + std::to_string(fault->culprit) +
           ",\"operation\":" + json_text(fault->operation) + ",\"text\":" + json_text(fault->text) +
           "}";
  }
}

}  // namespace

std::string Engine::Impl::history(const std::string& reason) {
  const FlightRecorder& recorder = progress_.recorder();
  const size_t rank = static_cast<size_t>(options_.rank);
  const std::string name = rank < options_.names.size() ? options_.names[rank] : "";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double seconds = std::chrono::duration<double>(now).count();
  return "{\"version\":1,\"rank\":" + std::to_string(options_.rank) +
         ",\"size\":" + std::to_string(options_.size) + ",\"name\":" + json_text(name) +
         ",\"reason\":" + json_text(reason) + ",\"written_at\":" + std::to_string(seconds) +
         ",\"fault\":" + json_of(failure()) + ",\"groups\":" + groups_json(recorder.groups()) +
         ",\"operations\":" + recorder.json() + "}\n";
}

// Returns the members of these groups, by the group's number.
std::string Engine::Impl::groups_json(const std::set<uint32_t>& ids) {
  std::string json = "{";
  MutexLock lock(mutex_);
  for (const uint32_t id : ids) {
    const auto found = groups_.find(id);
    if (found == groups_.end()) continue;
    json += (json.size() > 1 ? ",\"" : "\"") + std::to_string(id) + "\":[";
    for (const int member : found->second.group->members) {
      json += (json.back() == '[' ? "" : ",") + std::to_string(member);
    }
    json += "]";
  }
  return json + "}";
}

}  // namespace smdist
