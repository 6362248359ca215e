// linear_plain.cu: out[n, m] = sum over k of x[n, k] w[m, k] for floats of every dtype and rows of every width, by float32 multiply-adds.
//
// What linear.cu leaves: f32 operands, which no tensor core multiplies as they are, f16, mixed dtypes, widths that are no multiple of 8.
// The sum over k runs in order, one multiply-add after the other, so the bits of a row depend neither on the tile nor on the other rows.
// `bias`, if it is not null, is added to the product as OUT holds it.
#include "prelude.cuh"
using namespace poem;

// A block computes ROWS rows by 64 outputs, a thread MR by MC of them.
template <class X, class W, class OUT, int ROWS, int MR, int MC> __global__ void __launch_bounds__(256)
    product_plain(const X* __restrict__ x, const W* __restrict__ w, const OUT* __restrict__ bias, OUT* __restrict__ out, int rows,
                  int outputs, int width) {
  constexpr int OUTPUTS = 64, STEP = 16, TR = ROWS / MR, TC = OUTPUTS / MC;
  static_assert(TR * TC == 256, "each thread has its results");
  POEM_SHARED(float, xs, [STEP][ROWS + 4]);
  POEM_SHARED(float, ws, [STEP][OUTPUTS + 4]);
  const int n0 = blockIdx.y * ROWS, m0 = blockIdx.x * OUTPUTS, row = threadIdx.x / TC, column = threadIdx.x % TC;
  float sum[MR][MC] = {};
  for (int k0 = 0; k0 < width; k0 += STEP) {
    for (int i = threadIdx.x; i < ROWS * STEP; i += 256) {
      const int n = n0 + i / STEP, k = k0 + i % STEP;
      xs[i % STEP][i / STEP] = n < rows && k < width ? to_float(x[(int64_t)n * width + k]) : 0.0f;
    }
    for (int i = threadIdx.x; i < OUTPUTS * STEP; i += 256) {
      const int m = m0 + i / STEP, k = k0 + i % STEP;
      ws[i % STEP][i / STEP] = m < outputs && k < width ? to_float(w[(int64_t)m * width + k]) : 0.0f;
    }
    __syncthreads();
    const int steps = min(STEP, width - k0);  // what lies past the end is left out, so that infinity times 0 is no part of a sum
    for (int k = 0; k < steps; ++k) {
      float a[MR], b[MC];
#pragma unroll
      for (int i = 0; i < MR; ++i) a[i] = xs[k][row * MR + i];
#pragma unroll
      for (int j = 0; j < MC; ++j) b[j] = ws[k][column * MC + j];
#pragma unroll
      for (int i = 0; i < MR; ++i)
#pragma unroll
        for (int j = 0; j < MC; ++j) sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < MR; ++i)
#pragma unroll
    for (int j = 0; j < MC; ++j) {
      const int n = n0 + row * MR + i, m = m0 + column * MC + j;
      if (n >= rows || m >= outputs) continue;
      const OUT product = from_float<OUT>(sum[i][j]);
      out[(int64_t)n * outputs + m] = bias ? from_float<OUT>(to_float(product) + to_float(bias[m])) : product;
    }
}
