// Number formats: types that hold bits, and exact conversions.
//
// Every conversion to a narrower format rounds to nearest, ties to even. bf16 and f16 overflow to infinity, the formats of 8 and
// 4 bits saturate, and NaN stays NaN where there is a code for it (its sign is lost, as on the device).
#pragma once

namespace poem {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};
struct e8m0 {
  uint8_t bits;
};  // a power of two: 2^(bits - 127)

template <class A, class B> constexpr bool same_type = false;
template <class A> constexpr bool same_type<A, A> = true;

// N elements that are loaded and stored together, in one instruction if they fill 4, 8 or 16 bytes.
template <class T, int N> struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

POEM_DEVICE uint32_t float_bits(float x) {
  union {
    float f;
    uint32_t u;
  } c;
  c.f = x;
  return c.u;
}
POEM_DEVICE float bits_float(uint32_t u) {
  union {
    uint32_t u;
    float f;
  } c;
  c.u = u;
  return c.f;
}
POEM_DEVICE bool is_nan(float x) { return (float_bits(x) & 0x7fffffffu) > 0x7f800000u; }

// The magnitude of x as a code with MANTISSA bits below an exponent of bias BIAS, at most LARGEST; NOT_A_NUMBER for NaN.
template <int MANTISSA, int BIAS, uint32_t LARGEST, uint32_t NOT_A_NUMBER> POEM_DEVICE uint32_t encode_magnitude(float x) {
  const uint32_t u = float_bits(x) & 0x7fffffffu;
  constexpr int DROPPED = 23 - MANTISSA;
  constexpr uint32_t SMALLEST_NORMAL = (uint32_t)(128 - BIAS) << 23;
  // The last bit of a float in this binade is worth one subnormal step, so the addition rounds.
  constexpr uint32_t STEP_BINADE = (uint32_t)(127 + 24 - BIAS - MANTISSA) << 23;
  uint32_t code;
  if (u < SMALLEST_NORMAL) code = float_bits(bits_float(u) + bits_float(STEP_BINADE)) - STEP_BINADE;
  else code = ((u + (1u << (DROPPED - 1)) - 1 + ((u >> DROPPED) & 1)) >> DROPPED) - ((uint32_t)(127 - BIAS) << MANTISSA);
  if (code > LARGEST) code = LARGEST;
  return u > 0x7f800000u ? NOT_A_NUMBER : code;
}
POEM_DEVICE uint32_t encode_e4m3(float x) { return encode_magnitude<3, 7, 0x7e, 0x7f>(x) | (float_bits(x) >> 24 & 0x80); }
POEM_DEVICE uint32_t encode_e5m2(float x) { return encode_magnitude<2, 15, 0x7b, 0x7f>(x) | (float_bits(x) >> 24 & 0x80); }
POEM_DEVICE uint32_t encode_e2m1(float x) { return encode_magnitude<1, 1, 7, 7>(x) | (float_bits(x) >> 28 & 8); }
POEM_DEVICE uint32_t encode_f16(float x) { return encode_magnitude<10, 15, 0x7c00, 0x7fff>(x) | (float_bits(x) >> 16 & 0x8000); }
POEM_DEVICE uint32_t encode_bf16(float x) {
  const uint32_t u = float_bits(x);
  return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}
// The value of a code shifted to the place of a float's exponent and mantissa: the product moves the bias, and is exact.
POEM_DEVICE float decode_magnitude(uint32_t shifted, int bias) { return bits_float(shifted) * bits_float((uint32_t)(254 - bias) << 23); }

// ------------------------------------------------------------------------------------------------------------- to float
POEM_DEVICE float to_float(float x) { return x; }
POEM_DEVICE float to_float(bf16 x) { return bits_float((uint32_t)x.bits << 16); }
POEM_DEVICE float to_float(f16 x) {
#ifdef POEM_EMULATED
  const uint32_t magnitude = x.bits & 0x7fffu;
  const float value = magnitude < 0x7c00u ? decode_magnitude(magnitude << 13, 15) : bits_float(0x7f800000u | magnitude << 13);
  return x.bits >> 15 ? -value : value;
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#endif
}
POEM_DEVICE float to_float(e5m2 x) { return to_float(f16{(uint16_t)(x.bits << 8)}); }  // e5m2 is the upper half of f16
POEM_DEVICE float to_float(e4m3 x) {
  const uint32_t magnitude = x.bits & 0x7fu;
  const float value = magnitude == 0x7fu ? bits_float(0x7fffffffu) : decode_magnitude(magnitude << 20, 7);
  return x.bits >> 7 ? -value : value;
}
// 2^-127 is the only value that a float holds as a subnormal.
POEM_DEVICE float to_float(e8m0 x) { return bits_float(x.bits == 0 ? 0x00400000u : x.bits == 0xff ? 0x7fffffffu : (uint32_t)x.bits << 23); }
// The value of a 4-bit code: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
POEM_DEVICE float e2m1_to_float(uint32_t code) {
  const float value = decode_magnitude((code & 7) << 22, 1);
  return code & 8 ? -value : value;
}

// ----------------------------------------------------------------------------------------------------------- from float
template <class T> POEM_DEVICE T from_float(float x);
template <> POEM_DEVICE float from_float<float>(float x) { return x; }
template <> POEM_DEVICE bf16 from_float<bf16>(float x) {
  bf16 r;
  POEM_TWIN(r.bits = (uint16_t)encode_bf16(x), asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)));
  return r;
}
template <> POEM_DEVICE f16 from_float<f16>(float x) {
  f16 r;
  POEM_TWIN(r.bits = (uint16_t)encode_f16(x), asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x)));
  return r;
}

// ---------------------------------------------------------------------------------------------------------------- pairs
// Two elements in one register, the first in the lower half.
template <class T> POEM_DEVICE uint32_t pack(float first, float second) {
  static_assert(sizeof(T) == 2, "pack is for bf16 and f16");
  return from_float<T>(first).bits | (uint32_t)from_float<T>(second).bits << 16;
}
template <> POEM_DEVICE uint32_t pack<bf16>(float first, float second) {
  uint32_t r;
  POEM_TWIN(r = encode_bf16(first) | encode_bf16(second) << 16, asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first)));
  return r;
}
template <class T> POEM_DEVICE float2 unpack(uint32_t pair) {
  return make_float2(to_float(T{(uint16_t)(pair & 0xffff)}), to_float(T{(uint16_t)(pair >> 16)}));
}
// Two numbers as sums of PARTS elements each: every part is what those before it leave, rounded.
template <class T, int PARTS> POEM_DEVICE void split(uint32_t (&parts)[PARTS], float first, float second) {
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    parts[i] = pack<T>(first, second);
    const float2 rounded = unpack<T>(parts[i]);
    first -= rounded.x;
    second -= rounded.y;
  }
}

// Before sm_89 there is no instruction for 8-bit floats, before sm_100 none for 4-bit ones: there the emulator's own code runs.
#if !defined(POEM_EMULATED) && __CUDA_ARCH__ >= 890
#define POEM_HAS_FP8 1
#endif
#if !defined(POEM_EMULATED) && \
    (defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL))
#define POEM_HAS_FP4 1
#endif
POEM_DEVICE uint16_t pack_e4m3(float first, float second) {
#ifdef POEM_HAS_FP8
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(second), "f"(first));
  return r;
#else
  return (uint16_t)(encode_e4m3(first) | encode_e4m3(second) << 8);
#endif
}
POEM_DEVICE uint16_t pack_e5m2(float first, float second) {
#ifdef POEM_HAS_FP8
  uint16_t r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(second), "f"(first));
  return r;
#else
  return (uint16_t)(encode_e5m2(first) | encode_e5m2(second) << 8);
#endif
}
POEM_DEVICE uint8_t pack_e2m1(float first, float second) {
#ifdef POEM_HAS_FP4
  uint32_t r;
  asm("{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, %1, %2; cvt.u32.u8 %0, t; }" : "=r"(r) : "f"(second), "f"(first));
  return (uint8_t)r;
#else
  return (uint8_t)(encode_e2m1(first) | encode_e2m1(second) << 4);
#endif
}
POEM_DEVICE float2 unpack_e4m3(uint16_t pair) {
#ifdef POEM_HAS_FP8
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
  return unpack<f16>(halves);
#else
  return make_float2(to_float(e4m3{(uint8_t)(pair & 0xff)}), to_float(e4m3{(uint8_t)(pair >> 8)}));
#endif
}
POEM_DEVICE float2 unpack_e5m2(uint16_t pair) {
  return make_float2(to_float(e5m2{(uint8_t)(pair & 0xff)}), to_float(e5m2{(uint8_t)(pair >> 8)}));
}
POEM_DEVICE float2 unpack_e2m1(uint8_t pair) { return make_float2(e2m1_to_float(pair & 15), e2m1_to_float(pair >> 4)); }

template <> POEM_DEVICE e4m3 from_float<e4m3>(float x) { return e4m3{(uint8_t)pack_e4m3(x, 0.0f)}; }
template <> POEM_DEVICE e5m2 from_float<e5m2>(float x) { return e5m2{(uint8_t)pack_e5m2(x, 0.0f)}; }

}  // namespace poem
