// SPDX-License-Identifier: Apache-2.0
// Refuses what needs OpenSSL, in a build without it.
#include "smdist/errors.h"
#include "smdist/options.h"
#include "transport/openssl.h"

namespace smdist {
namespace {

[[noreturn]] void refuse(const char* option) {
  throw UsageError(std::string(option) +
                   " needs OpenSSL, and this build of the smdist runtime has none. Install "
                   "libssl-dev, and build the runtime again");
}

}  // namespace

bool has_openssl() { return false; }
void initialize_openssl() {}
std::unique_ptr<FrameCheck> make_gmac_check(const Digest&) { refuse("integrity='mac'"); }
std::unique_ptr<ByteStream> make_tls_stream(int, const LaneKeys&) { refuse("encrypt=True"); }

}  // namespace smdist
