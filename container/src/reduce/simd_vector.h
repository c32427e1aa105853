// SPDX-License-Identifier: Apache-2.0
// Vectors as wide as the registers of the instruction set, and the conversion of each element type
// to and from its accumulation type. All functions have internal linkage: see kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "reduce/half_precision.h"

namespace smdist {
namespace {

#if defined(__AVX512BW__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

template <typename Number, size_t lanes>
struct VectorType {
  typedef Number Type __attribute__((vector_size(lanes * sizeof(Number))));
};

template <typename Number, size_t lanes = kVectorBytes / sizeof(Number)>
using Vector = typename VectorType<Number, lanes>::Type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;
using Halves = Vector<uint16_t, kVectorBytes / sizeof(float)>;  // as many elements as Floats has

// Replaces every NaN by the given one. The sign and payload of a NaN depend on the processor and on
// the order of operands that the compiler chose; results must have the same bits everywhere.
template <typename Total>
Total with_one_nan(Total total, decltype(total[0] + 0) nan) {
  return total == total ? total : Total{} + nan;
}

// Elements that accumulate in their own type.
template <typename Number>
struct Native {
  using Wide = Number;
  using Stored = Vector<Number>;
  using Total = Vector<Number>;
  static Total load(Stored stored) { return stored; }
  static Stored store(Total total) {
    if constexpr (std::is_same_v<Number, float>) return with_one_nan(total, __builtin_nanf(""));
    if constexpr (std::is_same_v<Number, double>) return with_one_nan(total, __builtin_nan(""));
    return total;
  }
};

// Elements of one byte; any value but zero is true.
struct Boolean {
  using Wide = uint8_t;
  using Stored = Vector<uint8_t>;
  using Total = Vector<uint8_t>;
  static Total load(Stored stored) { return bit_cast<Total>(stored != 0) & 1; }
  static Stored store(Total total) { return total; }
};

// Conversions between 16 and 32 bits by intrinsics: for a plain conversion, compilers emit several
// shuffles.
#if defined(__AVX512BW__)

// Masked forms with a full mask, because GCC 12 warns about its own unmasked ones.
inline Words widen(Halves halves) {
  return bit_cast<Words>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(halves)));
}

inline Halves narrow(Words words) {
  return bit_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, bit_cast<__m512i>(words)));
}

#elif defined(__AVX2__)

inline Words widen(Halves halves) {
  return bit_cast<Words>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(halves)));
}

inline Halves narrow(Words words) {
  const __m256i all = bit_cast<__m256i>(words);
  return bit_cast<Halves>(
      _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

#elif defined(__SSE2__)

inline Words widen(Halves halves) {
  const __m128i low = _mm_cvtsi64_si128(bit_cast<int64_t>(halves));
  return bit_cast<Words>(_mm_unpacklo_epi16(low, _mm_setzero_si128()));
}

// SSE2 packs with signed saturation. The sign extension of bit 15 prevents saturation.
inline Halves narrow(Words words) {
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(bit_cast<__m128i>(words), 16), 16);
  return bit_cast<Halves>(_mm_cvtsi128_si64(_mm_packs_epi32(extended, extended)));
}

#else

inline Words widen(Halves halves) { return __builtin_convertvector(halves, Words); }
inline Halves narrow(Words words) { return __builtin_convertvector(words, Halves); }

#endif

struct Bfloat16s {
  using Wide = float;
  using Stored = Halves;
  using Total = Floats;
  static Floats load(Halves halves) { return float_of_bfloat16<Floats>(widen(halves)); }
  static Halves store(Floats total) { return narrow(bfloat16_of_float<Words>(total)); }
};

struct Float16s {
  using Wide = float;
  using Stored = Halves;
  using Total = Floats;
#if defined(__AVX512BW__)
  static Floats load(Halves halves) {
    return _mm512_maskz_cvtph_ps(0xffff, bit_cast<__m256i>(halves));
  }
  static Halves store(Floats total) {
    const Floats clean = with_one_nan(total, __builtin_nanf(""));
    return bit_cast<Halves>(_mm512_maskz_cvtps_ph(0xffff, clean, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__AVX2__) && defined(__F16C__)
  static Floats load(Halves halves) { return _mm256_cvtph_ps(bit_cast<__m128i>(halves)); }
  static Halves store(Floats total) {
    const Floats clean = with_one_nan(total, __builtin_nanf(""));
    return bit_cast<Halves>(_mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__aarch64__)
  static Floats load(Halves halves) { return vcvt_f32_f16(bit_cast<float16x4_t>(halves)); }
  static Halves store(Floats total) {
    return bit_cast<Halves>(vcvt_f16_f32(with_one_nan(total, __builtin_nanf(""))));
  }
#else
  static Floats load(Halves halves) { return float_of_float16<Floats>(widen(halves)); }
  static Halves store(Floats total) { return narrow(float16_of_float<Words>(total)); }
#endif
};

}  // namespace
}  // namespace smdist
