// SPDX-License-Identifier: Apache-2.0
#include "transport/auth_messages.h"

#include <algorithm>

#include "base/little_endian.h"

namespace smdist {
namespace {

constexpr uint32_t kMagic = 0x31444d53;  // "SMD1"
constexpr uint32_t kVersion = 5;
constexpr size_t kSessionAt = 16;
constexpr size_t kNonceAt = 32;
constexpr size_t kProofAt = 64;
constexpr size_t kLaneAt = 96;
constexpr size_t kIntegrityAt = 100;
constexpr size_t kEncryptAt = 101;
constexpr size_t kZerosAt = 102;
constexpr size_t kReceivedAt = 104;
constexpr size_t kEngineAt = 112;
constexpr size_t kAnswerReceivedAt = 32;

template <typename Bytes>
std::string text(const Bytes& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

// Returns the proof of one side, or a key. Every part of the hashed message except the role has a
// fixed length, so different inputs give different messages.
Digest proof(const Credentials& credentials, const std::string& role, const Hello& hello,
             const Nonce& acceptor_nonce, uint64_t acceptor_received = 0) {
  uint8_t received[16];
  put<uint64_t>(received, hello.received);
  put<uint64_t>(received + 8, acceptor_received);
  uint8_t ranks[12];
  put<uint32_t>(ranks, hello.rank);
  put<uint32_t>(ranks + 4, hello.wanted);
  put<uint32_t>(ranks + 8, hello.lane);
  std::string message = role;
  message.push_back('\0');
  message += text(credentials.session);
  message.append(reinterpret_cast<const char*>(ranks), sizeof ranks);
  message.push_back(static_cast<char>(credentials.protection.integrity));
  message.push_back(static_cast<char>(credentials.protection.encrypt));
  message += text(acceptor_nonce) + text(hello.nonce) + text(hello.engine);
  message.append(reinterpret_cast<const char*>(received), sizeof received);
  return hmac_sha256(credentials.secret, message);
}

AnswerBytes answer_of(const Digest& proof, uint64_t received) {
  AnswerBytes answer{};
  std::copy(proof.begin(), proof.end(), answer.begin());
  put<uint64_t>(&answer[kAnswerReceivedAt], received);
  return answer;
}

}  // namespace

std::string text_of(const Protection& protection) {
  const bool is_known = protection.integrity <= Integrity::kMac;
  return std::string("integrity='") + (is_known ? name_of(protection.integrity) : "unknown") +
         "' and encrypt=" + (protection.encrypt ? "True" : "False");
}

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
  bytes[kIntegrityAt] = static_cast<uint8_t>(credentials.protection.integrity);
  bytes[kEncryptAt] = static_cast<uint8_t>(credentials.protection.encrypt);
  put<uint64_t>(&bytes[kReceivedAt], hello.received);
  std::copy(hello.engine.begin(), hello.engine.end(), &bytes[kEngineAt]);
  return bytes;
}

HelloVerdict verify(const Credentials& credentials, const HelloBytes& bytes,
                    const Nonce& acceptor_nonce, Hello* hello) {
  HelloVerdict verdict;
  if (get<uint32_t>(&bytes[0]) != kMagic) {
    verdict.fault = "the remote process does not use the smdist protocol";
    return verdict;
  }
  const uint32_t version = get<uint32_t>(&bytes[4]);
  if (version != kVersion) {
    verdict.fault = "the remote process uses version " + std::to_string(version) +
                    " of the protocol instead of " + std::to_string(kVersion);
    return verdict;
  }
  verdict.is_read = true;
  hello->rank = get<uint32_t>(&bytes[8]);
  hello->wanted = get<uint32_t>(&bytes[12]);
  hello->lane = get<uint32_t>(&bytes[kLaneAt]);
  std::copy_n(&bytes[kNonceAt], hello->nonce.size(), hello->nonce.begin());
  hello->received = get<uint64_t>(&bytes[kReceivedAt]);
  std::copy_n(&bytes[kEngineAt], hello->engine.size(), hello->engine.begin());
  Digest theirs;
  std::copy_n(&bytes[kProofAt], theirs.size(), theirs.begin());
  const uint8_t encrypt = bytes[kEncryptAt];
  verdict.protection = {static_cast<Integrity>(bytes[kIntegrityAt]), encrypt != 0};
  Credentials theirs_claimed = credentials;
  theirs_claimed.protection = verdict.protection;
  const Digest ours = proof(theirs_claimed, "dial", *hello, acceptor_nonce);
  const bool is_session =
      std::equal(credentials.session.begin(), credentials.session.end(), &bytes[kSessionAt]);
  const bool are_zeros = std::all_of(bytes.begin() + kZerosAt, bytes.begin() + kReceivedAt,
                                     [](uint8_t byte) { return byte == 0; });
  verdict.is_proven = is_session && equal_in_constant_time(ours, theirs);
  if (!is_session) {
    verdict.fault = "the remote process belongs to another job, or to an earlier start of it";
  } else if (!verdict.is_proven) {
    verdict.fault =
        "the remote process does not know the job's secret; set SMDIST_SECRET_FILE or "
        "SMDIST_SECRET to the same secret on all ranks";
  } else if (!(verdict.protection == credentials.protection)) {
    verdict.fault = "the remote process uses " + text_of(verdict.protection) + " and this rank " +
                    text_of(credentials.protection) +
                    "; give both options the same value on all ranks";
  } else if (encrypt > 1 || !are_zeros) {
    verdict.fault =
        "the remote process sent fields that this rank does not know; use the same version of the "
        "smdist runtime on all hosts";
  }
  return verdict;
}

AnswerBytes accept_answer(const Credentials& credentials, const Hello& hello,
                          const Nonce& acceptor_nonce, uint64_t received) {
  return answer_of(proof(credentials, "accept", hello, acceptor_nonce, received), received);
}

uint64_t received_in(const AnswerBytes& answer) {
  return get<uint64_t>(&answer[kAnswerReceivedAt]);
}

LaneKeys lane_keys(const Credentials& credentials, const Hello& hello, const Nonce& acceptor_nonce,
                   bool is_dialler) {
  const auto key = [&](const char* role) {
    return proof(credentials, role, hello, acceptor_nonce);
  };
  const Digest of_dialler = key("frames of the dialler");
  const Digest of_acceptor = key("frames of the acceptor");
  return {is_dialler ? of_dialler : of_acceptor, is_dialler ? of_acceptor : of_dialler, key("tls"),
          is_dialler};
}

AnswerBytes reject_answer(const Credentials& credentials, const Hello& hello,
                          const Nonce& acceptor_nonce) {
  return answer_of(proof(credentials, "reject", hello, acceptor_nonce), 0);
}

AnswerBytes reject_protection_answer(const Credentials& credentials, Protection ours,
                                     const Hello& hello, const Nonce& acceptor_nonce) {
  return answer_of(proof(credentials, "reject protection: " + text_of(ours), hello, acceptor_nonce),
                   0);
}

}  // namespace smdist
