// SPDX-License-Identifier: Apache-2.0
// A connection to an engine on which a test itself sends the messages of the handshake.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <string>

#include "check.h"
#include "transport/auth_messages.h"
#include "transport/socket.h"

namespace smdist::testing {

// Secret and session of the engines of Cluster.
inline const Credentials kCredentials{"a secret between tests", {42}};

inline Hello hello_of(uint32_t rank, uint32_t wanted, uint32_t lane = 0) {
  Hello hello;
  hello.rank = rank;
  hello.wanted = wanted;
  hello.lane = lane;
  hello.nonce.fill(7);
  return hello;
}

class Stranger final {
 public:
  // Answer of the engine to the hello.
  enum class Answer : uint8_t { kAccepted, kRejected, kWrongProof, kNothing };

  explicit Stranger(const Endpoint& endpoint) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const Address address(endpoint.host, endpoint.port);
    CHECK(::connect(fd_.get(), address.raw(), address.bytes) == 0);
  }

  int fd() const { return fd_.get(); }
  void say(const void* data, size_t bytes) { (void)!::send(fd_.get(), data, bytes, MSG_NOSIGNAL); }
  const Nonce& hear_nonce() {
    CHECK_EQ(32, ::recv(fd_.get(), nonce_.data(), nonce_.size(), MSG_WAITALL));
    return nonce_;
  }
  void greet(const Credentials& credentials, const Hello& hello) {
    hear_nonce();
    say_hello(credentials, hello);
  }
  void say_hello(const Credentials& credentials, const Hello& hello) {
    hello_ = hello;
    const HelloBytes bytes = encode(credentials, hello, nonce_);
    say(bytes.data(), bytes.size());
  }
  Answer answer() {
    AnswerBytes answer;
    const ssize_t got = ::recv(fd_.get(), answer.data(), answer.size(), MSG_WAITALL);
    if (got != static_cast<ssize_t>(answer.size())) return Answer::kNothing;
    received_ = received_in(answer);
    if (answer == accept_answer(kCredentials, hello_, nonce_, received_)) return Answer::kAccepted;
    if (answer == reject_answer(kCredentials, hello_, nonce_)) return Answer::kRejected;
    return Answer::kWrongProof;
  }
  // Returns the bytes of the lane that the engine has received, as its answer says.
  uint64_t received() const { return received_; }
  void confirm() { say("\1", 1); }
  // Opens the connection as a member of the job.
  void enter(const Hello& hello) {
    greet(kCredentials, hello);
    CHECK(answer() == Answer::kAccepted);
    confirm();
  }
  // Waits until the other side closes. Returns whether it has not accepted the connection.
  bool is_dropped() {
    const bool is_accepted = answer() == Answer::kAccepted;
    char bytes[256];
    while (::recv(fd_.get(), bytes, sizeof bytes, 0) > 0) {
    }
    return !is_accepted;
  }

 private:
  UniqueFd fd_;
  Hello hello_;
  Nonce nonce_{};
  uint64_t received_ = 0;
};

}  // namespace smdist::testing
