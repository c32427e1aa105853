// SPDX-License-Identifier: Apache-2.0
// Tags of frames: which changes of the bytes of one lane are found.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstring>

#include "base/crc32c.h"
#include "base/little_endian.h"
#include "check.h"
#include "messaging/frame.h"
#include "transport/lane.h"

namespace smdist {
namespace {

constexpr Integrity kChecks[] = {Integrity::kCrc32c, Integrity::kMac};

// Keeps the messages that a lane hands on.
class Reader final : public Sink {
 public:
  void on_connected(int) override {}
  Span on_header(int, const HeaderBytes& header) override {
    payload.assign(decode(header).length, '\0');
    return {payload.data(), payload.size()};
  }
  void on_message(int, const HeaderBytes&) override { messages.push_back(payload); }
  void on_sent(int, uint64_t) override {}
  void on_altered(int, const std::string& reason) override { altered = reason; }
  void on_peer_lost(int, const std::string&) override {}

  std::string payload;
  std::vector<std::string> messages;
  std::string altered;
};

// One lane, whose other end the test reads and writes.
struct OpenLane {
  explicit OpenLane(Integrity integrity, bool is_dialler, uint8_t key = 1) : lane(1) {
    int ends[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    lane.attach(UniqueFd(ends[0]));
    other = UniqueFd(ends[1]);
    LaneKeys keys;
    keys.is_dialler = is_dialler;
    keys.outgoing.fill(is_dialler ? key : static_cast<uint8_t>(key + 1));
    keys.incoming.fill(is_dialler ? static_cast<uint8_t>(key + 1) : key);
    lane.protect({integrity, false}, keys);
  }
  std::string sent() {
    std::string all;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::recv(other.get(), bytes, sizeof bytes, 0)) > 0;) {
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  }
  void receive(const std::string& bytes, Reader& reader) {
    CHECK(::send(other.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    CHECK(!lane.read_some(&reader));
  }

  Lane lane;
  UniqueFd other;
};

Message message_of(const std::string& text) {
  Frame frame;
  frame.type = FrameType::kData;
  frame.source = 1;
  frame.length = text.size();
  Message message;
  message.header = encode(frame);
  message.text = text;
  return message;
}

// Returns each message as one side sends it, with its tags.
std::vector<std::string> frames_of(Integrity integrity, const std::vector<std::string>& texts,
                                   bool is_dialler = true, uint8_t key = 1) {
  OpenLane sender(integrity, is_dialler, key);
  std::vector<std::string> frames;
  for (const std::string& text : texts) {
    sender.lane.send(message_of(text));
    sender.lane.write_early();
    frames.push_back(sender.sent());
  }
  return frames;
}

Reader read_all(Integrity integrity, const std::vector<std::string>& frames) {
  Reader reader;
  OpenLane receiver(integrity, false);
  for (const std::string& frame : frames) receiver.receive(frame, reader);
  return reader;
}

// RFC 3720, B.4, and the check value of the catalogues.
void crc32c_knows_the_published_vectors() {
  std::string ascending;
  for (char i = 0; i < 32; ++i) ascending.push_back(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  const std::vector<std::pair<std::string, uint32_t>> vectors = {
      {std::string(32, '\0'), 0x8a9136aa},
      {std::string(32, '\xff'), 0x62a8ab43},
      {ascending, 0x46dd794e},
      {descending, 0x113fdb5c},
      {"123456789", 0xe3069283},
      {"", 0}};
  for (const auto& [bytes, expected] : vectors) {
    CHECK_EQ(expected, crc32c(bytes.data(), bytes.size()));
    CHECK_EQ(expected, crc32c_by_table(bytes.data(), bytes.size()));
  }
}

void instruction_and_table_agree() {
  std::vector<uint8_t> bytes(40'000);
  uint32_t state = 1;
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  for (size_t length : {1, 7, 8, 9, 2047, 6143, 6144, 6145, 12'289, 39'990}) {
    for (size_t from = 0; from < 9; ++from) {
      const uint32_t expected = crc32c_by_table(&bytes[from], length, 77);
      CHECK_EQ(expected, crc32c(&bytes[from], length, 77));
      const size_t half = length / 2;  // in two parts
      CHECK_EQ(expected,
               crc32c(&bytes[from + half], length - half, crc32c(&bytes[from], half, 77)));
    }
  }
}

void frames_arrive_as_they_were_sent() {
  for (const Integrity integrity : {Integrity::kOff, Integrity::kCrc32c, Integrity::kMac}) {
    const std::vector<std::string> texts = {"one", std::string(9000, 'x'), "three"};
    const std::vector<std::string> frames = frames_of(integrity, texts);
    const Reader whole = read_all(integrity, frames);
    CHECK(whole.altered.empty() && whole.messages == texts);
    // Also when each byte arrives by itself.
    std::vector<std::string> bytes;
    for (const char byte : frames[0] + frames[1]) bytes.emplace_back(1, byte);
    const Reader slow = read_all(integrity, bytes);
    CHECK(slow.altered.empty() && slow.messages.size() == 2 && slow.messages[1] == texts[1]);
  }
}

void every_flipped_bit_is_found() {
  for (const Integrity integrity : kChecks) {
    const std::vector<std::string> frames = frames_of(integrity, {"first", "a short payload"});
    for (size_t bit = 0; bit < frames[1].size() * 8; ++bit) {
      std::vector<std::string> bad = frames;
      bad[1][bit / 8] = static_cast<char>(bad[1][bit / 8] ^ (1 << bit % 8));
      const Reader reader = read_all(integrity, bad);
      CHECK_CONTAINS("sent a frame with a wrong", reader.altered);
      CHECK_EQ(1u, reader.messages.size());  // the altered one is not handed on
    }
  }
}

void dropped_repeated_and_reordered_frames_are_found() {
  for (const Integrity integrity : kChecks) {
    const std::vector<std::string> good = frames_of(integrity, {"one", "two", "three"});
    const std::vector<std::string> streams[] = {
        {good[0], good[2]}, {good[0], good[0]}, {good[1], good[0]}};
    for (const auto& stream : streams) {
      const Reader reader = read_all(integrity, stream);
      CHECK(!reader.altered.empty());
      CHECK(reader.messages.size() <= 1);
    }
  }
}

// The checksum of bytes that somebody has changed on purpose can be computed again; a code cannot.
void a_forged_checksum_passes_and_a_forged_code_does_not() {
  for (const Integrity integrity : kChecks) {
    std::string frame = frames_of(integrity, {"1000 coins"})[0];
    const size_t tag = integrity == Integrity::kMac ? 16 : 4;
    const size_t payload = kHeaderBytes + tag;
    frame[payload] = '9';
    uint8_t counter[8];
    put<uint64_t>(counter, 1);
    const uint32_t crc = crc32c(&frame[payload], 10, crc32c(counter, sizeof counter));
    put<uint32_t>(reinterpret_cast<uint8_t*>(&frame[payload + 10]), crc);
    const Reader reader = read_all(integrity, {frame});
    CHECK_EQ(integrity == Integrity::kMac, !reader.altered.empty());
    CHECK_EQ(integrity == Integrity::kMac ? 0u : 1u, reader.messages.size());
  }
}

void frames_of_other_lanes_and_directions_are_refused() {
  const std::vector<std::string> texts = {"one"};
  CHECK(read_all(Integrity::kMac, frames_of(Integrity::kMac, texts)).altered.empty());
  CHECK(!read_all(Integrity::kMac, frames_of(Integrity::kMac, texts, true, 9)).altered.empty());
  CHECK(!read_all(Integrity::kMac, frames_of(Integrity::kMac, texts, false)).altered.empty());
}

void after_an_altered_frame_nothing_is_read() {
  for (const Integrity integrity : kChecks) {
    const std::vector<std::string> good = frames_of(integrity, {"one", "two"});
    std::string bad = good[0];
    bad.back() = static_cast<char>(bad.back() ^ 1);
    const Reader reader = read_all(integrity, {bad, good[0], good[1]});
    CHECK(!reader.altered.empty() && reader.messages.empty());
  }
}

// Tags count the frames before them, so a frame that has tags is sent although its memory is
// released.
void released_payloads_leave_no_gap() {
  const std::string text(100'000, 'p');
  OpenLane sender(Integrity::kMac, true);
  OpenLane receiver(Integrity::kMac, false);
  for (int i = 0; i < 20; ++i) {
    Message message = message_of(text);
    message.text.clear();
    message.payload = {const_cast<char*>(text.data()), text.size()};
    sender.lane.send(std::move(message));
  }
  for (int i = 0; i < 20; ++i) sender.lane.write_early();  // until the socket is full
  sender.lane.release_payloads([](int, const HeaderBytes&) { return true; });
  sender.lane.send(message_of("last"));
  Reader reader;
  bool would_block = false;
  for (int i = 0; i < 10'000 && sender.lane.has_work(); ++i) {
    CHECK(!sender.lane.write_some(nullptr, &would_block));
    for (std::string bytes; !(bytes = sender.sent()).empty();) {
      for (size_t at = 0; at < bytes.size(); at += 4096) {
        receiver.receive(bytes.substr(at, 4096), reader);
      }
    }
  }
  CHECK_CONTAINS("nothing", "nothing" + reader.altered);
  CHECK(reader.altered.empty() && reader.messages.size() > 1 && reader.messages.size() < 21);
  CHECK(reader.messages.front() == text && reader.messages.back() == "last");
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(crc32c_knows_the_published_vectors);
  RUN(instruction_and_table_agree);
  RUN(frames_arrive_as_they_were_sent);
  RUN(every_flipped_bit_is_found);
  RUN(dropped_repeated_and_reordered_frames_are_found);
  RUN(a_forged_checksum_passes_and_a_forged_code_does_not);
  RUN(frames_of_other_lanes_and_directions_are_refused);
  RUN(after_an_altered_frame_nothing_is_read);
  RUN(released_payloads_leave_no_gap);
}
