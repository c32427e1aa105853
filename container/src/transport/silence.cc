// SPDX-License-Identifier: Apache-2.0
#include "transport/silence.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "smdist/errors.h"
#include "transport/socket.h"

namespace smdist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The kernel asks an idle peer in every twelfth of the limit, from the first one on. An
// interruption of up to eleven of them ends no connection, however long it was idle before.
constexpr int kProbesPerSilence = 12;

// Longest time between two packets without an answer (Linux 6.15; else up to 2 minutes). Shorter
// ones let the kernel give up too early, after 15 packets.
constexpr int kLongestPauseOption = 44;  // TCP_RTO_MAX_MS
constexpr int kPausesPerSilence = 7;
constexpr milliseconds kShortestPause{1'000};
constexpr milliseconds kLongestPause{120'000};

}  // namespace

std::optional<AnswerState> answer_state(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  AnswerState state;
  state.is_unanswered = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  state.is_window_open = info.tcpi_unacked > 0 && info.tcpi_snd_wnd > 0;
  state.acknowledged = info.tcpi_bytes_acked;
  state.since_heard = milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
  return state;
}

void watch_silence(int fd, milliseconds limit) {
  const int whole =
      std::max(static_cast<int>(std::chrono::duration_cast<seconds>(limit).count()), 1);
  const int interval = std::max(whole / kProbesPerSilence, 1);
  const int probes = std::max(whole / interval - 1, 1);
  set_socket_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, std::max(whole - probes * interval, 1));
  set_socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set_socket_option(fd, IPPROTO_TCP, TCP_KEEPCNT, probes);
  const int pause = static_cast<int>(
      std::clamp(limit / kPausesPerSilence, kShortestPause, kLongestPause).count());
  ::setsockopt(fd, IPPROTO_TCP, kLongestPauseOption, &pause, sizeof pause);  // best effort
}

std::string duration_text(milliseconds duration) {
  const auto count = duration.count();
  return count % 1000 == 0 ? std::to_string(count / 1000) + " s" : std::to_string(count) + " ms";
}

std::string silence_text(milliseconds limit) {
  return "has not answered for " + duration_text(limit);
}

SilenceClock::Clock::duration SilenceClock::update(const AnswerState& state,
                                                   Clock::time_point now) {
  if (!state.is_unanswered) {
    stop();
    last_answer_ = now;
    return {};
  }
  if (!silent_since_) {
    silent_since_ = stuck_since_ = now;
    acknowledged_ = state.acknowledged;
  }
  silent_since_ = std::max(*silent_since_, now - state.since_heard);
  const bool has_progress = acknowledged_ != state.acknowledged;
  if (has_progress) last_answer_ = now;
  if (has_progress || !state.is_window_open) stuck_since_ = now;
  acknowledged_ = state.acknowledged;
  duration_ = std::max(now - *silent_since_, now - stuck_since_);
  return duration_;
}

}  // namespace smdist
