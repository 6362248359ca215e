// Stored weights: how runs of packed codes become pairs of bf16 for matrix products, exactly.
//
// A format is a type with
//   BITS      of a code; 16 for plain bf16
//   GROUP     columns that share a gain (0: none but perhaps one of a whole row)
//   Gain      the type of a gain; HAS_OFFSET if groups have an offset of that type too
//   PROMOTED  the gain multiplies sums of products in float32, since code * gain has no bf16; otherwise it multiplies the codes
//   Factor    what a row's gain and offset are made into, once for each run, by factor(gain, offset)
//   WORDS     registers of codes that decode() takes at a time
//   SPREAD    how far apart in the run the two elements of a pair are: 1, or WORDS * 32 / BITS / 2 where codes are picked by masks
// and decode(codes, factor, pairs), which yields WORDS * 32 / BITS elements, two to a register, in an array of just that length.
#pragma once

namespace poem {

// a * b + c for both halves, in bf16, rounded once.
POEM_DEVICE uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
#ifdef POEM_EMULATED
  uint32_t r = 0;
  for (int half = 0; half < 32; half += 16) {
    const auto value = [half](uint32_t pair) { return (double)to_float(bf16{(uint16_t)(pair >> half)}); };
    r |= encode_bf16((float)(value(a) * value(b) + value(c))) << half;
  }
  return r;
#else
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
#endif
}
constexpr uint32_t ONE_PAIR = 0x3f803f80u, MINUS_ZERO_PAIR = 0x80008000u;
POEM_DEVICE uint32_t multiply_pair(uint32_t a, uint32_t b) { return fma_pair(a, b, MINUS_ZERO_PAIR); }
POEM_DEVICE uint32_t add_pair(uint32_t a, uint32_t b) { return fma_pair(a, ONE_PAIR, b); }
POEM_DEVICE uint32_t both(float x) { return pack<bf16>(x, x); }

struct NoFactor {};

// ---------------------------------------------------------------------------------------------------------- plain bf16
struct Plain {
  static constexpr int BITS = 16, GROUP = 0, WORDS = 4, SPREAD = 1;
  static constexpr bool PROMOTED = false, HAS_OFFSET = false, ROW_GAIN = false;
  using Gain = uint8_t;
  using Factor = NoFactor;
  POEM_DEVICE static Factor factor(Gain, Gain) { return {}; }
  POEM_DEVICE static void decode(const uint32_t* codes, Factor, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = codes[i];
  }
};

// -------------------------------------------------------------------------------------------------------------- e4m3
// Two codes in the upper bytes of the halves. The exponent lands in that of bf16, 2^-120 too small; the magnitude 480, which e4m3 gives up
// for NaN, is the only one that overflows when it is multiplied by 1.125 * 2^119, and infinity times zero is NaN.
POEM_DEVICE uint32_t e4m3_pair(uint32_t upper) {
  const uint32_t value = multiply_pair((upper & 0x80008000u) | (upper >> 4 & 0x07f007f0u), 0x7b807b80u);
  const uint32_t overflowing = multiply_pair(value, 0x7b107b10u);
  return fma_pair(overflowing, 0u, value);
}
struct E4m3 {
  static constexpr int BITS = 8, WORDS = 2, SPREAD = 1;
  POEM_DEVICE static void values(const uint32_t* codes, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      pairs[2 * i] = e4m3_pair(permute_bytes(codes[i], 0, 0x1404));
      pairs[2 * i + 1] = e4m3_pair(permute_bytes(codes[i], 0, 0x3424));
    }
  }
};
// One gain for each row, applied to the finished sum.
struct E4m3Rows : E4m3 {
  static constexpr int GROUP = 0;
  static constexpr bool PROMOTED = false, HAS_OFFSET = false, ROW_GAIN = true;
  using Gain = uint8_t;
  using Factor = NoFactor;
  POEM_DEVICE static Factor factor(Gain, Gain) { return {}; }
  POEM_DEVICE static void decode(const uint32_t* codes, Factor, uint32_t (&pairs)[4]) { values(codes, pairs); }
};
struct GainOnly { float gain; };
// One float gain for each 128 columns.
struct E4m3Tiles : E4m3 {
  static constexpr int GROUP = 128;
  static constexpr bool PROMOTED = true, HAS_OFFSET = false, ROW_GAIN = false;
  using Gain = float;
  using Factor = GainOnly;
  POEM_DEVICE static Factor factor(Gain gain, Gain) { return {gain}; }
  POEM_DEVICE static void decode(const uint32_t* codes, Factor, uint32_t (&pairs)[4]) { values(codes, pairs); }
};

// -------------------------------------------------------------------------------------------------------------- affine
// code * gain + offset is taken apart as (code - centre) * gain + rest: the centre is the code nearest to the weight 0, so that the two parts
// never cancel: |code - centre| * |gain| and |rest| are at most 2 and 1 times the weight. Differences of codes are exact in bf16.
struct AffineFactor {
  float gain, rest;
  uint32_t shift;   // added to both halves of decoded pairs: minus the centre, and minus what decoding added
};
template <int BITS_, int GROUP_> struct Affine {
  static constexpr int BITS = BITS_, GROUP = GROUP_, WORDS = BITS == 8 ? 2 : 1, SPREAD = BITS == 8 ? 1 : 16 / BITS;
  static constexpr bool PROMOTED = true, HAS_OFFSET = true, ROW_GAIN = false;
  static constexpr float LARGEST = (1 << BITS) - 1, BIAS = BITS == 8 ? 0 : 128;
  static_assert(BITS == 2 || BITS == 4 || BITS == 8, "codes of 2, 4 or 8 bits");
  using Gain = bf16;
  using Factor = AffineFactor;
  POEM_DEVICE static Factor factor(Gain gain, Gain offset) {
    const float g = to_float(gain), o = to_float(offset);
    const float centre = fminf(fmaxf(rintf(-o / g), 0.0f), LARGEST);   // 0 for NaN
    return {g, fmaf(centre, g, o), both(-BIAS - centre)};
  }
  POEM_DEVICE static void decode(const uint32_t* codes, Factor f, uint32_t (&pairs)[WORDS * 16 / BITS]) {
    if constexpr (BITS == 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t two = permute_bytes(codes[i / 2], 0, i % 2 ? 0x4342 : 0x4140);
        // 0x4300 is 128, whose last bit is worth 1: the low seven bits, plus 128. That goes again where the eighth bit is clear.
        const uint32_t extra = (~two >> 7 & 0x00010001u) * 0xc300u;
        pairs[i] = add_pair(add_pair((two & 0x007f007fu) | 0x43004300u, extra), f.shift);
      }
    } else {
      constexpr uint32_t MASK = BITS == 4 ? 0x000f000fu : 0x00030003u;
#pragma unroll
      for (int i = 0; i < SPREAD; ++i) pairs[i] = add_pair((codes[0] >> BITS * i & MASK) | 0x43004300u, f.shift);
    }
  }
};

// ---------------------------------------------------------------------------------------------------------------- e2m1
// code * gain is exact in bf16: at most 6 significant bits.
struct PairFactor { uint32_t scale; };
struct E2m1 {
  static constexpr int BITS = 4, WORDS = 1, SPREAD = 4;
  static constexpr bool PROMOTED = false, HAS_OFFSET = false;
  using Factor = PairFactor;
  POEM_DEVICE static void decode(const uint32_t* codes, Factor f, uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = codes[0] >> 4 * i;
      // Magnitudes land at the bottom of bf16's exponent, 2^-126 too small.
      const uint32_t value = multiply_pair((two << 6 & 0x01c001c0u) | (two << 12 & 0x80008000u), 0x7e807e80u);
      pairs[i] = multiply_pair(value, f.scale);
    }
  }
};
// A gain for each 16 columns, and one for the row, applied to the finished sum.
struct Nvfp4 : E2m1 {
  static constexpr int GROUP = 16;
  static constexpr bool ROW_GAIN = true;
  using Gain = e4m3;
  POEM_DEVICE static Factor factor(Gain gain, Gain) { return {both(to_float(gain))}; }
};
struct Mxfp4 : E2m1 {
  static constexpr int GROUP = 32;
  static constexpr bool ROW_GAIN = false;
  using Gain = e8m0;
  POEM_DEVICE static Factor factor(Gain gain, Gain) { return {both(to_float(gain))}; }
};

}  // namespace poem
