// SPDX-License-Identifier: Apache-2.0
// Fuzz targets of what a process of the same host passes: the descriptor of its memory, and
// counters and bytes in that memory, which it may change at any time.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz_target.h"
#include "smdist/errors.h"
#include "transport/fd_passing.h"
#include "transport/lane.h"
#include "transport/ring_buffer.h"

namespace smdist::fuzzing {
namespace {

constexpr RingBuffer::Offsets kOffsets{0, sizeof(RingHead)};

// Memory of the peer: it is created once, because that takes long.
class PeerMemory final {
 public:
  PeerMemory() : arena_(Arena::create(sizeof(RingHead) + sizeof(RingSide))) { clear(); }

  // Make the counters zero, as in new memory. Bytes stay: they have no meaning.
  void clear() {
    std::memset(arena_.span().data, 0, sizeof(RingHead));
    std::memset(static_cast<void*>(&side()), 0, offsetof(RingSide, bytes));
  }
  Arena share() const { return Arena::adopt(UniqueFd(::fcntl(arena_.fd(), F_DUPFD_CLOEXEC, 0))); }
  int fd() const { return arena_.fd(); }
  RingHead& head() const { return *static_cast<RingHead*>(arena_.span().data); }
  RingSide& side() const {
    return *reinterpret_cast<RingSide*>(static_cast<uint8_t*>(arena_.span().data) + kOffsets.side);
  }

  // Change one counter: to a number of the input, or by a small step, as an honest peer does.
  void change(FuzzInput& input) const {
    std::atomic<uint64_t>* const counters[] = {&side().written, &side().read, &side().acknowledged,
                                               &side().signals};
    std::atomic<uint32_t>* const flags[] = {&side().wants_space, &side().wants_signals,
                                            &head().sleepers};
    const size_t which = input.below(7);
    if (which >= 4) return flags[which - 4]->store(input.byte());
    std::atomic<uint64_t>& counter = *counters[which];
    counter.store(input.flag() ? input.number<uint64_t>()
                               : counter.load() + input.number<uint16_t>());
  }

 private:
  Arena arena_;
};

PeerMemory& peer_memory() {
  static PeerMemory memory;
  memory.clear();
  return memory;
}

RingSide& own_side() {
  static auto* side = new RingSide();
  std::memset(static_cast<void*>(side), 0, offsetof(RingSide, bytes));
  return *side;
}

// Uses the ring buffer as a lane does. The counters of the peer may end the use, but nothing else.
void use(RingBuffer& ring, FuzzInput& input) {
  static std::array<uint8_t, 2 * kRingBytes> data;
  switch (input.below(8)) {
    case 0: {
      const iovec parts[2] = {{data.data(), input.number<uint16_t>()},
                              {data.data(), input.number<uint16_t>() * size_t{2}}};
      const size_t written = ring.write(parts, 2);
      FUZZ_CHECK(written <= parts[0].iov_len + parts[1].iov_len && written <= kRingBytes);
      return;
    }
    case 1: {
      const Span there = ring.peek();
      FUZZ_CHECK(there.bytes <= kRingBytes);
      if (there.bytes > 0) std::memcpy(data.data(), there.data, there.bytes);
      return ring.consume(there.bytes);
    }
    case 2:
      ring.must_notify_of_space();
      return ring.forget_space();
    case 3:
      if (ring.must_notify()) ring.undo_notify();
      return;
    case 4:
      return ring.acknowledge(input.byte());
    case 5:
      ring.signal();
      return ring.take_signals();
    case 6:
      return ring.enable_signals(input.flag());
    case 7:
      ring.has_events();
      return;
  }
}

FUZZ_TARGET(ring_buffer) {
  const PeerMemory& peer = peer_memory();
  RingBuffer ring(own_side(), kOffsets);
  ring.attach(peer.share());
  try {
    for (int step = 0; step < 64 && input.left() > 0; ++step) {
      if (input.flag()) peer.change(input);
      use(ring, input);
    }
  } catch (const PeerError& error) {
    FUZZ_CHECK(std::strlen(error.what()) > 0);
  }
  ring.detach();
  FUZZ_CHECK(!ring.has_events());
}

// Sink that takes messages of up to 255 bytes and refuses others.
class SmallMessages final : public Sink {
 public:
  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes& header) override {
    if (header[1] == 0xff) throw PeerError("is refused");
    place_ = std::make_unique<uint8_t[]>(header[0]);
    return {header[1] == 0xfe ? nullptr : place_.get(), header[0]};
  }
  void on_message(int, const HeaderBytes&) override { place_.reset(); }
  void on_sent(int, uint64_t) override {}
  void on_peer_lost(int, const std::string&) override {}

 private:
  std::unique_ptr<uint8_t[]> place_;
};

// One step of a lane in shared memory, or of its peer.
Lane::Loss step_shared_lane(Lane& lane, const RingBuffer& ring, SmallMessages& sink,
                            const PeerMemory& peer, int socket, FuzzInput& input) {
  switch (input.below(7)) {
    case 0: {
      Message message;
      message.token = 1;
      message.text.assign(input.number<uint16_t>(), 'x');
      lane.send(std::move(message));
      return {};
    }
    case 1: {
      bool would_block = false;
      return lane.write_some(&sink, &would_block);
    }
    case 2:
      return lane.read_some(&sink);
    case 3:
      (void)!::send(socket, "AAAAAAAA", input.below(8), MSG_NOSIGNAL | MSG_DONTWAIT);
      return {};
    case 4:
      peer.change(input);
      return {};
    case 5: {  // bytes that the peer has written
      const size_t at = peer.side().written.load() % kRingBytes;
      const std::vector<uint8_t> bytes = input.bytes(std::min<size_t>(64, kRingBytes - at));
      std::copy(bytes.begin(), bytes.end(), &peer.side().bytes[at]);
      peer.side().written.fetch_add(bytes.size());
      return {};
    }
    default:
      if (input.flag()) lane.signal();
      return ring.has_events() ? lane.read_ring(&sink) : Lane::Loss{};
  }
}

FUZZ_TARGET(shared_memory_lane) {
  const PeerMemory& peer = peer_memory();
  int ends[2];
  FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd theirs(ends[1]);
  RingBuffer ring(own_side(), kOffsets);
  SmallMessages sink;
  Lane lane(1);
  lane.attach_shared_memory(UniqueFd(ends[0]), peer.fd(), ring);
  if (input.byte() != 0xff) FUZZ_CHECK(send_fd(theirs.get(), peer.fd()) == FdTransfer::kDone);
  for (int step = 0; step < 64 && input.left() > 0; ++step) {
    const Lane::Loss loss = step_shared_lane(lane, ring, sink, peer, theirs.get(), input);
    if (loss) {
      FUZZ_CHECK(!loss->empty());
      break;
    }
  }
  lane.lose(&sink);
}

// Sends a message with any number of descriptors, which may be of files of any kind.
void send_descriptors(int socket, const std::vector<int>& fds, const std::vector<uint8_t>& bytes) {
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec part{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  (void)!::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Descriptors of which only the first is memory that may be mapped.
const std::array<int, 6>& descriptors_of_all_kinds() {
  static const std::array<int, 6> fds = [] {
    const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int half_sealed = ::memfd_create("half sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const int empty = ::memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_CHECK(::ftruncate(unsealed, 4096) == 0 && ::ftruncate(half_sealed, 4096) == 0);
    FUZZ_CHECK(::fcntl(half_sealed, F_ADD_SEALS, F_SEAL_GROW) == 0);
    FUZZ_CHECK(::fcntl(empty, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    return std::array<int, 6>{peer_memory().fd(),
                              unsealed,
                              half_sealed,
                              empty,
                              ::open("/dev/null", O_RDWR | O_CLOEXEC),
                              ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  }();
  return fds;
}

// Returns the lowest free descriptor: higher than before if one has leaked.
int lowest_free_fd() {
  const UniqueFd probe(::fcntl(2, F_DUPFD_CLOEXEC, 0));
  return probe.get();
}

FUZZ_TARGET(fd_passing) {
  const std::array<int, 6>& kinds = descriptors_of_all_kinds();
  const int before = lowest_free_fd();
  {
    int ends[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    const UniqueFd ours(ends[0]);
    UniqueFd theirs(ends[1]);
    for (size_t messages = 1 + input.below(3); messages > 0; --messages) {
      std::vector<int> fds;
      for (size_t count = input.below(6); count > 0; --count) fds.push_back(kinds[input.below(6)]);
      send_descriptors(theirs.get(), fds, input.bytes(input.below(4)));
    }
    if (input.flag()) theirs.reset();
    UniqueFd received;
    if (receive_fd(ours.get(), &received) == FdTransfer::kDone) {
      FUZZ_CHECK(received.is_open());
      try {
        const Arena arena = Arena::adopt(std::move(received));
        FUZZ_CHECK(arena.span().bytes == sizeof(RingHead) + sizeof(RingSide));
        RingBuffer ring(own_side(), {kOffsets.head, kOffsets.side + input.byte()});
        ring.attach(peer_memory().share());
      } catch (const SystemError&) {
        FUZZ_CHECK(!received.is_open());
      }
    } else {
      FUZZ_CHECK(!received.is_open());
    }
  }
  FUZZ_CHECK(before == lowest_free_fd());
}

}  // namespace
}  // namespace smdist::fuzzing
