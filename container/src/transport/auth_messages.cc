// SPDX-License-Identifier: Apache-2.0
#include "transport/auth_messages.h"

#include <algorithm>

#include "base/little_endian.h"

namespace smdist {
namespace {

constexpr uint32_t kMagic = 0x31444d53;  // "SMD1"
constexpr uint32_t kVersion = 4;
constexpr size_t kSessionAt = 16;
constexpr size_t kNonceAt = 32;
constexpr size_t kProofAt = 64;
constexpr size_t kLaneAt = 96;
constexpr size_t kZerosAt = 100;

template <typename Bytes>
std::string text(const Bytes& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

// Returns the proof of one side. Every part of the hashed message except the role has a fixed
// length, so different inputs give different messages.
Digest proof(const Credentials& credentials, const std::string& role, const Hello& hello,
             const Nonce& acceptor_nonce) {
  uint8_t ranks[12];
  put<uint32_t>(ranks, hello.rank);
  put<uint32_t>(ranks + 4, hello.wanted);
  put<uint32_t>(ranks + 8, hello.lane);
  std::string message = role;
  message.push_back('\0');
  message += text(credentials.session);
  message.append(reinterpret_cast<const char*>(ranks), sizeof ranks);
  message += text(acceptor_nonce) + text(hello.nonce);
  return hmac_sha256(credentials.secret, message);
}

}  // namespace

HelloBytes encode(const Credentials& credentials, const Hello& hello, const Nonce& acceptor_nonce) {
  HelloBytes bytes{};
  put<uint32_t>(&bytes[0], kMagic);
  put<uint32_t>(&bytes[4], kVersion);
  put<uint32_t>(&bytes[8], hello.rank);
  put<uint32_t>(&bytes[12], hello.wanted);
  std::copy(credentials.session.begin(), credentials.session.end(), &bytes[kSessionAt]);
  std::copy(hello.nonce.begin(), hello.nonce.end(), &bytes[kNonceAt]);
  const Digest digest = proof(credentials, "dial", hello, acceptor_nonce);
  std::copy(digest.begin(), digest.end(), &bytes[kProofAt]);
  put<uint32_t>(&bytes[kLaneAt], hello.lane);
  return bytes;
}

std::string verify(const Credentials& credentials, const HelloBytes& bytes,
                   const Nonce& acceptor_nonce, Hello* hello) {
  if (get<uint32_t>(&bytes[0]) != kMagic)
    return "the remote process does not use the smdist protocol";
  const uint32_t version = get<uint32_t>(&bytes[4]);
  if (version != kVersion) {
    return "the remote process uses version " + std::to_string(version) +
           " of the protocol instead of " + std::to_string(kVersion);
  }
  hello->rank = get<uint32_t>(&bytes[8]);
  hello->wanted = get<uint32_t>(&bytes[12]);
  hello->lane = get<uint32_t>(&bytes[kLaneAt]);
  std::copy_n(&bytes[kNonceAt], hello->nonce.size(), hello->nonce.begin());
  Digest theirs;
  std::copy_n(&bytes[kProofAt], theirs.size(), theirs.begin());
  const Digest ours = proof(credentials, "dial", *hello, acceptor_nonce);
  const bool is_session =
      std::equal(credentials.session.begin(), credentials.session.end(), &bytes[kSessionAt]);
  if (!is_session) return "the remote process belongs to another job, or to an earlier start of it";
  if (!equal_in_constant_time(ours, theirs))
    return "the remote process does not know the job's secret";
  const bool are_zeros =
      std::all_of(bytes.begin() + kZerosAt, bytes.end(), [](uint8_t byte) { return byte == 0; });
  return are_zeros ? ""
                   : "the remote process sent fields that this rank does not know; use the same "
                     "version of the smdist runtime on all hosts";
}

Digest accept_proof(const Credentials& credentials, const Hello& hello,
                    const Nonce& acceptor_nonce) {
  return proof(credentials, "accept", hello, acceptor_nonce);
}

Digest reject_proof(const Credentials& credentials, const Hello& hello,
                    const Nonce& acceptor_nonce) {
  return proof(credentials, "reject", hello, acceptor_nonce);
}

}  // namespace smdist
