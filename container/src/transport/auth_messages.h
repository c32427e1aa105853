// SPDX-License-Identifier: Apache-2.0
// Messages of the authentication handshake between two ranks, as pure functions. Before the
// handshake succeeds, no other data of a connection are parsed.
//
//   acceptor                        dialler
//      | --- nonce (32) -------------> |
//      | <-- hello (128) ------------- |   with proof "dial": the dialler knows the secret
//      | --- answer (40) ------------> |   with proof "accept": the acceptor knows the secret
//      | <-- confirm (1) ------------- |   the dialler has the proof and uses the connection
//
// Without the last message, an acceptor would use a connection that the dialler has given up, and
// dials again. An acceptor that does not want the connection sends a proof "reject" instead of
// "accept"; to a dialler with another protection, a proof "reject protection", whose role also has
// the protection of the acceptor; to a dialler without a valid proof, 40 random bytes.
//
// A lane may be interrupted and continue over another connection. So both sides say how many bytes
// of the lane they have received so far: none at first. The dialler also sends a number of its
// engine, which is random, and the same whenever it dials: nobody else continues its lanes.
//
// A proof is HMAC-SHA256(secret, role | session | ranks | lane | protection | both nonces | engine
// | bytes received), so it is valid only for one connection, one direction, one pair of ranks and
// one job. The keys of a lane are made in the same way, each with a role of its own. Numbers in
// parentheses are bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/sha256.h"
#include "smdist/options.h"
#include "transport/lane_keys.h"

namespace smdist {

using Nonce = std::array<uint8_t, 32>;
constexpr size_t kHelloBytes = 128;
using HelloBytes = std::array<uint8_t, kHelloBytes>;
constexpr size_t kAnswerBytes = 40;
using AnswerBytes = std::array<uint8_t, kAnswerBytes>;  // byte 0: proof, 32: u64 received
using EngineNumber = std::array<uint8_t, 16>;

// Message of the dialler. Byte 0: u32 magic, 4: u32 version, 8: u32 rank, 12: u32 wanted, 16:
// session (16 bytes), 32: nonce, 64: proof, 96: u32 lane, 100: u8 integrity, 101: u8 encrypt, 102:
// zeros, 104: u64 received, 112: engine (16 bytes). Integrity and encrypt are the protection of the
// credentials.
struct Hello {
  uint32_t rank = 0;      // rank of the dialler
  uint32_t wanted = 0;    // rank that the dialler wants to reach
  uint32_t lane = 0;      // number of the connection between the two ranks
  Nonce nonce{};          // nonce of the dialler
  uint64_t received = 0;  // bytes of the lane that the dialler has received
  EngineNumber engine{};  // number of the dialler's engine
};

// Secret, session and protection, which are equal on both sides of a connection.
struct Credentials {
  std::string secret;
  std::array<uint8_t, 16> session{};
  Protection protection{};
};

// Return the hello message of the dialler.
HelloBytes encode(const Credentials& credentials, const Hello& hello, const Nonce& acceptor_nonce);

// Result of the check of a hello message.
struct HelloVerdict {
  std::string fault;       // reason to reject the hello; empty: it is valid
  bool is_read = false;    // the fields of the hello have been read; a stranger can invent them
  bool is_proven = false;  // the dialler knows the secret, and has sent the fields
  Protection protection;   // protection that the dialler uses, if is_read
};

// Decode a hello message into `hello`, and check it.
HelloVerdict verify(const Credentials& credentials, const HelloBytes& bytes,
                    const Nonce& acceptor_nonce, Hello* hello);

// Return the answer of an acceptor that has received so many bytes of the lane.
AnswerBytes accept_answer(const Credentials& credentials, const Hello& hello,
                          const Nonce& acceptor_nonce, uint64_t received);
// Return the number in an answer: bytes of the lane that the acceptor claims to have received.
uint64_t received_in(const AnswerBytes& answer);

// Return the answer of an acceptor that does not want the connection.
AnswerBytes reject_answer(const Credentials& credentials, const Hello& hello,
                          const Nonce& acceptor_nonce);

// Return the answer of an acceptor with the protection `ours` that does not want the connection,
// because the dialler has that of `credentials`. Send it only to a dialler that is proven.
AnswerBytes reject_protection_answer(const Credentials& credentials, Protection ours,
                                     const Hello& hello, const Nonce& acceptor_nonce);

// Return the two options of a protection as text, as users write them.
std::string text_of(const Protection& protection);

// Return the keys of the lane for one of its sides, after both have proved to know the secret.
LaneKeys lane_keys(const Credentials& credentials, const Hello& hello, const Nonce& acceptor_nonce,
                   bool is_dialler);

}  // namespace smdist
