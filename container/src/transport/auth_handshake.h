// SPDX-License-Identifier: Apache-2.0
// Authentication of a new connection.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "transport/auth_messages.h"

namespace smdist {

// Runs one side of the authentication handshake on a non-blocking socket.
//
// Thread safety: none.
class AuthHandshake final {
 public:
  enum class Outcome : uint8_t { kWaiting, kAuthenticated, kFailed };

  // Returns the reason to refuse a rank that has proved that it knows the secret; empty: accept
  // it.
  using Admit = std::function<std::string(const Hello&)>;

  // Makes the side that was dialled.
  static AuthHandshake accepting(UniqueFd fd, const Credentials& credentials, Admit admit);
  // Makes the side that dials `peer` as `rank`, over a socket that is still connecting.
  static AuthHandshake dialling(UniqueFd fd, const Credentials& credentials, int rank, int peer,
                                uint32_t lane = 0);

  // Continues as far as the socket allows. Call when the socket is readable or writable.
  Outcome advance();

  bool is_dialling() const { return is_dialling_; }
  bool wants_write() const { return state_ == Phase::kConnecting || !outgoing_.empty(); }
  int fd() const { return fd_.get(); }
  UniqueFd take_fd() { return std::move(fd_); }
  int peer() const;  // accepting: valid once authenticated
  uint32_t lane() const { return hello_.lane; }
  const std::string& fault() const { return fault_; }        // valid once failed
  bool is_silent() const { return received_any_ == false; }  // no byte has arrived
  bool is_refused() const { return is_refused_; }            // no process listens at the address
  std::chrono::steady_clock::time_point begin() const { return begin_; }

 private:
  enum class Phase : uint8_t { kConnecting, kAwaitNonce, kAwaitHello, kAwaitProof, kAuthenticated };

  AuthHandshake(UniqueFd fd, const Credentials& credentials, bool is_dialling);
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
  Phase state_;
  Hello hello_;
  Nonce nonce_{};  // nonce of the acceptor
  std::vector<uint8_t> incoming_;
  size_t expected_ = 0;
  std::vector<uint8_t> outgoing_;
  std::string fault_;
  bool received_any_ = false;
  bool is_refused_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace smdist
