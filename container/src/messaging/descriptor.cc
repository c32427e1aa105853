// SPDX-License-Identifier: Apache-2.0
#include "messaging/descriptor.h"

#include <cstring>
#include <sstream>

#include "base/little_endian.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

uint64_t scale_bits(double scale) {
  uint64_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  return bits;
}

double scale_of(uint64_t bits) {
  double scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}

}  // namespace

DescriptorBytes encode(const Descriptor& descriptor) {
  DescriptorBytes bytes{};
  bytes[0] = static_cast<uint8_t>(descriptor.kind);
  bytes[1] = static_cast<uint8_t>(descriptor.dtype);
  bytes[2] = static_cast<uint8_t>(descriptor.op);
  put<uint32_t>(&bytes[4], static_cast<uint32_t>(descriptor.root));
  put<uint64_t>(&bytes[8], scale_bits(descriptor.scale));
  put<uint64_t>(&bytes[16], descriptor.bytes);
  put<uint64_t>(&bytes[24], descriptor.to_bytes);
  put<uint64_t>(&bytes[32], descriptor.from_bytes);
  put<uint64_t>(&bytes[40], descriptor.call_bytes);
  return bytes;
}

Descriptor decode_descriptor(const DescriptorBytes& bytes) {
  const bool is_known =
      bytes[0] < kCollectives && bytes[1] < kDtypes && bytes[2] < kReduceOps && bytes[3] == 0;
  if (!is_known)
    throw PeerError(
        "posted an operation whose kind, dtype or reduction this version does not know");
  Descriptor descriptor;
  descriptor.kind = static_cast<Collective>(bytes[0]);
  descriptor.dtype = static_cast<Dtype>(bytes[1]);
  descriptor.op = static_cast<ReduceOp>(bytes[2]);
  descriptor.root = static_cast<int32_t>(get<uint32_t>(&bytes[4]));
  descriptor.scale = scale_of(get<uint64_t>(&bytes[8]));
  descriptor.bytes = get<uint64_t>(&bytes[16]);
  descriptor.to_bytes = get<uint64_t>(&bytes[24]);
  descriptor.from_bytes = get<uint64_t>(&bytes[32]);
  descriptor.call_bytes = get<uint64_t>(&bytes[40]);
  return descriptor;
}

bool agree(const Descriptor& ours, const Descriptor& theirs) {
  if (is_point_to_point(ours.kind)) {
    return is_point_to_point(theirs.kind) && ours.dtype == theirs.dtype &&
           ours.bytes == theirs.bytes;
  }
  if (ours.kind != theirs.kind) return false;
  if (ours.kind == Collective::kBarrier) return true;
  const bool same_sum = ours.op == theirs.op && scale_bits(ours.scale) == scale_bits(theirs.scale);
  return ours.dtype == theirs.dtype && ours.bytes == theirs.bytes &&
         ours.call_bytes == theirs.call_bytes && (same_sum || !is_reducing(ours.kind)) &&
         (ours.root == theirs.root || !is_rooted(ours.kind)) &&
         ours.to_bytes == theirs.from_bytes && ours.from_bytes == theirs.to_bytes;
}

bool have_other_layouts(const Descriptor& ours, const Descriptor& theirs) {
  if (ours.kind != theirs.kind || is_point_to_point(ours.kind)) return false;
  const bool is_all_to_all = ours.kind == Collective::kAllToAll;
  return is_all_to_all ? ours.bytes != theirs.bytes : ours.to_bytes != theirs.to_bytes;
}

std::string text_of(const Descriptor& descriptor) {
  std::ostringstream text;
  text << name_of(descriptor.kind) << "(";
  if (descriptor.kind != Collective::kBarrier) {
    const uint64_t width = element_bytes(descriptor.dtype);
    if (is_reducing(descriptor.kind)) text << name_of(descriptor.op) << ", ";
    if (descriptor.scale != 1) text << "scale " << descriptor.scale << ", ";
    text << name_of(descriptor.dtype);
    if (descriptor.kind == Collective::kAllToAll) {
      text << ", " << descriptor.to_bytes / width << " elements to and "
           << descriptor.from_bytes / width << " from the other rank";
    } else {
      text << ", " << descriptor.bytes / width;
      const bool is_part = descriptor.call_bytes != descriptor.bytes;
      if (is_part) text << " of " << descriptor.call_bytes / width;
    }
    if (is_rooted(descriptor.kind)) text << ", root " << descriptor.root;
  }
  text << ")";
  return text.str();
}

}  // namespace smdist
