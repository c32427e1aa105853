// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments of an operation.
#include <string>

#include "collectives/collectives.h"
#include "engine/checks.h"
#include "smdist/errors.h"

namespace smdist {
namespace {

using Spans = std::vector<Span>;

std::string text_of(const char* part) { return part; }
std::string text_of(double part) { return std::to_string(part); }
std::string text_of(int64_t part) { return std::to_string(part); }
std::string text_of(int part) { return std::to_string(part); }
std::string text_of(size_t part) { return std::to_string(part); }

// The call that is checked.
struct Call {
  const Operation& operation;
  const int rank;
  const int size;

  // Throws UsageError if `holds` is false. fault: parts of the message, which are joined only then,
  // because every call of a collective comes here several times.
  template <typename... Parts>
  void require(bool holds, const Parts&... fault) const {
    if (holds) return;
    throw UsageError((std::string(name_of(operation.kind)) + ": " + ... + text_of(fault)));
  }
  size_t ranks() const { return static_cast<size_t>(size); }
  bool is_root() const { return rank == operation.root; }
};

void check_basics(const Call& call) {
  const Operation& operation = call.operation;
  call.require(operation.timeout.count() > 0, "the timeout is ", operation.timeout.count(),
               " ms, but it must be above 0 ms. Pass a longer timeout");
  call.require(
      operation.done || operation.ended,
      "neither the callback 'done' nor the callback 'ended' is set, so nothing could report the "
      "end of the operation. Set at least one of them");
  call.require(!is_rooted(operation.kind) || (operation.root >= 0 && operation.root < call.size),
               "the root is rank ", operation.root, ", but the group has only the ranks 0 to ",
               call.size - 1);
  if (is_point_to_point(operation.kind)) {
    const bool is_any = operation.kind == Collective::kReceive && operation.peer == kAnyRank;
    call.require(is_any || (operation.peer >= 0 && operation.peer < call.size), "the peer is rank ",
                 operation.peer, ", but the group has only the ranks 0 to ", call.size - 1);
    call.require(operation.peer != call.rank,
                 "the peer is this rank, but a rank cannot exchange messages with itself");
    call.require(call.size > 1, "the group has no other rank to exchange messages with");
  }
  if (!is_reducing(operation.kind)) return;
  call.require(is_defined(operation.op, operation.dtype), "the reduction ", name_of(operation.op),
               " is not defined for the dtype ", name_of(operation.dtype));
  call.require(operation.scale == 1 || is_floating(operation.dtype), "the scale is ",
               operation.scale, ", but the dtype ", name_of(operation.dtype),
               " cannot be scaled. Use a floating dtype, or a scale of 1");
}

void check_spans(const Call& call, const Spans& spans, const char* what) {
  const size_t width = element_bytes(call.operation.dtype);
  for (const Span& span : spans) {
    call.require(span.data != nullptr || span.bytes == 0, what, " is null, but its length is ",
                 span.bytes, " bytes");
    call.require(span.bytes % width == 0, what, " has ", span.bytes,
                 " bytes, which is not a whole number of ", name_of(call.operation.dtype),
                 " elements");
    call.require(reinterpret_cast<uintptr_t>(span.data) % width == 0, what,
                 " is not aligned to its elements of ", width, " bytes");
  }
}

void check_one(const Call& call, const Spans& spans, const char* what) {
  call.require(spans.size() == 1, "the operation takes one ", what, ", but got ", spans.size());
}

void check_same(const Call& call, size_t input_bytes, size_t output_bytes) {
  call.require(input_bytes == output_bytes, "the input has ", input_bytes,
               " bytes, but the output has ", output_bytes,
               " bytes. Both must have the same length");
}

// Checks that there is one buffer with N parts of part_bytes bytes, or N such buffers. what:
// "input" or "output".
void check_parts(const Call& call, const Spans& spans, size_t part_bytes, const char* what) {
  const size_t count = spans.size();
  call.require(count == 1 || count == call.ranks(), "the operation takes one ", what,
               ", or one for each of the ", call.size, " ranks, but got ", count);
  const size_t expected = count == 1 ? part_bytes * call.ranks() : part_bytes;
  for (const Span& span : spans) {
    call.require(span.bytes == expected, "the ", what, " has ", span.bytes,
                 " bytes, but it must have ", expected, " bytes");
  }
}

void check_splits(const Call& call, const Spans& spans, const char* what) {
  call.require(spans.size() == 1 || spans.size() == call.ranks(), "the operation takes one ", what,
               ", or one for each of the ", call.size, " ranks, but got ", spans.size());
  const size_t unit = call.ranks() * element_bytes(call.operation.dtype);
  call.require(spans.size() != 1 || spans[0].bytes % unit == 0, "the ", what, " of ",
               spans[0].bytes, " bytes cannot be split into ", call.size,
               " equal parts of whole elements");
}

void check_root_parts(const Call& call, const Spans& many, const Spans& one, const char* many_name,
                      const char* one_name) {
  check_one(call, one, one_name);
  if (call.is_root()) check_parts(call, many, one[0].bytes, many_name);
}

void check_shape(const Call& call) {
  const Spans& inputs = call.operation.inputs;
  const Spans& outputs = call.operation.outputs;
  switch (call.operation.kind) {
    case Collective::kAllReduce:
      check_one(call, inputs, "input");
      check_one(call, outputs, "output");
      return check_same(call, inputs[0].bytes, outputs[0].bytes);
    case Collective::kReduceScatter:
      check_one(call, outputs, "output");
      return check_parts(call, inputs, outputs[0].bytes, "input");
    case Collective::kAllGather:
      check_one(call, inputs, "input");
      return check_parts(call, outputs, inputs[0].bytes, "output");
    case Collective::kBroadcast:
      if (!call.is_root()) return check_one(call, outputs, "output");
      check_one(call, inputs, "input");
      if (outputs.empty()) return;
      check_one(call, outputs, "output");
      return check_same(call, inputs[0].bytes, outputs[0].bytes);
    case Collective::kReduce:
      check_one(call, inputs, "input");
      if (!call.is_root()) return;
      check_one(call, outputs, "output");
      return check_same(call, inputs[0].bytes, outputs[0].bytes);
    case Collective::kGather:
      return check_root_parts(call, outputs, inputs, "output", "input");
    case Collective::kScatter:
      return check_root_parts(call, inputs, outputs, "input", "output");
    case Collective::kAllToAll:
      check_splits(call, inputs, "input");
      return check_splits(call, outputs, "output");
    case Collective::kSend:
      return check_one(call, inputs, "input");
    case Collective::kReceive:
      return check_one(call, outputs, "output");
    case Collective::kBarrier:
      return;
  }
}

bool overlap(const uint8_t* a, size_t a_bytes, const uint8_t* b, size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

// Returns the address of this rank's own part in the inputs or outputs. The buffer of the other
// side may be exactly this part.
const uint8_t* own_part(const Call& call, const Spans& many, size_t part_bytes) {
  const size_t rank = static_cast<size_t>(call.rank);
  if (many.size() == 1) return static_cast<const uint8_t*>(many[0].data) + rank * part_bytes;
  return static_cast<const uint8_t*>(many[rank].data);
}

bool may_share(const Call& call, const Span& input, const Span& output) {
  const auto* in = static_cast<const uint8_t*>(input.data);
  const auto* out = static_cast<const uint8_t*>(output.data);
  switch (call.operation.kind) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      return in == out;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return out == own_part(call, call.operation.inputs, output.bytes);
    case Collective::kAllGather:
    case Collective::kGather:
      return in == own_part(call, call.operation.outputs, input.bytes);
    case Collective::kAllToAll:
    case Collective::kBarrier:
    case Collective::kSend:
    case Collective::kReceive:
      return false;
  }
  return false;
}

// Return whether this rank reads its inputs, and whether it writes its outputs.
bool uses_inputs(const Call& call) {
  const Collective kind = call.operation.kind;
  return call.is_root() || (kind != Collective::kBroadcast && kind != Collective::kScatter);
}

bool uses_outputs(const Call& call) {
  const Collective kind = call.operation.kind;
  return call.is_root() || (kind != Collective::kReduce && kind != Collective::kGather);
}

void check_overlap(const Call& call) {
  if (!uses_inputs(call) || !uses_outputs(call)) return;
  for (const Span& input : call.operation.inputs) {
    for (const Span& output : call.operation.outputs) {
      const bool shares = overlap(static_cast<const uint8_t*>(input.data), input.bytes,
                                  static_cast<const uint8_t*>(output.data), output.bytes);
      call.require(!shares || may_share(call, input, output),
                   "an input and an output overlap in memory in a way that this operation does not "
                   "support. Pass separate buffers");
    }
  }
}

}  // namespace

void check(const Operation& operation, int rank, int size) {
  const Call call{operation, rank, size};
  check_basics(call);
  if (uses_inputs(call)) check_spans(call, operation.inputs, "an input");
  if (uses_outputs(call)) check_spans(call, operation.outputs, "an output");
  check_shape(call);
  check_overlap(call);
}

}  // namespace smdist
