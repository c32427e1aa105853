// SPDX-License-Identifier: Apache-2.0
// Tests of the byte streams through shared memory.
#include "transport/ring_buffer.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "memory/arena.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

constexpr size_t kArenaBytes = sizeof(RingHead) + sizeof(RingSide);

// One end of a connection: its own memory, and the ring buffer attached to the other end's.
struct End {
  End() : arena(Arena::create(kArenaBytes)), ring(side(), {0, sizeof(RingHead)}) {}
  RingSide& side() {
    return *reinterpret_cast<RingSide*>(static_cast<uint8_t*>(arena.span().data) +
                                        sizeof(RingHead));
  }
  RingHead& head() { return *static_cast<RingHead*>(arena.span().data); }
  void attach(const End& other) { ring.attach(Arena::adopt(UniqueFd(::dup(other.arena.fd())))); }

  Arena arena;
  RingBuffer ring;
};

struct Pair {
  Pair() {
    a.attach(b);
    b.attach(a);
  }
  End a, b;
};

size_t write(RingBuffer& ring, const std::vector<uint8_t>& bytes, size_t from, size_t count) {
  const iovec part{const_cast<uint8_t*>(bytes.data()) + from, count};
  return ring.write(&part, 1);
}

size_t read(RingBuffer& ring, std::vector<uint8_t>& into, size_t most) {
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
    CHECK_EQ(bytes < count, pair.a.side().wants_space.load() != 0);
    CHECK_EQ(written > received.size(), pair.b.ring.has_events());
    while (received.size() < written && random() % 8 != 0) {
      CHECK(read(pair.b.ring, received, 1 + random() % kRingBytes) > 0);
    }
    CHECK_EQ(bytes < count && written - received.size() < kRingBytes, pair.a.ring.has_events());
    pair.a.ring.forget_space();
  }
  CHECK(sent == received);
}

void only_sleepers_are_notified_and_once() {
  Pair pair;
  const std::vector<uint8_t> byte(1);
  write(pair.a.ring, byte, 0, 1);
  CHECK(!pair.a.ring.must_notify());
  pair.b.head().sleepers.store(1);
  CHECK(pair.a.ring.must_notify());
  CHECK(!pair.a.ring.must_notify());  // the first notification is not acknowledged yet
  pair.b.ring.acknowledge(1);
  CHECK(pair.a.ring.must_notify());
  pair.b.ring.acknowledge(1);
  CHECK(!pair.a.ring.signal());  // the peer does not expect signals
  pair.b.ring.enable_signals(true);
  CHECK(pair.a.ring.signal());
  CHECK(pair.b.ring.has_events());
  pair.b.ring.take_signals();
  CHECK(pair.b.ring.has_events());  // the byte is still unread
  std::vector<uint8_t> received;
  CHECK_EQ(1u, read(pair.b.ring, received, 1));
  CHECK(!pair.b.ring.has_events());
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

void counters_of_a_peer_are_not_trusted() {
  Pair pair;
  const std::vector<uint8_t> byte(1);
  pair.a.side().written.store(kRingBytes + 1);
  expect_fault("wrote more bytes than its ring buffer holds", [&] { pair.b.ring.peek(); });
  pair.a.side().read.store(1);
  expect_fault("reported that it has read more bytes than this rank wrote",
               [&] { write(pair.b.ring, byte, 0, 1); });
  End end;
  expect_fault("the shared memory of another rank has only",
               [&] { end.ring.attach(Arena::create(kArenaBytes - 1)); });
}

void a_detached_peer_has_no_events_but_its_bytes_can_be_read() {
  Pair pair;
  const std::vector<uint8_t> byte(1);
  write(pair.a.ring, byte, 0, 1);
  pair.b.ring.detach();
  CHECK(!pair.b.ring.has_events());
  std::vector<uint8_t> received;
  CHECK_EQ(1u, read(pair.b.ring, received, 1));
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(bytes_come_out_as_they_went_in);
  RUN(only_sleepers_are_notified_and_once);
  RUN(counters_of_a_peer_are_not_trusted);
  RUN(a_detached_peer_has_no_events_but_its_bytes_can_be_read);
}
