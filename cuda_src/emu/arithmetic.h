// arithmetic.h: products as the tensor cores compute them.
#pragma once
#include <cfloat>

#include "machine.h"

namespace poem::emu {

inline bool is_wide(Format format) { return format == Format::bf16 || format == Format::f16; }
inline int bytes_of(Format format) { return is_wide(format) ? 2 : 1; }
// The values of all codes of the 8-bit formats and of f16; a bf16 is the upper half of a float.
struct Values {
  float e4m3[256], e5m2[256], f16[65536];
  Values();
};
extern const Values values;
inline float element_value(Format format, uint32_t bits) {
  if (format == Format::bf16) {
    const uint32_t upper = bits << 16;
    float value;
    memcpy(&value, &upper, 4);
    return value;
  }
  return format == Format::f16 ? values.f16[bits] : format == Format::e4m3 ? values.e4m3[bits] : values.e5m2[bits];
}

// d[N] += sum over k of x[k] b[k][N], for one row of D. The loops run along N, so that the compiler vectorises them.
//
// 16-bit elements: the exact sum, rounded once, which no tensor core does better. 8-bit elements: all terms, the old d among them, are cut
// to `fp8_bits` bits below the leading bit of the largest one before they are added, as Ada and Hopper do; 0 keeps all bits.
template <int STRIDE>
__attribute__((optimize("O3"))) void multiply_row(int n, int k, const float* x, const float (*b)[STRIDE], float* d, Format format) {
  if (is_wide(format) || !machine.fp8_bits) {
    double sum[STRIDE];
    for (int j = 0; j < n; ++j) sum[j] = d[j];
    for (int i = 0; i < k; ++i) {
      const double xi = x[i];
      for (int j = 0; j < n; ++j) sum[j] += xi * b[i][j];
    }
    for (int j = 0; j < n; ++j) d[j] = (float)sum[j];
    return;
  }
  float largest[STRIDE], step[STRIDE], per_step[STRIDE];
  int32_t not_finite[STRIDE], steps[STRIDE];
  for (int j = 0; j < n; ++j) {
    largest[j] = std::fabs(d[j]);
    not_finite[j] = !(largest[j] <= FLT_MAX);
  }
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < n; ++j) {
      const float size = std::fabs(x[i] * b[i][j]);  // exact: 4-bit significands
      not_finite[j] |= !(size <= FLT_MAX);
      largest[j] = size > largest[j] ? size : largest[j];
    }
  for (int j = 0; j < n; ++j) {
    int32_t exponent;
    memcpy(&exponent, &largest[j], 4);
    exponent = exponent >> 23;
    exponent = (exponent < 32 ? 32 : exponent) - machine.fp8_bits;
    const int32_t up = exponent << 23, down = (254 - exponent) << 23;
    memcpy(&step[j], &up, 4);
    memcpy(&per_step[j], &down, 4);
    steps[j] = (int32_t)(not_finite[j] ? 0.0f : d[j] * per_step[j]);
  }
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < n; ++j) steps[j] += (int32_t)(not_finite[j] ? 0.0f : x[i] * b[i][j] * per_step[j]);
  for (int j = 0; j < n; ++j) {
    if (!not_finite[j]) d[j] = (float)steps[j] * step[j];
    else
      for (int i = 0; i < k; ++i) d[j] += x[i] * b[i][j];
  }
}

}  // namespace poem::emu
