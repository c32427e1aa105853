// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of the authentication handshake: its messages, and both sides with an attacker on
// the path between them, or with an attacker who knows the secret.
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "fuzz_target.h"
#include "transport/auth_handshake.h"

namespace smdist::fuzzing {
namespace {

constexpr int kDialler = 2;
constexpr int kAcceptor = 1;
constexpr uint64_t kReceived = 77;  // bytes of the lane that the acceptor has received

const Credentials& credentials() {
  static const Credentials known{"a secret of the fuzz targets", {1, 2, 3}};
  return known;
}

// Changes some bytes of a message. Returns whether it differs now.
template <typename Bytes>
bool change(FuzzInput& input, Bytes& bytes) {
  const Bytes before = bytes;
  const size_t changes = input.below(4);
  for (size_t i = 0; i < changes; ++i) {
    const size_t at = input.byte() % bytes.size();
    bytes[at] = static_cast<uint8_t>(bytes[at] ^ input.byte());
  }
  return bytes != before;
}

Hello hello_of(FuzzInput& input) {
  Hello hello;
  hello.rank = input.flag() ? kDialler : input.number<uint32_t>();
  hello.wanted = input.flag() ? kAcceptor : input.number<uint32_t>();
  hello.lane = input.flag() ? 0 : input.number<uint32_t>();
  hello.nonce.fill(input.byte());
  hello.received = input.flag() ? 0 : input.number<uint64_t>();
  hello.engine.fill(input.byte());
  return hello;
}

FUZZ_TARGET(hello) {
  Nonce nonce;
  nonce.fill(input.byte());
  const bool is_honest = input.flag();
  const Hello hello = is_honest ? hello_of(input) : Hello{};
  HelloBytes bytes = encode(credentials(), hello, nonce);
  bool is_changed = is_honest && change(input, bytes);
  if (!is_honest) input.fill(bytes);
  Hello decoded;
  const HelloVerdict verdict = verify(credentials(), bytes, nonce, &decoded);
  if (!verdict.fault.empty()) {
    FUZZ_CHECK(!is_honest || is_changed);
    return;
  }
  FUZZ_CHECK(!is_changed);
  FUZZ_CHECK(encode(credentials(), decoded, nonce) == bytes);
}

struct SocketPair {
  explicit SocketPair(int flags = SOCK_NONBLOCK) {
    int ends[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0, ends) == 0);
    ours = UniqueFd(ends[0]);
    theirs = UniqueFd(ends[1]);
  }
  UniqueFd ours;    // the side under test
  UniqueFd theirs;  // the attacker's side
};

// A side of the handshake, and the attacker's end of its connection.
struct Side {
  SocketPair ends;
  std::string sent;     // by the side, as far as the attacker has read it
  std::string arrived;  // at the side
  std::optional<AuthHandshake> handshake;
  AuthHandshake::Outcome outcome = AuthHandshake::Outcome::kWaiting;

  void advance() {
    if (outcome == AuthHandshake::Outcome::kWaiting) outcome = handshake->advance();
  }
  bool is_authenticated() const { return outcome == AuthHandshake::Outcome::kAuthenticated; }
};

void send_to(Side& side, const std::string& bytes) {
  const ssize_t sent =
      ::send(side.ends.theirs.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) side.arrived.append(bytes, 0, static_cast<size_t>(sent));
}

std::string receive_from(Side& side, size_t limit) {
  std::array<char, 192> bytes;
  const ssize_t got = ::recv(side.ends.theirs.get(), bytes.data(), limit, MSG_DONTWAIT);
  const std::string taken(bytes.data(), got > 0 ? static_cast<size_t>(got) : 0);
  side.sent += taken;
  return taken;
}

// Moves some bytes from one side to the other, and may change one of them.
void relay(FuzzInput& input, Side& from, Side& to) {
  std::string bytes = receive_from(from, 1 + input.below(192));
  if (bytes.empty()) return;
  const uint8_t mask = input.flag() ? input.byte() : uint8_t{0};
  char& changed = bytes[input.byte() % bytes.size()];
  changed = static_cast<char>(changed ^ mask);
  send_to(to, bytes);
}

// Checks that a side which is authenticated has received what the other side has sent.
void check_authentic(const Side& side, Side& other) {
  receive_from(other, 192);
  const size_t needed = side.handshake->is_dialling() ? sizeof(Nonce) + kAnswerBytes : kHelloBytes;
  const size_t known = std::min(needed, other.sent.size());
  FUZZ_CHECK(side.arrived.compare(0, known, other.sent, 0, known) == 0);
}

// An attacker without the secret relays the messages of two ranks.
FUZZ_TARGET(handshake_relayed) {
  Side dialler;
  Side acceptor;
  std::string admitted;
  dialler.handshake =
      AuthHandshake::dialling(std::move(dialler.ends.ours), credentials(), kDialler, kAcceptor, 3);
  acceptor.handshake = AuthHandshake::accepting(
      std::move(acceptor.ends.ours), credentials(), [&](const Hello& hello) {
        admitted = std::to_string(hello.rank) + "/" + std::to_string(hello.lane);
        return AuthHandshake::Admission{{}, kReceived};
      });
  for (int step = 0; step < 64 && input.left() > 0; ++step) {
    const size_t action = input.below(8);
    if (action < 3) {
      relay(input, acceptor, dialler);
    } else if (action < 6) {
      relay(input, dialler, acceptor);
    } else if (action == 6) {
      Side& to = input.flag() ? dialler : acceptor;
      send_to(to, std::string(1, static_cast<char>(input.byte())));
    } else {
      (input.flag() ? dialler : acceptor).ends.theirs.reset();
    }
    dialler.advance();
    acceptor.advance();
  }
  if (dialler.is_authenticated()) {
    check_authentic(dialler, acceptor);
    FUZZ_CHECK(dialler.handshake->peer_received() == kReceived);
  }
  if (acceptor.is_authenticated()) check_authentic(acceptor, dialler);
  FUZZ_CHECK(!acceptor.is_authenticated() || admitted == "2/3");
}

// An attacker who knows the secret speaks to an acceptor.
FUZZ_TARGET(handshake_accepting) {
  Side side;
  std::optional<Hello> admitted;
  const bool admits = input.flag();
  const size_t first = input.byte();
  side.handshake =
      AuthHandshake::accepting(std::move(side.ends.ours), credentials(), [&](const Hello& hello) {
        admitted = hello;
        return AuthHandshake::Admission{admits ? "" : "refused", kReceived};
      });
  side.advance();
  Nonce nonce{};
  FUZZ_CHECK(::recv(side.ends.theirs.get(), nonce.data(), nonce.size(), MSG_DONTWAIT) == 32);
  const Hello hello = hello_of(input);
  HelloBytes bytes = encode(credentials(), hello, nonce);
  const bool is_changed = change(input, bytes);
  const size_t cut = std::min(first, bytes.size());
  (void)!::send(side.ends.theirs.get(), bytes.data(), cut, MSG_NOSIGNAL);
  side.advance();
  if (input.flag()) side.ends.theirs.reset();
  if (side.ends.theirs.is_open())
    (void)!::send(side.ends.theirs.get(), bytes.data() + cut, bytes.size() - cut, MSG_NOSIGNAL);
  side.advance();
  FUZZ_CHECK(!is_changed || !admitted);
  FUZZ_CHECK(!side.is_authenticated() || (admits && admitted && admitted->lane == hello.lane));
  if (!side.is_authenticated()) return;
  FUZZ_CHECK(static_cast<uint32_t>(side.handshake->peer()) == hello.rank);
  FUZZ_CHECK(side.handshake->fault().empty());
  FUZZ_CHECK(side.handshake->peer_received() == hello.received);
}

// An attacker who knows the secret is dialled.
FUZZ_TARGET(handshake_dialling) {
  Side side;
  side.handshake =
      AuthHandshake::dialling(std::move(side.ends.ours), credentials(), kDialler, kAcceptor);
  side.advance();
  Nonce nonce{};
  input.fill(nonce);
  (void)!::send(side.ends.theirs.get(), nonce.data(), nonce.size(), MSG_NOSIGNAL);
  side.advance();
  HelloBytes bytes{};
  FUZZ_CHECK(::recv(side.ends.theirs.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) == 128);
  Hello hello;
  FUZZ_CHECK(verify(credentials(), bytes, nonce, &hello).fault.empty());
  AnswerBytes proof = accept_answer(credentials(), hello, nonce, kReceived);
  const bool is_changed = change(input, proof);
  const size_t cut = input.byte() % (proof.size() + 1);
  (void)!::send(side.ends.theirs.get(), proof.data(), cut, MSG_NOSIGNAL);
  side.advance();
  if (input.flag()) side.ends.theirs.reset();
  if (side.ends.theirs.is_open())
    (void)!::send(side.ends.theirs.get(), proof.data() + cut, proof.size() - cut, MSG_NOSIGNAL);
  side.advance();
  FUZZ_CHECK(!is_changed || !side.is_authenticated());
  const bool is_whole = side.ends.theirs.is_open() || cut == proof.size();
  FUZZ_CHECK(is_changed || !is_whole || side.is_authenticated());
}

}  // namespace
}  // namespace smdist::fuzzing
