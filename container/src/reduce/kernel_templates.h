// SPDX-License-Identifier: Apache-2.0
// Loop of all reductions, and the choice of its element types. Each kernels_<instruction set>.cc
// includes this file once; all functions have internal linkage (see kernels.h).
//
// Each group of vectors is reduced over all sources in registers before the result is written, so
// the destination may be one of the sources.
#pragma once

#include "reduce/kernels.h"
#include "reduce/simd_vector.h"

namespace smdist {
namespace {

constexpr size_t kGroup = 4;  // vectors

struct Sum {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return a + b;
  }
};

struct Product {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return a * b;
  }
};

// a != a is true for NaN only.
struct Min {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};

struct Max {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

struct Band {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return a & b;
  }
};

struct Bor {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return a | b;
  }
};

struct Bxor {
  template <typename Total>
  static Total combine(Total a, Total b) {
    return a ^ b;
  }
};

// Reads the bytes [at, at + bytes) of a source as one vector.
template <typename Stored>
Stored read(const void* from, size_t at, size_t bytes) {
  Stored stored{};
  std::memcpy(&stored, static_cast<const char*>(from) + at, bytes);
  return stored;
}

template <typename Stored>
void write(void* to, size_t at, size_t bytes, Stored stored) {
  std::memcpy(static_cast<char*>(to) + at, &stored, bytes);
}

template <typename From>
typename From::Total contribution(typename From::Stored stored, double scale) {
  typename From::Total value = From::load(stored);
  if constexpr (std::is_floating_point_v<typename From::Wide>) {
    if (scale != 1) value *= static_cast<typename From::Wide>(scale);
  }
  return value;
}

template <typename To, typename Total>
typename To::Stored result(Total total, double divisor) {
  if constexpr (std::is_floating_point_v<typename To::Wide>) {
    if (divisor != 1) total /= static_cast<typename To::Wide>(divisor);
  }
  return To::store(total);
}

// Reduces `vectors` vectors from element `begin` on, with the first `lanes` elements of each. From:
// element type of the sources. To: element type of the destination.
template <typename From, typename To, typename Op, size_t vectors>
inline __attribute__((always_inline)) void reduce_group(const Contributions& from,
                                                        void* destination, size_t begin,
                                                        size_t lanes) {
  constexpr size_t kLanes = kVectorBytes / sizeof(typename From::Wide);
  constexpr size_t kFrom = sizeof(typename From::Stored) / kLanes;  // bytes per element
  constexpr size_t kTo = sizeof(typename To::Stored) / kLanes;
  const double scale = from.scale;
  const size_t number = from.number;
  typename From::Total total[vectors];
  for (size_t v = 0; v < vectors; ++v) {
    const size_t at = (begin + v * kLanes) * kFrom;
    const auto stored = read<typename From::Stored>(from.sources[0], at, lanes * kFrom);
    total[v] = contribution<From>(stored, scale);
  }
  for (size_t s = 1; s < number; ++s) {
    const void* source = from.sources[s];
    for (size_t v = 0; v < vectors; ++v) {
      const size_t at = (begin + v * kLanes) * kFrom;
      const auto stored = read<typename From::Stored>(source, at, lanes * kFrom);
      total[v] = Op::combine(total[v], contribution<From>(stored, scale));
    }
  }
  for (size_t v = 0; v < vectors; ++v) {
    const size_t at = (begin + v * kLanes) * kTo;
    write(destination, at, lanes * kTo, result<To>(total[v], from.divisor));
  }
}

template <typename From, typename To, typename Op>
void reduce_all(const Contributions& from, void* destination, size_t count) {
  constexpr size_t kLanes = kVectorBytes / sizeof(typename From::Wide);
  size_t at = 0;
  for (; at + kGroup * kLanes <= count; at += kGroup * kLanes) {
    reduce_group<From, To, Op, kGroup>(from, destination, at, kLanes);
  }
  for (; at + kLanes <= count; at += kLanes) {
    reduce_group<From, To, Op, 1>(from, destination, at, kLanes);
  }
  if (at < count) reduce_group<From, To, Op, 1>(from, destination, at, count - at);
}

template <typename From, typename To>
Kernel floating_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return reduce_all<From, To, Sum>;
    case ReduceOp::kProduct:
      return reduce_all<From, To, Product>;
    case ReduceOp::kMin:
      return reduce_all<From, To, Min>;
    case ReduceOp::kMax:
      return reduce_all<From, To, Max>;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      break;
  }
  return nullptr;  // excluded by is_defined()
}

template <typename Halves>
Kernel half_kernel(ReduceOp op, Partial partial) {
  switch (partial) {
    case Partial::kNeither:
      return floating_kernel<Halves, Halves>(op);
    case Partial::kDestination:
      return floating_kernel<Halves, Native<float>>(op);
    case Partial::kSources:
      return floating_kernel<Native<float>, Halves>(op);
  }
  return nullptr;
}

// Integers wrap: unsigned arithmetic gives the same bits as signed arithmetic. Only min and max
// need the sign.
template <typename Number>
Kernel integer_kernel(ReduceOp op) {
  using Ordered = Native<Number>;
  using Wrapping = Native<std::make_unsigned_t<Number>>;
  switch (op) {
    case ReduceOp::kSum:
      return reduce_all<Wrapping, Wrapping, Sum>;
    case ReduceOp::kProduct:
      return reduce_all<Wrapping, Wrapping, Product>;
    case ReduceOp::kMin:
      return reduce_all<Ordered, Ordered, Min>;
    case ReduceOp::kMax:
      return reduce_all<Ordered, Ordered, Max>;
    case ReduceOp::kBand:
      return reduce_all<Wrapping, Wrapping, Band>;
    case ReduceOp::kBor:
      return reduce_all<Wrapping, Wrapping, Bor>;
    case ReduceOp::kBxor:
      return reduce_all<Wrapping, Wrapping, Bxor>;
    case ReduceOp::kAverage:
      break;
  }
  return nullptr;  // excluded by is_defined()
}

inline Kernel boolean_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBor:
      return reduce_all<Boolean, Boolean, Bor>;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBand:
      return reduce_all<Boolean, Boolean, Band>;
    case ReduceOp::kBxor:
      return reduce_all<Boolean, Boolean, Bxor>;
    case ReduceOp::kAverage:
      break;
  }
  return nullptr;  // excluded by is_defined()
}

inline Kernel kernel_of(Dtype dtype, ReduceOp op, Partial partial) {
  switch (dtype) {
    case Dtype::kFloat32:
      return floating_kernel<Native<float>, Native<float>>(op);
    case Dtype::kFloat64:
      return floating_kernel<Native<double>, Native<double>>(op);
    case Dtype::kFloat16:
      return half_kernel<Float16s>(op, partial);
    case Dtype::kBfloat16:
      return half_kernel<Bfloat16s>(op, partial);
    case Dtype::kInt8:
      return integer_kernel<int8_t>(op);
    case Dtype::kUint8:
      return integer_kernel<uint8_t>(op);
    case Dtype::kInt16:
      return integer_kernel<int16_t>(op);
    case Dtype::kInt32:
      return integer_kernel<int32_t>(op);
    case Dtype::kInt64:
      return integer_kernel<int64_t>(op);
    case Dtype::kBool:
      return boolean_kernel(op);
  }
  return nullptr;
}

}  // namespace
}  // namespace smdist
