// linear_activations.cu: activations rounded to e4m3 for weights with the activation rule a8, a scale for each run of 128 columns.
#include "prelude.cuh"
using namespace poem;

// One warp for each row and run; the last run may be short.
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
      largest = max(largest, magnitude_bits(v[i]));
    }
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, by));
  const float scale = activation_scale(largest);
  if (lane == 0 && row < stride) scales[(size_t)run * stride + row] = scale;
  if (mine) *reinterpret_cast<uint32_t*>(codes + at) = activation_codes(v, scale);
}
