// SPDX-License-Identifier: Apache-2.0
#include "transport/auth_handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "transport/socket.h"

namespace smdist {
namespace {

constexpr uint8_t kConfirm = 1;
constexpr Integrity kIntegrities[] = {Integrity::kOff, Integrity::kCrc32c, Integrity::kMac};

// Compares the proofs of two answers in a time that does not depend on where they differ.
bool is_same_proof(const AnswerBytes& a, const AnswerBytes& b) {
  Digest proofs[2];
  std::copy_n(a.begin(), proofs[0].size(), proofs[0].begin());
  std::copy_n(b.begin(), proofs[1].size(), proofs[1].begin());
  return equal_in_constant_time(proofs[0], proofs[1]);
}

}  // namespace

AuthHandshake::AuthHandshake(UniqueFd fd, const Credentials& credentials, bool is_dialling)
    : fd_(std::move(fd)),
      credentials_(&credentials),
      is_dialling_(is_dialling),
      state_(is_dialling ? Phase::kConnecting : Phase::kAwaitHello),
      expected_(is_dialling ? sizeof(Nonce) : kHelloBytes) {}

AuthHandshake AuthHandshake::accepting(UniqueFd fd, const Credentials& credentials, Admit admit) {
  AuthHandshake handshake(std::move(fd), credentials, false);
  handshake.admit_ = std::move(admit);
  fill_with_random(handshake.nonce_.data(), handshake.nonce_.size());
  handshake.outgoing_.assign(handshake.nonce_.begin(), handshake.nonce_.end());
  return handshake;
}

AuthHandshake AuthHandshake::dialling(UniqueFd fd, const Credentials& credentials, int rank,
                                      int peer, uint32_t lane, uint64_t received,
                                      const EngineNumber& engine) {
  AuthHandshake handshake(std::move(fd), credentials, true);
  handshake.hello_.rank = static_cast<uint32_t>(rank);
  handshake.hello_.wanted = static_cast<uint32_t>(peer);
  handshake.hello_.lane = lane;
  handshake.hello_.received = received;
  handshake.hello_.engine = engine;
  fill_with_random(handshake.hello_.nonce.data(), handshake.hello_.nonce.size());
  return handshake;
}

int AuthHandshake::peer() const {
  return static_cast<int>(is_dialling_ ? hello_.wanted : hello_.rank);
}

std::optional<uint32_t> AuthHandshake::claimed_rank() const {
  return has_read_hello_ ? std::optional<uint32_t>(hello_.rank) : std::nullopt;
}

AuthHandshake::Outcome AuthHandshake::fail(std::string fault) {
  fault_ = std::move(fault);
  return Outcome::kFailed;
}

// Runs the steps of the handshake. Each returns false if the handshake has failed.
AuthHandshake::Outcome AuthHandshake::advance() {
  if (state_ == Phase::kConnecting && !finish_connect()) return Outcome::kFailed;
  while (true) {
    if (!flush()) return Outcome::kFailed;
    if (state_ == Phase::kAuthenticated)
      return outgoing_.empty() ? Outcome::kAuthenticated : Outcome::kWaiting;
    if (!fill()) return Outcome::kFailed;
    if (incoming_.size() < expected_) return Outcome::kWaiting;
    if (!take_incoming()) return Outcome::kFailed;
  }
}

bool AuthHandshake::finish_connect() {
  const int error = connect_error(fd_.get());
  if (error != 0) {
    const bool is_refused = error == ECONNREFUSED;
    if (is_refused) failure_ = Failure::kNoListener;
    fail(is_refused ? "refused the connection: its process has ended"
                    : std::string("could not be reached: ") + std::strerror(error));
    return false;
  }
  state_ = Phase::kAwaitNonce;
  return true;
}

bool AuthHandshake::flush() {
  while (!outgoing_.empty()) {
    const ssize_t sent = ::send(fd_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return true;
    if (sent < 0) {
      fail(std::string("could not finish the authentication handshake: ") + std::strerror(errno));
      return false;
    }
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + sent);
  }
  return true;
}

// Reads the expected bytes of the handshake, and none of the data that may follow.
bool AuthHandshake::fill() {
  while (incoming_.size() < expected_) {
    uint8_t bytes[kHelloBytes];
    const size_t missing = expected_ - incoming_.size();
    const ssize_t got = ::recv(fd_.get(), bytes, std::min(missing, sizeof bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return true;
    if (got <= 0) {
      fail(got == 0 ? "closed the connection during the authentication handshake"
                    : std::string("could not finish the authentication handshake: ") +
                          std::strerror(errno));
      return false;
    }
    received_any_ = true;
    incoming_.insert(incoming_.end(), bytes, bytes + got);
  }
  return true;
}

bool AuthHandshake::take_incoming() {
  bool is_good = false;
  switch (state_) {
    case Phase::kAwaitNonce:
      is_good = take_nonce();
      break;
    case Phase::kAwaitHello:
      is_good = take_hello();
      break;
    case Phase::kAwaitProof:
      is_good = take_proof();
      break;
    case Phase::kAwaitConfirm:
      is_good = take_confirm();
      break;
    case Phase::kConnecting:
    case Phase::kAuthenticated:
      break;
  }
  incoming_.clear();
  return is_good;
}

bool AuthHandshake::take_nonce() {
  std::copy(incoming_.begin(), incoming_.end(), nonce_.begin());
  const HelloBytes hello = encode(*credentials_, hello_, nonce_);
  outgoing_.assign(hello.begin(), hello.end());
  expected_ = kAnswerBytes;
  state_ = Phase::kAwaitProof;
  return true;
}

bool AuthHandshake::take_hello() {
  HelloBytes bytes;
  std::copy(incoming_.begin(), incoming_.end(), bytes.begin());
  const HelloVerdict verdict = verify(*credentials_, bytes, nonce_, &hello_);
  has_read_hello_ = verdict.is_read;
  fault_ = verdict.fault;
  if (!verdict.is_proven) {
    AnswerBytes nothing;  // a process without a proof receives nothing that depends on the secret
    fill_with_random(nothing.data(), nothing.size());
    reject(nothing);
    return false;
  }
  if (!(verdict.protection == credentials_->protection)) {
    Credentials theirs = *credentials_;
    theirs.protection = verdict.protection;
    reject(reject_protection_answer(theirs, credentials_->protection, hello_, nonce_));
    return false;
  }
  if (!fault_.empty()) {
    reject(reject_answer(*credentials_, hello_, nonce_));
    return false;
  }
  const Admission admission = admit_(hello_);
  fault_ = admission.rejection;
  if (!fault_.empty()) {
    reject(reject_answer(*credentials_, hello_, nonce_));
    return false;
  }
  acceptor_received_ = admission.received;
  const AnswerBytes answer = accept_answer(*credentials_, hello_, nonce_, admission.received);
  outgoing_.assign(answer.begin(), answer.end());
  expected_ = sizeof kConfirm;
  state_ = Phase::kAwaitConfirm;
  return true;
}

// Sends the answer that ends the handshake. It fits into the socket's empty buffer.
void AuthHandshake::reject(const AnswerBytes& answer) {
  const std::string fault = fault_;
  outgoing_.assign(answer.begin(), answer.end());
  flush();
  fault_ = fault;
}

// Returns the protection of an acceptor that rejects the connection because this rank has another
// one; empty if the answer is no such rejection.
std::optional<Protection> AuthHandshake::protection_behind(const AnswerBytes& rejection) const {
  for (const Integrity integrity : kIntegrities) {
    for (const bool encrypt : {false, true}) {
      const Protection theirs{integrity, encrypt};
      const AnswerBytes expected = reject_protection_answer(*credentials_, theirs, hello_, nonce_);
      if (is_same_proof(expected, rejection)) return theirs;
    }
  }
  return std::nullopt;
}

bool AuthHandshake::take_proof() {
  AnswerBytes theirs;
  std::copy(incoming_.begin(), incoming_.end(), theirs.begin());
  acceptor_received_ = received_in(theirs);
  if (is_same_proof(reject_answer(*credentials_, hello_, nonce_), theirs)) {
    failure_ = Failure::kRejected;
    fail("rejected the connection; its log has the reason");
    return false;
  }
  if (const std::optional<Protection> others = protection_behind(theirs)) {
    failure_ = Failure::kRejected;
    fail("rejected the connection: it uses " + text_of(*others) + ", and this rank uses " +
         text_of(credentials_->protection) + ". Give both options the same value on all ranks");
    return false;
  }
  const AnswerBytes accepted = accept_answer(*credentials_, hello_, nonce_, acceptor_received_);
  if (!is_same_proof(accepted, theirs)) {
    failure_ = Failure::kWrongProof;
    fail(
        "does not know the job's secret, belongs to another start of the job, or runs another "
        "version of smdist. Set SMDIST_SECRET_FILE or SMDIST_SECRET to the same secret on all "
        "ranks, and start all of them again");
    return false;
  }
  outgoing_ = {kConfirm};
  expected_ = 0;
  state_ = Phase::kAuthenticated;
  return true;
}

bool AuthHandshake::take_confirm() {
  if (incoming_[0] != kConfirm) {
    fail("did not confirm the authentication handshake");
    return false;
  }
  expected_ = 0;
  state_ = Phase::kAuthenticated;
  return true;
}

}  // namespace smdist
