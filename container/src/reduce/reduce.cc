// SPDX-License-Identifier: Apache-2.0
//
// The elements are cut in blocks; the block's accumulators stay in the first
// cache while each source is added to them. A block is written only when all
// sources were read, so the destination may be one of them.
#include "reduce/reduce.h"

#include <algorithm>
#include <type_traits>

#include "reduce/half.h"

namespace smdist {
namespace {

constexpr size_t kBlock = 2048;  // elements: 16 KiB of accumulators at most

// How an element is stored and what it is accumulated in.
template <typename Stored, typename Accumulator>
struct Native {
  using Element = Stored;
  using Wide = Accumulator;
  static Wide load(Element value) { return static_cast<Wide>(value); }
  static Element store(Wide value) { return static_cast<Element>(value); }
};

struct Float16Traits {
  using Element = Float16;
  using Wide = float;
  static float load(Float16 value) { return to_float(value); }
  static Float16 store(float value) { return to_float16(value); }
};

struct Bfloat16Traits {
  using Element = Bfloat16;
  using Wide = float;
  static float load(Bfloat16 value) { return to_float(value); }
  static Bfloat16 store(float value) { return to_bfloat16(value); }
};

struct BoolTraits {
  using Element = uint8_t;
  using Wide = uint8_t;
  static uint8_t load(uint8_t value) { return value != 0; }
  static uint8_t store(uint8_t value) { return value; }
};

// Signed integers are added and multiplied as unsigned ones, which wrap.
struct Sum {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    if constexpr (std::is_floating_point_v<Wide>) {
      return a + b;
    } else {
      using Unsigned = std::make_unsigned_t<Wide>;
      return static_cast<Wide>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    }
  }
};

struct Product {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    if constexpr (std::is_floating_point_v<Wide>) {
      return a * b;
    } else {
      // At least unsigned int: shorter ones would be promoted to signed int.
      using Unsigned = std::common_type_t<std::make_unsigned_t<Wide>, unsigned>;
      return static_cast<Wide>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
    }
  }
};

// a != a is true for NaN only.
struct Min {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    return (a < b || a != a) ? a : b;
  }
};

struct Max {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    return (a > b || a != a) ? a : b;
  }
};

struct Band {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    return static_cast<Wide>(a & b);
  }
};

struct Bor {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    return static_cast<Wide>(a | b);
  }
};

struct Bxor {
  template <typename Wide>
  static Wide combine(Wide a, Wide b) {
    return static_cast<Wide>(a ^ b);
  }
};

// What happens to a contribution before, and to the total after.
struct Scaling {
  double before = 1;
  double divisor = 1;
};

template <typename Wide>
void multiply(Wide* values, size_t count, double factor) {
  if constexpr (std::is_floating_point_v<Wide>) {
    if (factor == 1) return;
    for (size_t i = 0; i < count; ++i) values[i] *= static_cast<Wide>(factor);
  }
}

template <typename Wide>
void divide(Wide* values, size_t count, double divisor) {
  if constexpr (std::is_floating_point_v<Wide>) {
    if (divisor == 1) return;
    for (size_t i = 0; i < count; ++i) values[i] /= static_cast<Wide>(divisor);
  }
}

template <typename Traits, typename Op>
void add_source(typename Traits::Wide* total, const typename Traits::Element* source, size_t count,
                double scale) {
  using Wide = typename Traits::Wide;
  if constexpr (std::is_floating_point_v<Wide>) {
    if (scale != 1) {
      const Wide factor = static_cast<Wide>(scale);
      for (size_t i = 0; i < count; ++i) {
        total[i] = Op::combine(total[i], static_cast<Wide>(Traits::load(source[i]) * factor));
      }
      return;
    }
  }
  for (size_t i = 0; i < count; ++i) total[i] = Op::combine(total[i], Traits::load(source[i]));
}

// From is what sources are stored as, To what the destination is.
template <typename From, typename To, typename Op>
void reduce_blocks(const std::vector<const void*>& sources, void* destination, size_t count,
                   Scaling scaling) {
  using Element = typename From::Element;
  typename From::Wide total[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t length = std::min(kBlock, count - begin);
    const Element* first = static_cast<const Element*>(sources[0]) + begin;
    for (size_t i = 0; i < length; ++i) total[i] = From::load(first[i]);
    multiply(total, length, scaling.before);
    for (size_t s = 1; s < sources.size(); ++s) {
      const Element* source = static_cast<const Element*>(sources[s]) + begin;
      add_source<From, Op>(total, source, length, scaling.before);
    }
    divide(total, length, scaling.divisor);
    typename To::Element* out = static_cast<typename To::Element*>(destination) + begin;
    for (size_t i = 0; i < length; ++i) out[i] = To::store(total[i]);
  }
}

using Kernel = void (*)(const std::vector<const void*>&, void*, size_t, Scaling);

template <typename From, typename To, bool is_bool>
Kernel kernel_of(ReduceOp op) {
  constexpr bool is_integer = !std::is_floating_point_v<typename From::Wide>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if constexpr (is_bool) return reduce_blocks<From, To, Bor>;
      return reduce_blocks<From, To, Sum>;
    case ReduceOp::kProduct:
      return reduce_blocks<From, To, Product>;
    case ReduceOp::kMin:
      return reduce_blocks<From, To, Min>;
    case ReduceOp::kMax:
      return reduce_blocks<From, To, Max>;
    case ReduceOp::kBand:
      if constexpr (is_integer) return reduce_blocks<From, To, Band>;
      break;
    case ReduceOp::kBor:
      if constexpr (is_integer) return reduce_blocks<From, To, Bor>;
      break;
    case ReduceOp::kBxor:
      if constexpr (is_integer) return reduce_blocks<From, To, Bxor>;
      break;
  }
  return nullptr;  // excluded by is_defined()
}

// Which of the two sides of a sum are partial results.
enum class Partial : uint8_t { kNeither, kDestination, kSources };

template <typename Traits>
Kernel kernel_of(ReduceOp op, Partial partial) {
  constexpr bool is_bool = std::is_same_v<Traits, BoolTraits>;
  using Wide = Native<typename Traits::Wide, typename Traits::Wide>;
  switch (partial) {
    case Partial::kNeither:
      return kernel_of<Traits, Traits, is_bool>(op);
    case Partial::kDestination:
      return kernel_of<Traits, Wide, is_bool>(op);
    case Partial::kSources:
      return kernel_of<Wide, Traits, is_bool>(op);
  }
  return nullptr;
}

Kernel kernel_of(Dtype dtype, ReduceOp op, Partial partial) {
  switch (dtype) {
    case Dtype::kFloat32:
      return kernel_of<Native<float, float>>(op, partial);
    case Dtype::kFloat64:
      return kernel_of<Native<double, double>>(op, partial);
    case Dtype::kFloat16:
      return kernel_of<Float16Traits>(op, partial);
    case Dtype::kBfloat16:
      return kernel_of<Bfloat16Traits>(op, partial);
    case Dtype::kInt8:
      return kernel_of<Native<int8_t, int8_t>>(op, partial);
    case Dtype::kUint8:
      return kernel_of<Native<uint8_t, uint8_t>>(op, partial);
    case Dtype::kInt16:
      return kernel_of<Native<int16_t, int16_t>>(op, partial);
    case Dtype::kInt32:
      return kernel_of<Native<int32_t, int32_t>>(op, partial);
    case Dtype::kInt64:
      return kernel_of<Native<int64_t, int64_t>>(op, partial);
    case Dtype::kBool:
      return kernel_of<BoolTraits>(op, partial);
  }
  return nullptr;
}

}  // namespace

void reduce(Dtype dtype, ReduceOp op, double scale, const std::vector<const void*>& sources,
            void* destination, size_t count) {
  const double divisor = op == ReduceOp::kAverage ? static_cast<double>(sources.size()) : 1;
  kernel_of(dtype, op, Partial::kNeither)(sources, destination, count, {scale, divisor});
}

void reduce_to_partial(Dtype dtype, ReduceOp op, double scale,
                       const std::vector<const void*>& sources, void* destination, size_t count) {
  kernel_of(dtype, op, Partial::kDestination)(sources, destination, count, {scale, 1});
}

void reduce_partials(Dtype dtype, ReduceOp op, int contributions,
                     const std::vector<const void*>& sources, void* destination, size_t count) {
  const double divisor = op == ReduceOp::kAverage ? contributions : 1;
  kernel_of(dtype, op, Partial::kSources)(sources, destination, count, {1, divisor});
}

size_t partial_bytes(Dtype dtype) {
  const bool is_half = dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16;
  return is_half ? sizeof(float) : element_bytes(dtype);
}

}  // namespace smdist
