// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 over a lane's socket. The key of the lane is an external pre-shared key (RFC 8446,
// section 4.2.11) with a Diffie-Hellman exchange (psk_dhe_ke): who learns the job's secret later
// cannot read what was recorded before. There are no certificates.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "smdist/errors.h"
#include "smdist/options.h"
#include "transport/openssl.h"

namespace smdist {
namespace {

constexpr size_t kRecordBytes = 16 << 10;     // longest content of a TLS record
constexpr size_t kReadAheadBytes = 64 << 10;  // bytes that one recv() may take
constexpr char kIdentity[] = "smdist lane";   // equal for all lanes; the keys differ
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};

void require(bool is_good, const char* what) {
  if (!is_good) throw SystemError(std::string("OpenSSL could not ") + what);
}

// A socket as OpenSSL's BIO reads and writes it. Writing never blocks and never raises SIGPIPE:
// bytes that the socket does not take are kept, which are those of one TLS record at most.
struct SocketBytes {
  int fd = -1;
  bool may_receive = false;
  bool is_ended = false;  // the peer has closed the connection
  int error = 0;          // errno of a failure of the socket
  std::vector<uint8_t> unsent;

  // Returns whether nothing is left.
  bool flush() {
    size_t done = 0;
    while (done < unsent.size() && error == 0) {
      const ssize_t sent =
          ::send(fd, &unsent[done], unsent.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) break;
      if (sent < 0) {
        error = errno;
      } else {
        done += static_cast<size_t>(sent);
      }
    }
    unsent.erase(unsent.begin(), unsent.begin() + static_cast<ptrdiff_t>(done));
    return unsent.empty();
  }
};

int bio_write(BIO* bio, const char* data, int bytes) {
  auto& socket = *static_cast<SocketBytes*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  size_t done = 0;
  if (socket.unsent.empty()) {
    const ssize_t sent =
        ::send(socket.fd, data, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      socket.error = errno;
      return -1;
    }
    done = static_cast<size_t>(std::max<ssize_t>(sent, 0));
  }
  socket.unsent.insert(socket.unsent.end(), data + done, data + bytes);
  return bytes;
}

int bio_read(BIO* bio, char* data, int bytes) {
  auto& socket = *static_cast<SocketBytes*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t got =
      socket.may_receive ? ::recv(socket.fd, data, static_cast<size_t>(bytes), MSG_DONTWAIT) : -1;
  if (got > 0) return static_cast<int>(got);
  if (got == 0) {
    socket.is_ended = true;
    return 0;
  }
  if (!socket.may_receive || errno == EAGAIN || errno == EINTR) {
    BIO_set_retry_read(bio);
  } else {
    socket.error = errno;
  }
  return -1;
}

long bio_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_EOF) return static_cast<SocketBytes*>(BIO_get_data(bio))->is_ended;
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* bio_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "smdist socket");
    require(made != nullptr, "make a kind of BIO");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    BIO_meth_set_create(made, [](BIO* bio) {
      BIO_set_init(bio, 1);
      return 1;
    });
    return made;
  }();
  return method;
}

// Return the settings of all lanes. They live as long as the process.
SSL_CTX* context() {
  static SSL_CTX* const shared = [] {
    initialize_openssl();
    SSL_CTX* made = SSL_CTX_new(TLS_method());
    require(made != nullptr, "make a TLS context");
    require(SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) == 1, "choose TLS 1.3");
    require(SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256") == 1, "choose AES-GCM");
    require(SSL_CTX_set1_groups_list(made, "X25519:P-256") == 1, "choose X25519");
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(made, 0);
    SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(made, SSL_MODE_RELEASE_BUFFERS);  // thousands of lanes may be idle
    SSL_CTX_set_read_ahead(made, 1);
    SSL_CTX_set_default_read_buffer_len(made, kReadAheadBytes);
    return made;
  }();
  return shared;
}

// Return the rest of a sentence about a peer whose bytes OpenSSL has refused, or that has sent an
// alert because it has refused bytes of this rank.
std::string fault_of(unsigned long error) {
  const bool is_alert = ERR_GET_REASON(error) >= SSL_AD_REASON_OFFSET;
  const char* reason = ERR_reason_error_string(error);
  return std::string(is_alert ? "has refused TLS records of this rank ("
                              : "sent TLS records that this rank refuses (") +
         (reason != nullptr ? reason : "unknown error") +
         "): they were changed, repeated, dropped or put in another order between the two hosts. A "
         "device may be broken, or an attacker may be in the network";
}

class TlsStream final : public ByteStream {
 public:
  TlsStream(int fd, const LaneKeys& keys) : key_(keys.tls), ssl_(SSL_new(context())) {
    require(ssl_ != nullptr, "make a TLS connection");
    socket_.fd = fd;
    BIO* bio = BIO_new(bio_method());
    require(bio != nullptr, "make a BIO");
    BIO_set_data(bio, &socket_);
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_app_data(ssl_.get(), this);
    if (keys.is_dialler) {
      SSL_set_psk_use_session_callback(ssl_.get(), use_session);
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_psk_find_session_callback(ssl_.get(), find_session);
      SSL_set_accept_state(ssl_.get());
    }
    shake_hands(false);  // the dialler's first message; read() reports a failure
  }
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  ssize_t write(const iovec* parts, size_t count) override;
  ssize_t read(const iovec* parts, size_t count, bool may_receive) override;
  int flush() override;
  bool has_unsent() const override { return !socket_.unsent.empty(); }
  bool has_unread() const override { return SSL_has_pending(ssl_.get()) == 1; }
  bool awaits_peer() const override { return SSL_is_init_finished(ssl_.get()) == 0; }
  void end_writing() override {
    ERR_clear_error();
    if (SSL_is_init_finished(ssl_.get()) != 0) SSL_shutdown(ssl_.get());
  }
  const std::string& fault() const override { return fault_; }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  static int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                         size_t* bytes, SSL_SESSION** session);
  static int find_session(SSL* ssl, const unsigned char* identity, size_t bytes,
                          SSL_SESSION** session);
  SSL_SESSION* make_session() const;
  int shake_hands(bool may_receive);
  ssize_t failed(int result);
  ssize_t read_record(void* data, size_t bytes);

  const Digest key_;
  SocketBytes socket_;
  std::unique_ptr<SSL, Free> ssl_;
  std::string fault_;
};

// Returns the key as a session, which is OpenSSL's form of a pre-shared key.
SSL_SESSION* TlsStream::make_session() const {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl_.get(), kAes128GcmSha256);
  const bool is_made = session != nullptr && cipher != nullptr &&
                       SSL_SESSION_set1_master_key(session, key_.data(), key_.size()) == 1 &&
                       SSL_SESSION_set_cipher(session, cipher) == 1 &&
                       SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (is_made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int TlsStream::use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
                           size_t* bytes, SSL_SESSION** session) {
  if (digest != nullptr && EVP_MD_is_a(digest, "SHA256") == 0) return 0;
  *session = static_cast<TlsStream*>(SSL_get_app_data(ssl))->make_session();
  *identity = reinterpret_cast<const unsigned char*>(kIdentity);
  *bytes = sizeof kIdentity - 1;
  return *session != nullptr ? 1 : 0;
}

int TlsStream::find_session(SSL* ssl, const unsigned char* identity, size_t bytes,
                            SSL_SESSION** session) {
  const bool is_known =
      bytes == sizeof kIdentity - 1 && std::memcmp(identity, kIdentity, bytes) == 0;
  *session = is_known ? static_cast<TlsStream*>(SSL_get_app_data(ssl))->make_session() : nullptr;
  return 1;  // without a session the handshake fails, because there are no certificates
}

// Continues the TLS handshake. Returns 0 when it is finished, else -1.
int TlsStream::shake_hands(bool may_receive) {
  if (SSL_is_init_finished(ssl_.get()) != 0) return 0;
  ERR_clear_error();
  socket_.may_receive = may_receive;
  const int result = SSL_do_handshake(ssl_.get());
  return result == 1 ? 0 : static_cast<int>(failed(result));
}

// Sets errno after a failed call of OpenSSL. Returns 0 at the end of the stream, else -1.
ssize_t TlsStream::failed(int result) {
  const int kind = SSL_get_error(ssl_.get(), result);
  if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) {
    errno = EAGAIN;
    return -1;
  }
  if (socket_.error != 0) {
    errno = socket_.error;
    return -1;
  }
  if (kind == SSL_ERROR_ZERO_RETURN || socket_.is_ended) return 0;
  fault_ = fault_of(ERR_peek_error());
  errno = EBADMSG;
  return -1;
}

int TlsStream::flush() {
  if (socket_.flush()) return 0;
  errno = socket_.error != 0 ? socket_.error : EAGAIN;
  return -1;
}

// Writes one TLS record. Short parts are put together first.
ssize_t TlsStream::write(const iovec* parts, size_t count) {
  static thread_local std::array<uint8_t, kRecordBytes> together;
  if (flush() < 0) return -1;
  if (awaits_peer()) {
    errno = EAGAIN;
    return -1;
  }
  size_t bytes = std::min(parts[0].iov_len, kRecordBytes);
  const void* data = parts[0].iov_base;
  if (bytes < kRecordBytes && count > 1) {
    bytes = 0;
    for (size_t i = 0; i < count && bytes < kRecordBytes; ++i) {
      const size_t step = std::min(parts[i].iov_len, kRecordBytes - bytes);
      std::memcpy(&together[bytes], parts[i].iov_base, step);
      bytes += step;
    }
    data = together.data();
  }
  ERR_clear_error();
  socket_.may_receive = false;
  const int written = SSL_write(ssl_.get(), data, static_cast<int>(bytes));
  if (written > 0) return written;
  if (failed(written) == 0) errno = EPIPE;
  return -1;
}

ssize_t TlsStream::read(const iovec* parts, size_t count, bool may_receive) {
  if (awaits_peer()) {
    const int result = shake_hands(may_receive);
    if (awaits_peer()) return result;
  }
  socket_.may_receive = may_receive;
  ssize_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    if (parts[i].iov_len == 0) continue;
    const ssize_t got = read_record(parts[i].iov_base, parts[i].iov_len);
    if (got <= 0) return total > 0 ? total : got;
    total += got;
    if (static_cast<size_t>(got) < parts[i].iov_len || SSL_pending(ssl_.get()) == 0) break;
  }
  return total;
}

ssize_t TlsStream::read_record(void* data, size_t bytes) {
  ERR_clear_error();
  const int most = static_cast<int>(std::min<size_t>(bytes, 1 << 30));
  const int got = SSL_read(ssl_.get(), data, most);
  return got > 0 ? got : failed(got);
}

}  // namespace

bool has_openssl() { return true; }

void initialize_openssl() {
  require(OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) == 1,
          "start");
}

std::unique_ptr<ByteStream> make_tls_stream(int fd, const LaneKeys& keys) {
  return std::make_unique<TlsStream>(fd, keys);
}

}  // namespace smdist
