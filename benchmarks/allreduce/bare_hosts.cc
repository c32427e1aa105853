// SPDX-License-Identifier: Apache-2.0
// Minimal all-reduces of float32 across hosts. They only send the bytes and compute the sums that
// any all-reduce over TCP with equal shards needs, so their time is a lower bound, which depends on
// the kernel. They handle no failures and do not check sizes.
//
// A buffer has one part per rank of a host, and each part has one shard per host. Each rank first
// sums its part over the buffers of its host, in shared memory. Then the ranks with the same part
// on all hosts exchange it: each sends every other one that rank's shard of the part, sums its own
// shard when the shares of others arrive, and sends the sum back. Finally each rank copies its part
// to the other ranks of the host, in shared memory. Shares and sums have separate connections, so
// data of each connection are in the order of the all-reduces, and several all-reduces may be in
// flight.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "bare_mesh.h"
#include "bare_sum.h"

namespace bare {

constexpr size_t kChunkBytes = 256 << 10;
constexpr size_t kSliceBytes = 16 << 10;  // summed in one call
constexpr int kPort = 29800;
// Number of slots in shared memory, and so of all-reduces by which a rank may be ahead of the
// others of its host. It is large because DDP starts all sums together until it knows the order of
// gradients.
constexpr size_t kSlots = 8;
constexpr size_t kSlotBytes = 32 << 20;

enum Notification : char { kGiven = 'g', kResult = 'r' };  // to the ranks of the same host

struct Flow {
  int fd = -1;
  uint64_t sending = 0;  // number of the sum that is being sent, and received
  uint64_t receiving = 0;
};

struct HostPeer {
  int fd = -1;
  uint64_t given = 0;  // number of notifications received
  uint64_t results = 0;
};

class MultiHostAllReduce {
 public:
  MultiHostAllReduce(const Location& location, const char* const* addresses, size_t window)
      : location_(location), host_peers_(location.seats) {
    for (const Kind kind : {kShares, kSums}) connect_hosts(kind, addresses, window);
    if (location.seats > 1) connect_host_peers(addresses[location.host]);
  }

  // Runs one sum in the caller's thread.
  void sum(float* data, size_t count) {
    begin({data, count, 0});
    while (!sums_.empty()) move();
  }

  // Starts a thread that runs all submitted sums and calls `done` with the token of each.
  void start(void (*done)(int64_t)) {
    done_ = done;
    wake_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    std::thread([this] {
      while (true) move();
    }).detach();
  }

  void submit(float* data, size_t count, int64_t token) {
    const std::lock_guard<std::mutex> lock(mutex_);
    submitted_.push_back({data, count, token});
    const uint64_t one = 1;
    require(::write(wake_, &one, sizeof one) == sizeof one, "waking");
  }

 private:
  struct Submission {
    float* data;
    size_t count;
    int64_t token;
  };

  void connect_hosts(Kind kind, const char* const* addresses, size_t window) {
    const int port = kPort + 2 * static_cast<int>(location_.seat) + kind;
    std::vector<Address> everyone;
    for (size_t i = 0; i < location_.hosts; ++i) everyone.push_back(on_network(addresses[i], port));
    for (const int fd : mesh(everyone, location_.host, window)) flows_[kind].push_back({fd});
  }

  void connect_host_peers(const char* host) {
    std::vector<Address> everyone;
    for (size_t i = 0; i < location_.seats; ++i) {
      everyone.push_back(on_host("smdist-bare-" + std::to_string(i)));
    }
    const std::string path = std::string("/dev/shm/smdist-bare-") + host;
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const size_t bytes = location_.seats * 2 * kSlots * kSlotBytes;
    require(fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes)) == 0, path.c_str());
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    require(memory != MAP_FAILED, "mapping");
    memory_ = static_cast<std::byte*>(memory);
    const std::vector<int> sockets = mesh(everyone, location_.seat, 0);
    for (size_t seat = 0; seat < location_.seats; ++seat) host_peers_[seat].fd = sockets[seat];
    ::close(fd);
    ::unlink(path.c_str());  // all ranks are connected, so all have it open
  }

  // Returns the slot with the input of the rank at a seat, or with the result of its part.
  std::byte* slot(size_t seat, Notification what, uint64_t number) const {
    const size_t kind = what == kGiven ? 0 : 1;
    return memory_ + ((2 * seat + kind) * kSlots + number % kSlots) * kSlotBytes;
  }

  void notify_host_peers(Notification what) {
    const char note = what;
    for (const HostPeer& each : host_peers_) {
      if (each.fd >= 0) require(::send(each.fd, &note, 1, 0) == 1, "notifying a rank of this host");
    }
  }

  Range part_of(const Sum& sum, size_t seat) const { return cut(sum.whole, seat, location_.seats); }
  Range shard_of(const Sum& sum, size_t host) const { return cut(sum.part, host, location_.hosts); }

  void begin(const Submission& what) {
    const Range whole{0, what.count * sizeof(float)};
    require(location_.seats == 1 || whole.bytes <= kSlotBytes, "the buffer is too long");
    Sum sum;
    sum.data = reinterpret_cast<std::byte*>(what.data);
    sum.whole = whole;
    sum.number = next_++;
    sum.token = what.token;
    sum.part = part_of(sum, location_.seat);
    sum.with.resize(location_.hosts);
    for (HostTransfer& each : sum.with) {
      each.share = spare();
      each.share.resize(shard_of(sum, location_.host).bytes);
    }
    for (size_t seat = 0; seat < location_.seats; ++seat) {
      const Range part = part_of(sum, seat);
      if (seat == location_.seat) continue;
      std::memcpy(slot(location_.seat, kGiven, sum.number) + part.at, sum.data + part.at,
                  part.bytes);
    }
    sums_.push_back(std::move(sum));
    notify_host_peers(kGiven);
    advance();
  }

  std::vector<std::byte> spare() {
    if (spares_.empty()) return {};
    std::vector<std::byte> memory = std::move(spares_.back());
    spares_.pop_back();
    return memory;
  }

  Sum* at(uint64_t number) {
    const bool is_there = number >= first_ && number - first_ < sums_.size();
    return is_there ? &sums_[number - first_] : nullptr;
  }

  // Returns the range that may be sent to a host now.
  Range ready(Kind kind, size_t host) {
    const Flow& flow = flows_[kind][host];
    const Sum* sum = at(flow.sending);
    if (sum == nullptr || !sum->is_combined) return {0, 0};
    const Range shard = shard_of(*sum, kind == kShares ? host : location_.host);
    const size_t sent = sum->with[host].sent[kind];
    return {shard.at + sent, (kind == kShares ? shard.bytes : sum->summed) - sent};
  }

  // Waits until a socket is ready or a sum is submitted, and makes progress.
  void move() {
    std::vector<pollfd> sockets;
    std::vector<std::pair<Kind, size_t>> flows;
    for (size_t step = 1; step < location_.hosts; ++step) {
      const size_t host = (location_.host + step) % location_.hosts;
      for (const Kind kind : {kSums, kShares}) {
        const int in = at(flows_[kind][host].receiving) != nullptr ? POLLIN : 0;
        const int out = ready(kind, host).bytes > 0 ? POLLOUT : 0;
        sockets.push_back({flows_[kind][host].fd, static_cast<short>(in | out), 0});
        flows.push_back({kind, host});
      }
    }
    for (const HostPeer& each : host_peers_) sockets.push_back({each.fd, POLLIN, 0});
    sockets.push_back({wake_, POLLIN, 0});
    require(::poll(sockets.data(), sockets.size(), -1) > 0, "waiting");
    for (size_t i = 0; i < flows.size(); ++i) {
      if ((sockets[i].revents & POLLOUT) != 0) send(flows[i].first, flows[i].second);
      if ((sockets[i].revents & ~POLLOUT) != 0) receive(flows[i].first, flows[i].second);
    }
    for (size_t seat = 0; seat < location_.seats; ++seat) {
      if (sockets[flows.size() + seat].revents != 0) read_notifications(host_peers_[seat]);
    }
    if (sockets.back().revents != 0) take_submitted();
    advance();
  }

  void send(Kind kind, size_t host) {
    Flow& flow = flows_[kind][host];
    const Range range = ready(kind, host);
    Sum& sum = *at(flow.sending);
    const size_t most = std::min(range.bytes, kChunkBytes);
    const ssize_t sent = ::send(flow.fd, sum.data + range.at, most, MSG_DONTWAIT | MSG_NOSIGNAL);
    require(sent > 0 || errno == EAGAIN, "sending");
    size_t& so_far = sum.with[host].sent[kind];
    if (sent > 0) so_far += static_cast<size_t>(sent);
    if (so_far == shard_of(sum, kind == kShares ? host : location_.host).bytes) ++flow.sending;
  }

  void receive(Kind kind, size_t host) {
    Flow& flow = flows_[kind][host];
    Sum& sum = *at(flow.receiving);
    HostTransfer& with = sum.with[host];
    const Range shard = shard_of(sum, kind == kShares ? location_.host : host);
    std::byte* to = kind == kShares ? with.share.data() : sum.data + shard.at;
    size_t& got = with.got[kind];
    const ssize_t more = ::recv(flow.fd, to + got, shard.bytes - got, MSG_DONTWAIT);
    require(more > 0 || (more < 0 && errno == EAGAIN), "receiving");
    if (more > 0) got += static_cast<size_t>(more);
    if (got == shard.bytes) ++flow.receiving;
  }

  static void read_notifications(HostPeer& peer) {
    char notes[64];
    const ssize_t got = ::recv(peer.fd, notes, sizeof notes, MSG_DONTWAIT);
    require(got > 0, "a rank of this host has ended");
    const auto given = static_cast<uint64_t>(std::count(notes, notes + got, kGiven));
    peer.given += given;
    peer.results += static_cast<uint64_t>(got) - given;
  }

  void take_submitted() {
    uint64_t count = 0;
    require(::read(wake_, &count, sizeof count) == sizeof count, "being woken");
    std::vector<Submission> taken;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      taken.swap(submitted_);
    }
    for (const Submission& each : taken) begin(each);
  }

  void advance() {
    for (Sum& sum : sums_) {
      if (!sum.is_combined) combine(sum);
      if (sum.is_combined && !sum.is_returned) add_shares(sum);
      take_results(sum);
    }
    while (!sums_.empty() && is_over(sums_.front())) {
      const int64_t token = sums_.front().token;
      for (HostTransfer& each : sums_.front().with) spares_.push_back(std::move(each.share));
      sums_.pop_front();
      ++first_;
      if (done_ != nullptr) done_(token);
    }
  }

  void combine(Sum& sum) {
    for (size_t seat = 0; seat < location_.seats; ++seat) {
      if (seat != location_.seat && host_peers_[seat].given <= sum.number) return;
    }
    for (size_t seat = 0; seat < location_.seats; ++seat) {
      if (seat == location_.seat) continue;
      add(sum.data + sum.part.at, slot(seat, kGiven, sum.number) + sum.part.at, sum.part.bytes);
    }
    sum.is_combined = true;
  }

  void add_shares(Sum& sum) {
    const Range shard = shard_of(sum, location_.host);
    size_t there = shard.bytes;
    for (size_t host = 0; host < location_.hosts; ++host) {
      if (host != location_.host) there = std::min(there, sum.with[host].got[kShares]);
    }
    while (sum.summed < there && (there == shard.bytes || there - sum.summed >= kSliceBytes)) {
      const size_t bytes = std::min(kSliceBytes, there - sum.summed);
      for (size_t step = 1; step < location_.hosts; ++step) {
        const HostTransfer& with = sum.with[(location_.host + step) % location_.hosts];
        add(sum.data + shard.at + sum.summed, with.share.data() + sum.summed, bytes);
      }
      sum.summed += bytes;
    }
    if (sum.summed == shard.bytes) return_part(sum);
  }

  // Shares a finished part with the ranks of this host, once all its sums have arrived.
  void return_part(Sum& sum) {
    for (size_t host = 0; host < location_.hosts; ++host) {
      const size_t bytes = shard_of(sum, host).bytes;
      if (host != location_.host && sum.with[host].got[kSums] < bytes) return;
    }
    sum.is_returned = true;
    if (location_.seats == 1) return;
    std::memcpy(slot(location_.seat, kResult, sum.number), sum.data + sum.part.at, sum.part.bytes);
    notify_host_peers(kResult);
  }

  void take_results(Sum& sum) {
    for (size_t seat = 0; seat < location_.seats; ++seat) {
      const uint64_t bit = uint64_t{1} << seat;
      const bool is_new = (sum.results & bit) == 0 && host_peers_[seat].results > sum.number;
      if (seat == location_.seat || !is_new) continue;
      const Range part = part_of(sum, seat);
      std::memcpy(sum.data + part.at, slot(seat, kResult, sum.number), part.bytes);
      sum.results |= bit;
    }
  }

  bool is_over(const Sum& sum) const {
    const uint64_t all = (uint64_t{1} << location_.seats) - 1;
    if (!sum.is_returned || (sum.results | uint64_t{1} << location_.seat) != all) return false;
    for (size_t host = 0; host < location_.hosts; ++host) {
      const HostTransfer& with = sum.with[host];
      if (host == location_.host) continue;
      if (with.sent[kShares] < shard_of(sum, host).bytes) return false;
      if (with.sent[kSums] < shard_of(sum, location_.host).bytes) return false;
    }
    return true;
  }

  const Location location_;
  std::vector<Flow> flows_[2];  // by kind and host
  std::vector<HostPeer> host_peers_;
  std::byte* memory_ = nullptr;  // shared with the ranks of this host
  std::deque<Sum> sums_;         // sums in flight
  uint64_t first_ = 0;           // number of the first sum in flight
  uint64_t next_ = 0;
  std::vector<std::vector<std::byte>> spares_;
  void (*done_)(int64_t) = nullptr;
  int wake_ = -1;
  std::mutex mutex_;
  std::vector<Submission> submitted_;
};

}  // namespace bare

// hosts: numeric addresses of all hosts, in order. Returns when all ranks are connected.
extern "C" void* bare_connect(const char* const* hosts, const uint64_t (&place)[4],
                              uint64_t window) {
  return new bare::MultiHostAllReduce({place[0], place[1], place[2], place[3]}, hosts, window);
}

extern "C" void bare_sum_hosts(void* bare, float* data, uint64_t count) {
  static_cast<bare::MultiHostAllReduce*>(bare)->sum(data, count);
}

extern "C" void bare_start(void* bare, void (*done)(int64_t)) {
  static_cast<bare::MultiHostAllReduce*>(bare)->start(done);
}

extern "C" void bare_submit(void* bare, float* data, uint64_t count, int64_t token) {
  static_cast<bare::MultiHostAllReduce*>(bare)->submit(data, count, token);
}
