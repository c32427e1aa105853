// SPDX-License-Identifier: Apache-2.0
#include "base/little_endian.h"
#include "base/random.h"
#include "base/sha256.h"
#include "check.h"
#include "memory/buffer_pool.h"

namespace smdist {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

// FIPS 180-4 examples.
void sha256_knows_the_published_vectors() {
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1'000'000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, test cases 1, 2, 3 and 6.
void hmac_knows_the_published_vectors() {
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'),
                        "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

void digests_differ_in_any_byte() {
  const Digest digest = sha256("abc");
  CHECK(equal_in_constant_time(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 1;
    CHECK(!equal_in_constant_time(digest, other));
  }
}

void random_bytes_differ() {
  Digest a{};
  Digest b{};
  fill_with_random(a.data(), a.size());
  fill_with_random(b.data(), b.size());
  CHECK(a != b);
}

void numbers_survive_the_wire() {
  uint8_t bytes[8];
  put<uint64_t>(bytes, 0x0123456789abcdef);
  CHECK_EQ(0xef, bytes[0]);
  CHECK_EQ(0x0123456789abcdefu, get<uint64_t>(bytes));
  CHECK_EQ(0xcdefu, get<uint16_t>(bytes));
}

void buffers_are_used_again() {
  BufferPool pool(1 << 20);
  Buffer first = pool.take(1000);
  const uint8_t* where = first.data.get();
  CHECK_EQ(0u, reinterpret_cast<uintptr_t>(where) % kCacheLineBytes);
  pool.give_back(std::move(first));
  Buffer again = pool.take(900);
  CHECK(again.data.get() == where);
  CHECK(!pool.take(0).data);
}

}  // namespace
}  // namespace smdist

int main() {
  using namespace smdist;
  RUN(sha256_knows_the_published_vectors);
  RUN(hmac_knows_the_published_vectors);
  RUN(digests_differ_in_any_byte);
  RUN(random_bytes_differ);
  RUN(numbers_survive_the_wire);
  RUN(buffers_are_used_again);
}
