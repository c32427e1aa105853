// SPDX-License-Identifier: Apache-2.0
// Functions of the transport that use OpenSSL. A build without OpenSSL has without_openssl.cc
// instead of gmac_check.cc and tls_stream.cc; has_openssl() of options.h tells which.
#pragma once

#include <memory>

#include "transport/byte_stream.h"
#include "transport/frame_check.h"
#include "transport/lane_keys.h"

namespace smdist {

// Initialize this library's own copy of OpenSSL: no file of configuration, and no work at the end
// of the process, when other threads may still run.
void initialize_openssl();

// Return a check whose tags are GMAC codes (NIST SP 800-38D) of AES-256, with the number of tags as
// the nonce. Throws UsageError without OpenSSL.
std::unique_ptr<FrameCheck> make_gmac_check(const Digest& key);

// Return TLS 1.3 over a connected socket. Both sides have proved to know the key. Throws UsageError
// without OpenSSL.
std::unique_ptr<ByteStream> make_tls_stream(int fd, const LaneKeys& keys);

}  // namespace smdist
