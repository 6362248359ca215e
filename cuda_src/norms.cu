// norms.cu: RMS norms of rows and of heads, with the addition of a residual before.
//
// T is the dtype of activations, W that of gains and biases: bf16, f16 or float. VEC elements travel in one load, which the width must be a
// multiple of. All arithmetic is float32 and a result is rounded once, where it is stored. Sums have an order that depends on the
// instantiation alone, never on the other rows.
#include "prelude.cuh"
using namespace poem;

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }

POEM_DEVICE float warp_sum(float v) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
  return v;
}
template <int THREADS> POEM_DEVICE float block_sum(float v) {
  constexpr int WARPS = THREADS / 32;
  v = warp_sum(v);
  if constexpr (WARPS == 1) return v;
  POEM_SHARED(float, partial, [WARPS]);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = partial[0];
#pragma unroll
  for (int i = 1; i < WARPS; ++i) v += partial[i];  // every thread in the same order: no second barrier is needed
  return v;
}
template <bool PLUS_ONE, class W> POEM_DEVICE float gain_of(W w) { return PLUS_ONE ? 1.0f + to_float(w) : to_float(w); }

// ----------------------------------------------------------------------------------------------------------------- RMS norms
// out = rms(x) * w, or rms(residual) * w after residual += x, for one row per block. ITEMS packs of a row stay in the registers of a
// thread; with ITEMS = 0 the row is read again instead, whatever its width.
template <class T, class W, int VEC, int ITEMS, int THREADS, bool PLUS_ONE, bool ADD>
POEM_DEVICE void norm_row(const T* __restrict__ x, T* __restrict__ residual, const W* __restrict__ gain, T* __restrict__ out, int width,
                          float eps) {
  constexpr int HELD = ITEMS > 0 ? ITEMS : 1;
  const size_t row = (size_t)blockIdx.x * width;
  const int packs = ITEMS > 0 ? ITEMS : (width / VEC + THREADS - 1) / THREADS;
  float held[HELD][VEC];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const int column = (i * THREADS + (int)threadIdx.x) * VEC;
    if (column >= width) break;
    Pack<T, VEC> v = load<T, VEC>(x + row + column);
    if constexpr (ADD) {
      const Pack<T, VEC> r = load<T, VEC>(residual + row + column);
#pragma unroll
      for (int j = 0; j < VEC; ++j) v.at[j] = from_float<T>(to_float(r.at[j]) + to_float(v.at[j]));
      store<T, VEC>(residual + row + column, v);
    }
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      const float f = to_float(v.at[j]);
      if constexpr (ITEMS > 0) held[i][j] = f;
      squares += f * f;
    }
  }
  const float scale = 1.0f / sqrtf(block_sum<THREADS>(squares) / (float)width + eps);
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const int column = (i * THREADS + (int)threadIdx.x) * VEC;
    if (column >= width) break;
    if constexpr (ITEMS == 0) {
      const Pack<T, VEC> v = load<T, VEC>((ADD ? residual : x) + row + column);
#pragma unroll
      for (int j = 0; j < VEC; ++j) held[0][j] = to_float(v.at[j]);
    }
    const Pack<W, VEC> w = load<W, VEC>(gain + column);
    Pack<T, VEC> y;
#pragma unroll
    for (int j = 0; j < VEC; ++j) y.at[j] = from_float<T>(held[ITEMS > 0 ? i : 0][j] * scale * gain_of<PLUS_ONE>(w.at[j]));
    store<T, VEC>(out + row + column, y);
  }
}
template <class T, class W, int VEC, int ITEMS, int THREADS, bool PLUS_ONE> __global__ void __launch_bounds__(THREADS)
    add_rmsnorm(const T* __restrict__ x, T* __restrict__ residual, const W* __restrict__ gain, T* __restrict__ out, int width, float eps) {
  norm_row<T, W, VEC, ITEMS, THREADS, PLUS_ONE, true>(x, residual, gain, out, width, eps);
}
template <class T, class W, int VEC, int ITEMS, int THREADS, bool PLUS_ONE> __global__ void __launch_bounds__(THREADS)
    rmsnorm(const T* __restrict__ x, const W* __restrict__ gain, T* __restrict__ out, int width, float eps) {
  norm_row<T, W, VEC, ITEMS, THREADS, PLUS_ONE, false>(x, nullptr, gain, out, width, eps);
}

// Each run of `size` columns on its own, by one warp: out = rms(run) * w, with one gain for all runs. runs counts those of all rows.
template <class T, class W, int VEC, int ITEMS, bool PLUS_ONE> __global__ void __launch_bounds__(256)
    rmsnorm_per_head(const T* __restrict__ x, const W* __restrict__ gain, T* __restrict__ out, int runs, int size, float eps) {
  const int run = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool mine = run < runs;  // a warp without a run still takes part in the sum
  const size_t start = (size_t)run * size;
  float held[ITEMS][VEC];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int column = (i * 32 + lane) * VEC;
    if (mine && column < size) {
      const Pack<T, VEC> v = load<T, VEC>(x + start + column);
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        held[i][j] = to_float(v.at[j]);
        squares += held[i][j] * held[i][j];
      }
    }
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)size + eps);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int column = (i * 32 + lane) * VEC;
    if (mine && column < size) {
      const Pack<W, VEC> w = load<W, VEC>(gain + column);
      Pack<T, VEC> y;
#pragma unroll
      for (int j = 0; j < VEC; ++j) y.at[j] = from_float<T>(held[i][j] * scale * gain_of<PLUS_ONE>(w.at[j]));
      store<T, VEC>(out + start + column, y);
    }
  }
}
