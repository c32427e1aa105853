// SPDX-License-Identifier: Apache-2.0
// Names and properties of the values of Dtype, ReduceOp, Collective and Integrity.
#include "smdist/collective.h"
#include "smdist/dtype.h"
#include "smdist/options.h"
#include "smdist/reduce_op.h"

namespace smdist {

size_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
    case Dtype::kInt64:
      return 8;
    case Dtype::kFloat32:
    case Dtype::kInt32:
      return 4;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
    case Dtype::kInt16:
      return 2;
    case Dtype::kInt8:
    case Dtype::kUint8:
    case Dtype::kBool:
      return 1;
  }
  return 0;
}

const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return "float32";
    case Dtype::kFloat64:
      return "float64";
    case Dtype::kFloat16:
      return "float16";
    case Dtype::kBfloat16:
      return "bfloat16";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kUint8:
      return "uint8";
    case Dtype::kInt16:
      return "int16";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kBool:
      return "bool";
  }
  return "?";
}

bool is_floating(Dtype dtype) {
  return dtype == Dtype::kFloat32 || dtype == Dtype::kFloat64 || dtype == Dtype::kFloat16 ||
         dtype == Dtype::kBfloat16;
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kBand:
      return "band";
    case ReduceOp::kBor:
      return "bor";
    case ReduceOp::kBxor:
      return "bxor";
  }
  return "?";
}

bool is_defined(ReduceOp op, Dtype dtype) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return true;
    case ReduceOp::kAverage:
      return is_floating(dtype);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return !is_floating(dtype);
  }
  return false;
}

const char* name_of(Collective kind) {
  switch (kind) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kSend:
      return "send";
    case Collective::kReceive:
      return "receive";
  }
  return "?";
}

bool is_reducing(Collective kind) {
  return kind == Collective::kAllReduce || kind == Collective::kReduceScatter ||
         kind == Collective::kReduce;
}

bool is_rooted(Collective kind) {
  return kind == Collective::kBroadcast || kind == Collective::kReduce ||
         kind == Collective::kGather || kind == Collective::kScatter;
}

bool is_point_to_point(Collective kind) {
  return kind == Collective::kSend || kind == Collective::kReceive;
}

const char* name_of(Integrity integrity) {
  switch (integrity) {
    case Integrity::kOff:
      return "off";
    case Integrity::kCrc32c:
      return "crc32c";
    case Integrity::kMac:
      return "mac";
  }
  return "?";
}

}  // namespace smdist
