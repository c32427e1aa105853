// SPDX-License-Identifier: Apache-2.0
// Streams of bytes through shared memory.
#include <unistd.h>

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "memory/arena.h"
#include "smdist/errors.h"
#include "transport/ring.h"

namespace smdist {
namespace {

constexpr size_t kArenaBytes = sizeof(RingHead) + sizeof(RingSide);

// One end of a connection: memory of its own, and the ring that goes on to the other's.
struct End {
  End() : arena(Arena::create(kArenaBytes)), ring(side(), {0, sizeof(RingHead)}) {}
  RingSide& side() {
    return *reinterpret_cast<RingSide*>(static_cast<uint8_t*>(arena.span().data) +
                                        sizeof(RingHead));
  }
  RingHead& head() { return *static_cast<RingHead*>(arena.span().data); }
  void attach(const End& other) { ring.attach(Arena::adopt(UniqueFd(::dup(other.arena.fd())))); }

  Arena arena;
  Ring ring;
};

struct Pair {
  Pair() {
    a.attach(b);
    b.attach(a);
  }
  End a, b;
};

size_t write(Ring& ring, const std::vector<uint8_t>& bytes, size_t from, size_t count) {
  const iovec part{const_cast<uint8_t*>(bytes.data()) + from, count};
  return ring.write(&part, 1);
}

size_t read(Ring& ring, std::vector<uint8_t>& into, size_t most) {
  const Span next = ring.peek();
  const size_t bytes = std::min(most, next.bytes);
  const auto* at = static_cast<const uint8_t*>(next.data);
  into.insert(into.end(), at, at + bytes);
  ring.consume(bytes);
  return bytes;
}

void bytes_come_out_as_they_went_in() {
  std::minstd_rand random(3);
  Pair pair;
  std::vector<uint8_t> sent(10 * kRingBytes);
  for (uint8_t& byte : sent) byte = static_cast<uint8_t>(random() >> 7);
  std::vector<uint8_t> received;
  size_t written = 0;
  while (received.size() < sent.size()) {
    const size_t count = std::min(sent.size() - written, size_t{random() % (2 * kRingBytes)});
    const size_t bytes = write(pair.a.ring, sent, written, count);
    written += bytes;
    CHECK_EQ(bytes < count, pair.a.side().wants_room.load() != 0);
    CHECK_EQ(written > received.size(), pair.b.ring.has_news());
    while (received.size() < written && random() % 8 != 0) {
      CHECK(read(pair.b.ring, received, 1 + random() % kRingBytes) > 0);
    }
    CHECK_EQ(bytes < count && written - received.size() < kRingBytes, pair.a.ring.has_news());
    pair.a.ring.forget_room();
  }
  CHECK(sent == received);
}

void only_who_sleeps_is_called_and_once() {
  Pair pair;
  const std::vector<uint8_t> byte(1);
  write(pair.a.ring, byte, 0, 1);
  CHECK(!pair.a.ring.must_call());
  pair.b.head().sleepers.store(1);
  CHECK(pair.a.ring.must_call());
  CHECK(!pair.a.ring.must_call());  // it has not heard yet
  pair.b.ring.hear(1);
  CHECK(pair.a.ring.must_call());
  pair.b.ring.hear(1);
  CHECK(!pair.a.ring.signal());  // it does not wait for that
  pair.b.ring.expect_signals(true);
  CHECK(pair.a.ring.signal());
  CHECK(pair.b.ring.has_news());
  pair.b.ring.take_signals();
  CHECK(pair.b.ring.has_news());  // the byte
  std::vector<uint8_t> received;
  CHECK_EQ(1u, read(pair.b.ring, received, 1));
  CHECK(!pair.b.ring.has_news());
}

template <typename Act>
void expect_fault(const char* text, Act act) {
  try {
    act();
    CHECK(false);
  } catch (const Error& error) {
    CHECK_CONTAINS(text, error.what());
  }
}

void numbers_of_a_neighbour_are_not_trusted() {
  Pair pair;
  const std::vector<uint8_t> byte(1);
  pair.a.side().written.store(kRingBytes + 1);
  expect_fault("wrote more than there was room for", [&] { pair.b.ring.peek(); });
  pair.a.side().read.store(1);
  expect_fault("has read what nobody wrote", [&] { write(pair.b.ring, byte, 0, 1); });
  End end;
  expect_fault("the memory of another rank is too short",
               [&] { end.ring.attach(Arena::create(kArenaBytes - 1)); });
}

void who_is_gone_has_no_news_but_what_it_said_can_be_read() {
  Pair pair;
  const std::vector<uint8_t> byte(1);
  write(pair.a.ring, byte, 0, 1);
  pair.b.ring.detach();
  CHECK(!pair.b.ring.has_news());
  std::vector<uint8_t> received;
  CHECK_EQ(1u, read(pair.b.ring, received, 1));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(bytes_come_out_as_they_went_in);
  RUN(only_who_sleeps_is_called_and_once);
  RUN(numbers_of_a_neighbour_are_not_trusted);
  RUN(who_is_gone_has_no_news_but_what_it_said_can_be_read);
}
