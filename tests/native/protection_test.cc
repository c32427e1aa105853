// SPDX-License-Identifier: Apache-2.0
// Two engines on two hosts with somebody between them who reads and changes their bytes.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/little_endian.h"
#include "check.h"
#include "cluster.h"
#include "messaging/frame.h"
#include "proxy.h"
#include "transport/auth_messages.h"
#include "transport/openssl.h"

namespace smdist {
namespace {

using testing::Cluster;
using testing::Network;
using testing::Result;
using testing::start;
using testing::sum_of;
using testing::Tamper;
using testing::TamperedPair;
using testing::text_of;
using Floats = std::vector<float>;

constexpr Protection kOff{Integrity::kOff, false};
constexpr Protection kCrc32c{Integrity::kCrc32c, false};
constexpr Protection kMac{Integrity::kMac, false};
constexpr Protection kTls{Integrity::kOff, true};
constexpr Protection kAll[] = {kOff, kCrc32c, kMac, kTls, {Integrity::kMac, true}};
constexpr size_t kHandshakeBytes = kHelloBytes + 1;  // hello and confirm of the dialler
constexpr size_t kCount = 100'000;                   // long enough for frames of data

// Flips one bit of the byte at a position of what rank 1 sends to rank 0.
Tamper flip_at(size_t position) {
  auto passed = std::make_shared<size_t>(0);
  return [=](const std::string& bytes) {
    std::string changed = bytes;
    if (position >= *passed && position - *passed < bytes.size()) {
      changed[position - *passed] = static_cast<char>(changed[position - *passed] ^ 16);
    }
    *passed += bytes.size();
    return changed;
  };
}

void expect_fault_of_rank_1(const std::exception_ptr& error, const std::string& part) {
  CHECK(error != nullptr);
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& fault) {
    CHECK(fault.fault() != nullptr);
    CHECK_EQ(static_cast<int>(FaultKind::kPeer), static_cast<int>(fault.fault()->kind));
    CHECK_EQ(1, fault.fault()->culprit);
    CHECK_CONTAINS(part, fault.what());
  }
}

void sums_are_the_same_with_every_protection() {
  for (const Protection& protection : kAll) {
    TamperedPair pair(protection, nullptr);
    for (int round = 0; round < 3; ++round) {
      Floats first(kCount, 1);
      Floats second(kCount, 2);
      for (const auto& error : pair.sum(first, second)) CHECK(text_of(error).empty());
      CHECK(first == Floats(kCount, 3) && second == first);
    }
  }
}

// Without a check only changes of headers are found, and none of the numbers.
void without_a_check_a_changed_number_is_summed() {
  Floats first(kCount, 1);
  Floats second(kCount, 2);
  TamperedPair pair(kOff, flip_at(100'000));
  for (const auto& error : pair.sum(first, second)) CHECK(text_of(error).empty());
  CHECK(first != Floats(kCount, 3));
}

// Both ranks get the fault: the one whose bytes were changed hears of it from the other.
void a_changed_bit_ends_the_job_on_both_ranks() {
  for (const Protection& protection : {kCrc32c, kMac}) {
    for (const size_t position :
         {kHandshakeBytes + 41, kHandshakeBytes + 50, size_t{100'000}, size_t{150'001}}) {
      Floats first(kCount, 1);
      Floats second(kCount, 2);
      TamperedPair pair(protection, flip_at(position));
      for (const auto& error : pair.sum(first, second)) {
        expect_fault_of_rank_1(error, "rank 1 on algo-2 sent a frame with a wrong");
      }
    }
  }
}

void a_changed_bit_ends_an_encrypted_job() {
  for (const size_t position : {100'000, 150'001}) {
    Floats first(kCount, 1);
    Floats second(kCount, 2);
    TamperedPair pair(kTls, flip_at(position));
    const auto errors = pair.sum(first, second);
    expect_fault_of_rank_1(errors[0], "rank 1 on algo-2 sent TLS records that this rank refuses");
    CHECK_CONTAINS("PeerError", text_of(errors[1]));
  }
}

// Drops, repeats or exchanges whole frames of data from rank 1.
class FrameTamper final {
 public:
  enum class Deed { kDrop, kRepeat, kExchange };
  FrameTamper(Deed deed, size_t tag_bytes) : deed_(deed), tag_bytes_(tag_bytes) {}

  std::string operator()(const std::string& bytes) {
    waiting_ += bytes;
    std::string out;
    if (const size_t left = kHandshakeBytes - handshake_; left > 0) {
      out = take(std::min(left, waiting_.size()));
      handshake_ += out.size();
    }
    while (waiting_.size() >= kHeaderBytes) {
      const auto* header = reinterpret_cast<const uint8_t*>(waiting_.data());
      const uint64_t length = get<uint64_t>(header + 40);
      const size_t whole = kHeaderBytes + tag_bytes_ + length + (length > 0 ? tag_bytes_ : 0);
      if (waiting_.size() < whole) break;
      const bool is_data = header[5] == static_cast<uint8_t>(FrameType::kData);
      const std::string frame = take(whole);
      out += is_data ? changed(frame, ++num_data_) : frame;
    }
    return out;
  }

 private:
  std::string take(size_t bytes) {
    std::string taken = waiting_.substr(0, bytes);
    waiting_.erase(0, bytes);
    return taken;
  }
  std::string changed(const std::string& frame, int number) {
    switch (deed_) {
      case Deed::kDrop:
        return number == 1 ? "" : frame;
      case Deed::kRepeat:
        return number == 1 ? frame + frame : frame;
      case Deed::kExchange:
        if (number == 1) return kept_ = frame, "";
        return number == 2 ? frame + kept_ : frame;
    }
    return frame;
  }

  const Deed deed_;
  const size_t tag_bytes_;
  size_t handshake_ = 0;  // bytes of the handshake that have passed
  int num_data_ = 0;
  std::string waiting_;
  std::string kept_;
};

void dropped_repeated_and_exchanged_frames_end_the_job() {
  using Deed = FrameTamper::Deed;
  for (const Protection& protection : {kCrc32c, kMac}) {
    const size_t tag = protection.integrity == Integrity::kMac ? 16 : 4;
    for (const Deed deed : {Deed::kDrop, Deed::kRepeat, Deed::kExchange}) {
      Floats first(300'000, 1);
      Floats second(300'000, 2);
      auto tamper = std::make_shared<FrameTamper>(deed, tag);
      TamperedPair pair(protection,
                        [tamper](const std::string& bytes) { return (*tamper)(bytes); });
      for (const auto& error : pair.sum(first, second)) {
        expect_fault_of_rank_1(error, "sent a frame with a wrong");
      }
    }
  }
}

void tls_shows_no_number_to_the_network() {
  Floats secret(64);
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<float>(i) * 1.37f + 0.11f;
  const std::string text(reinterpret_cast<const char*>(secret.data()),
                         secret.size() * sizeof(float));
  for (const Protection& protection : {kOff, kTls}) {
    Floats first(kCount, 0);
    Floats second;
    while (second.size() < kCount) second.insert(second.end(), secret.begin(), secret.end());
    second.resize(kCount);
    TamperedPair pair(protection, nullptr);
    for (const auto& error : pair.sum(first, second)) CHECK(text_of(error).empty());
    CHECK_EQ(protection.encrypt, pair.proxy->seen().find(text) == std::string::npos);
  }
}

void different_options_are_a_clear_error() {
  const Protection pairs[][2] = {{kMac, kOff}, {kTls, kOff}, {kOff, kCrc32c}};
  for (const auto& [ours, theirs] : pairs) {
    Floats first(10, 1);
    Floats second(10, 2);
    TamperedPair pair(ours, theirs, nullptr);
    Result one = start(*pair.engine(1), 0, sum_of(second));
    CHECK_CONTAINS(std::string("rank 0 on algo-1 rejected the connection: it uses integrity='") +
                       name_of(ours.integrity) +
                       "' and encrypt=" + (ours.encrypt ? "True" : "False") +
                       ", and this rank uses integrity='" + name_of(theirs.integrity),
                   text_of(one));
    const std::string hint = "give both options the same value on all ranks";
    const std::string log = pair.log_with(hint);
    CHECK_CONTAINS(std::string("the remote process uses integrity='") + name_of(theirs.integrity),
                   log);
    CHECK_CONTAINS(", which says it is rank 1: ", log);
    CHECK_CONTAINS(hint, log);
  }
}

// Connects two TLS streams, moves bytes in both directions, and returns the faults of both.
std::pair<std::string, std::string> talk(const LaneKeys& one, const LaneKeys& two, size_t bytes) {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd first(ends[0]);
  const UniqueFd second(ends[1]);
  const int few = 4096;  // so that writing blocks all the time
  for (const int end : ends) ::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
  struct Side {
    std::unique_ptr<ByteStream> stream;
    std::string to_send;
    std::string got;
    size_t sent = 0;
  };
  Side sides[2] = {{make_tls_stream(ends[0], one), std::string(bytes, 'a'), {}, 0},
                   {make_tls_stream(ends[1], two), std::string(bytes, 'b'), {}, 0}};
  for (int round = 0; round < 1'000'000; ++round) {
    bool is_done = true;
    for (Side& side : sides) {
      if (!side.stream->fault().empty())
        return {sides[0].stream->fault(), sides[1].stream->fault()};
      char buffer[3000];
      const iovec into[2] = {{buffer, 100}, {buffer + 100, sizeof buffer - 100}};
      const ssize_t got = side.stream->read(into, 2, round % 3 != 0);
      if (got > 0) side.got.append(buffer, static_cast<size_t>(got));
      if (side.sent < bytes) {
        const size_t left = bytes - side.sent;
        const iovec parts[2] = {{&side.to_send[side.sent], std::min<size_t>(left, 50)},
                                {&side.to_send[side.sent], left > 50 ? left - 50 : 0}};
        const ssize_t sent = side.stream->write(parts, left > 50 ? 2 : 1);
        if (sent > 0) side.sent += static_cast<size_t>(sent);
      } else {
        side.stream->flush();
      }
      is_done = is_done && side.got.size() == bytes && !side.stream->has_unsent();
    }
    if (!is_done) continue;
    CHECK(sides[0].got == sides[1].to_send && sides[1].got == sides[0].to_send);
    sides[0].stream->end_writing();
    char byte;
    const iovec one_byte{&byte, 1};
    CHECK_EQ(0, sides[1].stream->read(&one_byte, 1, true));
    return {"", ""};
  }
  CHECK(false);
  return {};
}

void tls_moves_bytes_over_a_socket_that_blocks() {
  LaneKeys dialler;
  dialler.is_dialler = true;
  dialler.tls.fill(5);
  LaneKeys acceptor = dialler;
  acceptor.is_dialler = false;
  const auto [one, two] = talk(dialler, acceptor, 300'000);
  CHECK(one.empty() && two.empty());
}

void tls_with_another_key_fails() {
  LaneKeys dialler;
  dialler.is_dialler = true;
  dialler.tls.fill(5);
  LaneKeys acceptor;
  acceptor.tls.fill(6);
  const auto [one, two] = talk(dialler, acceptor, 1000);
  CHECK_CONTAINS("this rank refuses", two);
  CHECK(one.empty() || one.find("has refused") == 0);
}

// Lanes, a limit of what is in flight, and long and short sums at once, on three hosts.
void many_sums_pass_over_several_encrypted_lanes() {
  for (const Protection& protection : {kMac, kTls}) {
    Cluster cluster(3, Network::kTcp, [&](Options& options) {
      options.hosts = {0, 1, 2};
      options.fragment_bytes = 64 << 10;
      options.tuning.lanes = 3;
      options.protection = protection;
    });
    std::vector<Floats> data;
    for (int number = 0; number < 30; ++number) {
      data.emplace_back(number / 3 % 3 == 0 ? 700'000 : 500, 1);
    }
    std::vector<Result> results;
    for (size_t number = 0; number < 30; ++number) {
      results.push_back(start(cluster[static_cast<int>(number % 3)], 0, sum_of(data[number])));
    }
    for (Result& result : results) CHECK(text_of(result).empty());
    for (const Floats& each : data) CHECK(each.front() == 3 && each.back() == 3);
  }
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(sums_are_the_same_with_every_protection);
  RUN(without_a_check_a_changed_number_is_summed);
  RUN(a_changed_bit_ends_the_job_on_both_ranks);
  RUN(a_changed_bit_ends_an_encrypted_job);
  RUN(dropped_repeated_and_exchanged_frames_end_the_job);
  RUN(tls_shows_no_number_to_the_network);
  RUN(different_options_are_a_clear_error);
  RUN(tls_moves_bytes_over_a_socket_that_blocks);
  RUN(tls_with_another_key_fails);
  RUN(many_sums_pass_over_several_encrypted_lanes);
}
