// SPDX-License-Identifier: Apache-2.0
#include "engine/flight_recorder.h"

#include <algorithm>
#include <cstdio>

namespace smdist {
namespace {

double seconds_of(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Returns the time as JSON: seconds since 1970, or null if it is not set.
std::string time_text(Clock::time_point time, double unix_offset) {
  if (time == Clock::time_point()) return "null";
  char text[32];
  snprintf(text, sizeof text, "%.6f", seconds_of(time.time_since_epoch()) + unix_offset);
  return text;
}

}  // namespace

uint64_t FlightRecorder::add(const Submission& submission) {
  const Descriptor& descriptor = submission.descriptor;
  MutexLock lock(mutex_);
  Entry& entry = entries_[++last_number_ % kOperations];
  entry.number = last_number_;
  entry.id = submission.id;
  entry.kind = descriptor.kind;
  entry.dtype = descriptor.dtype;
  entry.op = descriptor.op;
  entry.root = descriptor.root;
  entry.peer = submission.operation.peer;
  entry.bytes = descriptor.bytes;
  entry.submitted = submission.submitted;
  entry.started = entry.ended = Clock::time_point();
  entry.has_failed = false;
  return last_number_;
}

FlightRecorder::Entry* FlightRecorder::find(uint64_t number) {
  Entry& entry = entries_[number % kOperations];
  return entry.number == number ? &entry : nullptr;
}

void FlightRecorder::set_id(uint64_t number, const OperationId& id) {
  MutexLock lock(mutex_);
  if (Entry* const entry = find(number)) entry->id = id;
}

void FlightRecorder::start(uint64_t number) {
  const Clock::time_point now = Clock::now();
  MutexLock lock(mutex_);
  if (Entry* const entry = find(number)) entry->started = now;
}

void FlightRecorder::end(uint64_t number, bool has_failed) {
  const Clock::time_point now = Clock::now();
  MutexLock lock(mutex_);
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  entry->ended = now;
  entry->has_failed = has_failed;
}

std::string FlightRecorder::json() const {
  const double unix_offset = seconds_of(std::chrono::system_clock::now().time_since_epoch()) -
                             seconds_of(Clock::now().time_since_epoch());
  std::string json = "[";
  MutexLock lock(mutex_);
  const uint64_t first = last_number_ > kOperations ? last_number_ - kOperations + 1 : 1;
  for (uint64_t number = first; number <= last_number_; ++number) {
    json += (number > first ? ",\n" : "\n") + json_of(entries_[number % kOperations], unix_offset);
  }
  return json + "]";
}

std::string FlightRecorder::json_of(const Entry& entry, double unix_offset) {
  const bool has_ended = entry.ended != Clock::time_point();
  const bool has_started = entry.started != Clock::time_point();
  const char* const state = entry.has_failed ? "failed"
                            : has_ended      ? "ended"
                            : has_started    ? "started"
                                             : "submitted";
  const bool is_message = is_point_to_point(entry.kind);
  std::string json = "{\"number\":" + std::to_string(entry.number) +
                     ",\"group\":" + std::to_string(entry.id.group) + ",\"kind\":\"" +
                     name_of(entry.kind) + "\",\"sequence\":" + std::to_string(entry.id.sequence) +
                     ",\"part\":" + std::to_string(entry.id.part) + ",\"dtype\":\"" +
                     name_of(entry.dtype) + "\",\"bytes\":" + std::to_string(entry.bytes);
  if (is_reducing(entry.kind)) json += std::string(",\"op\":\"") + name_of(entry.op) + "\"";
  if (is_rooted(entry.kind)) json += ",\"root\":" + std::to_string(entry.root);
  if (is_message) {
    json += ",\"peer\":" + (entry.peer < 0 ? "null" : std::to_string(entry.peer)) +
            ",\"tag\":" + std::to_string(entry.id.channel);
  }
  return json + ",\"submitted\":" + time_text(entry.submitted, unix_offset) +
         ",\"started\":" + time_text(entry.started, unix_offset) +
         ",\"ended\":" + time_text(entry.ended, unix_offset) + ",\"state\":\"" + state + "\"}";
}

std::set<uint32_t> FlightRecorder::groups() const {
  std::set<uint32_t> groups;
  MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.number > 0) groups.insert(entry.id.group);
  }
  return groups;
}

}  // namespace smdist
