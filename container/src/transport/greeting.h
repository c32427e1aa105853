// SPDX-License-Identifier: Apache-2.0
// A connection that is not trusted yet.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "transport/handshake.h"

namespace smdist {

// Runs one side of the handshake on a non-blocking socket.
//
// Thread safety: none.
class Greeting final {
 public:
  enum class Outcome : uint8_t { kWaiting, kTrusted, kFailed };

  // Returns why a rank that has proved itself is not let in; empty: let in.
  using Admit = std::function<std::string(const Hello&)>;

  // Waits for who dialled us.
  static Greeting accepting(UniqueFd fd, const Credentials& credentials, Admit admit);
  // Greets `peer` as `rank`, over a socket that is still connecting.
  static Greeting dialling(UniqueFd fd, const Credentials& credentials, int rank, int peer,
                           uint32_t lane = 0);

  // Goes on as far as the socket lets it. Call when it is readable or writable.
  Outcome advance();

  bool is_dialling() const { return is_dialling_; }
  bool wants_write() const { return state_ == State::kConnecting || !outgoing_.empty(); }
  int fd() const { return fd_.get(); }
  UniqueFd take_fd() { return std::move(fd_); }
  int peer() const;  // who it is, once trusted; or whom we dial
  uint32_t lane() const { return hello_.lane; }
  const std::string& fault() const { return fault_; }        // once failed
  bool is_silent() const { return received_any_ == false; }  // nothing came at all
  bool is_refused() const { return is_refused_; }            // nobody listens there
  std::chrono::steady_clock::time_point begin() const { return begin_; }

 private:
  enum class State : uint8_t { kConnecting, kAwaitNonce, kAwaitHello, kAwaitProof, kTrusted };

  Greeting(UniqueFd fd, const Credentials& credentials, bool is_dialling);
  Outcome fail(std::string fault);
  bool finish_connect();
  bool flush();
  bool fill();
  bool take_incoming();
  bool take_nonce();
  bool take_hello();
  bool take_proof();

  UniqueFd fd_;
  const Credentials* credentials_;
  Admit admit_;
  bool is_dialling_;
  State state_;
  Hello hello_;
  Nonce nonce_{};  // the acceptor's
  std::vector<uint8_t> incoming_;
  size_t expected_ = 0;
  std::vector<uint8_t> outgoing_;
  std::string fault_;
  bool received_any_ = false;
  bool is_refused_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace smdist
