// SPDX-License-Identifier: Apache-2.0
#include "transport/greeting.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "transport/socket.h"

namespace smdist {

Greeting::Greeting(UniqueFd fd, const Credentials& credentials, bool is_dialling)
    : fd_(std::move(fd)),
      credentials_(&credentials),
      is_dialling_(is_dialling),
      state_(is_dialling ? State::kConnecting : State::kAwaitHello),
      expected_(is_dialling ? sizeof(Nonce) : kHelloBytes) {}

Greeting Greeting::accepting(UniqueFd fd, const Credentials& credentials, Admit admit) {
  Greeting greeting(std::move(fd), credentials, false);
  greeting.admit_ = std::move(admit);
  fill_with_random(greeting.nonce_.data(), greeting.nonce_.size());
  greeting.outgoing_.assign(greeting.nonce_.begin(), greeting.nonce_.end());
  return greeting;
}

Greeting Greeting::dialling(UniqueFd fd, const Credentials& credentials, int rank, int peer,
                            uint32_t lane) {
  Greeting greeting(std::move(fd), credentials, true);
  greeting.hello_.rank = static_cast<uint32_t>(rank);
  greeting.hello_.wanted = static_cast<uint32_t>(peer);
  greeting.hello_.lane = lane;
  fill_with_random(greeting.hello_.nonce.data(), greeting.hello_.nonce.size());
  return greeting;
}

int Greeting::peer() const { return static_cast<int>(is_dialling_ ? hello_.wanted : hello_.rank); }

Greeting::Outcome Greeting::fail(std::string fault) {
  fault_ = std::move(fault);
  return Outcome::kFailed;
}

// Each part returns false if the greeting has failed.
Greeting::Outcome Greeting::advance() {
  if (state_ == State::kConnecting && !finish_connect()) return Outcome::kFailed;
  while (true) {
    if (!flush()) return Outcome::kFailed;
    if (state_ == State::kTrusted) return outgoing_.empty() ? Outcome::kTrusted : Outcome::kWaiting;
    if (!fill()) return Outcome::kFailed;
    if (incoming_.size() < expected_) return Outcome::kWaiting;
    if (!take_incoming()) return Outcome::kFailed;
  }
}

bool Greeting::finish_connect() {
  const int error = connect_error(fd_.get());
  if (error != 0) {
    is_refused_ = error == ECONNREFUSED;
    fail(is_refused_ ? "refused the connection: its process has ended"
                     : std::string("could not be reached: ") + std::strerror(error));
    return false;
  }
  state_ = State::kAwaitNonce;
  return true;
}

bool Greeting::flush() {
  while (!outgoing_.empty()) {
    const ssize_t sent = ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return true;
    if (sent < 0) {
      fail(std::string("broke the greeting off: ") + std::strerror(errno));
      return false;
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
  return true;
}

// Reads what belongs to the greeting and not a byte more.
bool Greeting::fill() {
  while (incoming_.size() < expected_) {
    uint8_t bytes[kHelloBytes];
    const size_t missing = expected_ - incoming_.size();
    const ssize_t got = ::recv(fd_.get(), bytes, std::min(missing, sizeof bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
      fail(got == 0 ? "closed the connection during the greeting (has it another secret?)"
                    : std::string("broke the greeting off: ") + std::strerror(errno));
      return false;
    }
    received_any_ = true;
    incoming_.insert(incoming_.end(), bytes, bytes + got);
  }
  return true;
}

bool Greeting::take_incoming() {
  bool is_good = false;
  switch (state_) {
    case State::kAwaitNonce:
      is_good = take_nonce();
      break;
    case State::kAwaitHello:
      is_good = take_hello();
      break;
    case State::kAwaitProof:
      is_good = take_proof();
      break;
    case State::kConnecting:
    case State::kTrusted:
      break;
  }
  incoming_.clear();
  return is_good;
}

bool Greeting::take_nonce() {
  std::copy(incoming_.begin(), incoming_.end(), nonce_.begin());
  const HelloBytes hello = encode(*credentials_, hello_, nonce_);
  outgoing_.assign(hello.begin(), hello.end());
  expected_ = sizeof(Digest);
  state_ = State::kAwaitProof;
  return true;
}

bool Greeting::take_hello() {
  HelloBytes bytes;
  std::copy(incoming_.begin(), incoming_.end(), bytes.begin());
  fault_ = verify(*credentials_, bytes, nonce_, &hello_);
  if (fault_.empty()) fault_ = admit_(hello_);
  if (!fault_.empty()) return false;
  const Digest digest = accept_proof(*credentials_, hello_, nonce_);
  outgoing_.assign(digest.begin(), digest.end());
  expected_ = 0;
  state_ = State::kTrusted;
  return true;
}

bool Greeting::take_proof() {
  Digest theirs;
  std::copy(incoming_.begin(), incoming_.end(), theirs.begin());
  if (!equal_in_constant_time(accept_proof(*credentials_, hello_, nonce_), theirs)) {
    fail("could not prove that it belongs to this job");
    return false;
  }
  expected_ = 0;
  state_ = State::kTrusted;
  return true;
}

}  // namespace smdist
