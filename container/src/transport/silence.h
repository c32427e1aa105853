// SPDX-License-Identifier: Apache-2.0
// Detection of a host that answers nothing, from what the kernel knows of a TCP connection.
//
// The kernel's own time limit TCP_USER_TIMEOUT is not used: it also ends the connection to a
// process that reads nothing, although the kernel of its host answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace smdist {

// State of a connection that shows whether the peer's kernel answers.
struct AnswerState {
  bool is_unanswered = false;                // the peer's kernel has not answered something
  bool is_window_open = false;               // the peer has space for more data
  uint64_t acknowledged = 0;                 // bytes that the peer's kernel has acknowledged
  std::chrono::milliseconds since_heard{0};  // time since anything arrived
};

// Read the state of a TCP connection; none if the kernel does not tell.
std::optional<AnswerState> answer_state(int fd);

// Let the kernel repeat lost packets, and ask an idle peer, often enough for a limit of silence.
// An idle connection then fails by itself after that time. Throws SystemError.
void watch_silence(int fd, std::chrono::milliseconds limit);

// Return a duration with its unit.
std::string duration_text(std::chrono::milliseconds duration);

// Return the rest of a sentence about a peer that has been silent for the limit.
std::string silence_text(std::chrono::milliseconds limit);

// Measures the silence of a peer's kernel.
//
// Thread safety: none.
class SilenceClock final {
 public:
  using Clock = std::chrono::steady_clock;

  // Take a new state. Returns the duration of the silence so far: the time since the peer has
  // answered nothing, or since it has not acknowledged data for which it has space.
  Clock::duration update(const AnswerState& state, Clock::time_point now);
  // Record that the peer has just answered, over a connection that begins now.
  void begin(Clock::time_point now) { last_answer_ = now; }
  // Return when the peer was last known to have answered what this rank had sent.
  Clock::time_point last_answer() const { return last_answer_; }
  // Return the silence at the last update.
  Clock::duration duration() const { return duration_; }
  // Return whether the last state had something without an answer.
  bool is_running() const { return silent_since_.has_value(); }
  void stop() {
    silent_since_.reset();
    duration_ = {};
  }

 private:
  std::optional<Clock::time_point> silent_since_;
  Clock::time_point stuck_since_;
  Clock::time_point last_answer_;
  Clock::duration duration_{0};
  uint64_t acknowledged_ = 0;
};

}  // namespace smdist
