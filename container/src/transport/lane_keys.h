// SPDX-License-Identifier: Apache-2.0
// Keys of one lane (TCP connection), which its two ranks derive from their authentication
// handshake.
#pragma once

#include "base/sha256.h"

namespace smdist {

// Each key is HMAC-SHA256(secret, purpose | session | ranks | lane | options | both nonces). So no
// other connection, direction or purpose has the same key.
struct LaneKeys {
  Digest outgoing{};  // for the tags of frames that this rank sends
  Digest incoming{};  // for the tags of frames that the peer sends
  Digest tls{};       // pre-shared key of TLS, the same in both directions
  bool is_dialler = false;
};

}  // namespace smdist
