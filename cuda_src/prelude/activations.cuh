// Activations: the functions of gated units, in float32, and the rule a8. One text for every kernel, so that what is fused equals the op on
// its own.
#pragma once

namespace poem {

enum Activation { NO_ACTIVATION, SILU, GELU_TANH, GELU };

// 1 / (1 + e^-x) without overflow, so that x * sigma(x) keeps its accuracy for large negative x.
POEM_DEVICE float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}
template <Activation ACT> POEM_DEVICE float activated(float x) {
  if constexpr (ACT == SILU) return x * sigmoid(x);
  else if constexpr (ACT == GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
  else return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// The rule a8: 128 columns become e4m3 codes with the scale max |x| / 448, or 1 where that is 0. Magnitudes are compared as bits, so that a
// NaN is larger than everything and makes the scale NaN.
POEM_DEVICE uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffffu; }
POEM_DEVICE float activation_scale(uint32_t largest) {
  const float quotient = bits_float(largest) / 448.0f;
  return quotient == 0.0f ? 1.0f : quotient;
}
POEM_DEVICE uint32_t activation_codes(const float* v, float scale) {
  return pack_e4m3(v[0] / scale, v[1] / scale) | (uint32_t)pack_e4m3(v[2] / scale, v[3] / scale) << 16;
}

}  // namespace poem
