// SPDX-License-Identifier: Apache-2.0
// Mutual authentication of the two ranks of a new connection.
#pragma once

#include <functional>
#include <optional>
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
  // Reason of a failure on the dialling side.
  enum class Failure : uint8_t {
    kUnproven,    // the connection ended before the other side proved anything: dial again
    kNoListener,  // no process listens at the address
    kRejected,    // the other side belongs to this job, and does not want this connection
    kWrongProof,  // the other side does not know the secret, or belongs to another job
  };

  // Decision about a rank that has proved to know the secret.
  struct Admission {
    std::string rejection;  // reason to reject it; empty: accept it
    uint64_t received = 0;  // bytes of the lane that this rank has received so far
  };
  using Admit = std::function<Admission(const Hello&)>;

  // Make the handshake of the side that has accepted the connection.
  static AuthHandshake accepting(UniqueFd fd, const Credentials& credentials, Admit admit);
  // Make the handshake of the side that opened the connection: from `rank` to `peer`, over a socket
  // that may still be connecting. received: bytes of the lane that this rank has received so far.
  static AuthHandshake dialling(UniqueFd fd, const Credentials& credentials, int rank, int peer,
                                uint32_t lane = 0, uint64_t received = 0,
                                const EngineNumber& engine = {});

  // Continue the handshake until the socket blocks. Call when the socket is readable or writable.
  Outcome advance();

  bool is_dialling() const { return is_dialling_; }
  // Return whether the handshake waits until the socket is writable.
  bool wants_write() const { return state_ == Phase::kConnecting || !outgoing_.empty(); }
  int fd() const { return fd_.get(); }
  UniqueFd take_fd() { return std::move(fd_); }
  // Return the rank that the other side, which dialled, says it is; a stranger can invent it. Empty
  // before its hello has arrived.
  std::optional<uint32_t> claimed_rank() const;
  // Return the rank of the other side. On the accepting side, valid after authentication.
  int peer() const;
  uint32_t lane() const { return hello_.lane; }
  // Return the number of bytes of the lane that the other side has received; valid after
  // authentication.
  uint64_t peer_received() const { return is_dialling_ ? acceptor_received_ : hello_.received; }
  // Return the number of the dialler's engine.
  const EngineNumber& engine() const { return hello_.engine; }
  bool has_connected() const { return state_ != Phase::kConnecting; }
  // Return the keys of the lane; valid after authentication.
  LaneKeys keys() const { return lane_keys(*credentials_, hello_, nonce_, is_dialling_); }
  const std::string& fault() const { return fault_; }  // reason of a failure
  Failure failure() const { return failure_; }
  bool is_silent() const { return received_any_ == false; }  // no byte has arrived
  // Return whether the other side, which dialled, has proved to know the secret.
  bool is_proven() const { return state_ == Phase::kAwaitConfirm; }

 private:
  enum class Phase : uint8_t {
    kConnecting,
    kAwaitNonce,
    kAwaitHello,
    kAwaitProof,
    kAwaitConfirm,
    kAuthenticated
  };

  AuthHandshake(UniqueFd fd, const Credentials& credentials, bool is_dialling);
  Outcome fail(std::string fault);
  bool finish_connect();
  bool flush();
  bool fill();
  bool take_incoming();
  bool take_nonce();
  bool take_hello();
  bool take_proof();
  bool take_confirm();
  void reject(const AnswerBytes& answer);
  std::optional<Protection> protection_behind(const AnswerBytes& rejection) const;

  UniqueFd fd_;
  const Credentials* credentials_;
  Admit admit_;
  bool is_dialling_;
  Phase state_;
  Hello hello_;
  bool has_read_hello_ = false;  // hello of the other side
  Nonce nonce_{};                // nonce of the accepting side
  uint64_t acceptor_received_ = 0;
  std::vector<uint8_t> incoming_;
  size_t expected_ = 0;
  std::vector<uint8_t> outgoing_;
  std::string fault_;
  bool received_any_ = false;
  Failure failure_ = Failure::kUnproven;
};

}  // namespace smdist
