// SPDX-License-Identifier: Apache-2.0
// Messages of the authentication handshake between two ranks, as pure functions. Nothing else
// from a connection is parsed before it succeeds.
//
//   acceptor                        dialler
//      | --- nonce (32) -------------> |
//      | <-- hello (128) ------------- |   with proof "dial": knows the secret
//      | --- proof "accept" (32) ----> |   so does the acceptor
//
// A proof is HMAC-SHA256(secret, role | session | ranks | lane | both nonces), so it is valid for
// one connection, one direction, one pair of ranks and one job.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/sha256.h"
#include "smdist/options.h"

namespace smdist {

using Nonce = std::array<uint8_t, 32>;
constexpr size_t kHelloBytes = 128;
using HelloBytes = std::array<uint8_t, kHelloBytes>;

// Byte 0: u32 magic, 4: u32 version, 8: u32 rank, 12: u32 wanted, 16: session
// (16 bytes), 32: nonce, 64: proof, 96: u32 lane, 100: zeros.
struct Hello {
  uint32_t rank = 0;    // rank of the dialler
  uint32_t wanted = 0;  // rank that the dialler wants to reach
  uint32_t lane = 0;    // number of the connection between the two ranks
  Nonce nonce{};        // nonce of the dialler
};

// Secret and session that both sides of a connection know. Constant after construction.
struct Credentials {
  std::string secret;
  std::array<uint8_t, 16> session{};
};

HelloBytes encode(const Credentials& credentials, const Hello& hello, const Nonce& acceptor_nonce);

// Fills `hello` and returns the fault of the bytes; empty if they are valid.
std::string verify(const Credentials& credentials, const HelloBytes& bytes,
                   const Nonce& acceptor_nonce, Hello* hello);

// Returns the proof that the acceptor answers with.
Digest accept_proof(const Credentials& credentials, const Hello& hello,
                    const Nonce& acceptor_nonce);

}  // namespace smdist
