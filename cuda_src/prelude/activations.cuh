// The activations of gated units, in float32: one text for every kernel, so that a fused epilogue equals the op on its own.
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

}  // namespace poem
