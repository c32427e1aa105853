// SPDX-License-Identifier: Apache-2.0
#include <openssl/evp.h>

#include "base/little_endian.h"
#include "smdist/errors.h"
#include "transport/openssl.h"

namespace smdist {
namespace {

constexpr int kNonceBytes = 12;
constexpr int kGmacBytes = 16;

// Computes GMAC codes: AES-GCM of bytes that are only authenticated. A key has one nonce per tag,
// which never repeats, because every connection has keys of its own.
class GmacCheck final : public FrameCheck {
 public:
  explicit GmacCheck(const Digest& key) : context_(EVP_CIPHER_CTX_new()) {
    require(context_ != nullptr);
    require(EVP_EncryptInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, key.data(), nullptr));
    begin();
  }

  size_t tag_bytes() const override { return kGmacBytes; }
  void update(const void* data, size_t bytes) override {
    int written = 0;
    require(EVP_EncryptUpdate(context_.get(), nullptr, &written, static_cast<const uint8_t*>(data),
                              static_cast<int>(bytes)));
  }
  void finish(uint8_t* tag) override {
    int written = 0;
    uint8_t none[1];
    require(EVP_EncryptFinal_ex(context_.get(), none, &written));
    require(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kGmacBytes, tag));
    begin();
  }
  std::string fault() const override {
    return "sent a frame with a wrong message authentication code: its bytes were changed, "
           "repeated, dropped or put in another order between the two hosts. A device may be "
           "broken, or an attacker may be in the network; keep the job's hosts in a network of "
           "their own";
  }

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };

  static void require(bool is_good) {
    if (!is_good) throw SystemError("OpenSSL could not compute a message authentication code");
  }

  void begin() {
    uint8_t nonce[kNonceBytes] = {};
    put<uint64_t>(nonce, counter_++);
    require(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce));
  }

  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  uint64_t counter_ = 0;
};

}  // namespace

std::unique_ptr<FrameCheck> make_gmac_check(const Digest& key) {
  initialize_openssl();
  return std::make_unique<GmacCheck>(key);
}

}  // namespace smdist
