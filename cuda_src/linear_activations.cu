// linear_activations.cu: activations rounded to e4m3 for weights with the activation rule a8, a scale for each run of 128 columns.
#include "prelude.cuh"
using namespace poem;

// One warp for each row and run: scale = max |x| / 448, or 1 where that is 0; codes = x / scale, rounded. The last run may be short. Magnitudes are
// compared as bits, so that a NaN is larger than everything and makes the scale NaN.
// x and codes are [rows, width]; scales [runs, stride], with 1 in the columns of rows that do not exist.
template <class T>
__global__ void __launch_bounds__(256) quantise_runs(const T* __restrict__ x, uint8_t* __restrict__ codes, float* __restrict__ scales, int rows, int width,
                                                     int stride) {
  const int row = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, run = blockIdx.x, column = run * 128 + lane * 4;
  const bool mine = row < rows && column < width;
  const size_t at = (size_t)row * width + column;
  float v[4] = {};
  uint32_t largest = 0;
  if (mine) {
    const Pack<T, 4> p = *reinterpret_cast<const Pack<T, 4>*>(x + at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = to_float(p.at[i]);
      const uint32_t magnitude = float_bits(v[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, by);
    largest = other > largest ? other : largest;
  }
  const float quotient = bits_float(largest) / 448.0f, scale = quotient == 0.0f ? 1.0f : quotient;
  if (lane == 0 && row < stride) scales[(size_t)run * stride + row] = scale;
  if (mine) {
    const uint32_t low = pack_e4m3(v[0] / scale, v[1] / scale), high = pack_e4m3(v[2] / scale, v[3] / scale);
    *reinterpret_cast<uint32_t*>(codes + at) = low | high << 16;
  }
}
