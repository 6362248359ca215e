// norms.cu: RMS and layer norms of runs of columns: whole rows, or the heads of each row.
//
// T is the dtype of activations, W that of gains and B that of biases: bf16, f16 or float. VEC elements travel in one load, which the size
// of a run must be a multiple of. A run is shared by THREADS threads: a block, or one warp of the eight in a block. Each keeps ITEMS packs
// of it in registers; with ITEMS = 0 the run is read again instead, whatever its size. All arithmetic is float32 and a result is rounded
// once, where it is stored. Sums have an order that depends on the instantiation alone, never on the other rows.
#include "prelude.cuh"
using namespace poem;

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }
template <int VEC, class T> POEM_DEVICE void load_floats(float (&to)[VEC], const T* p) {
  const Pack<T, VEC> v = load<T, VEC>(p);
#pragma unroll
  for (int j = 0; j < VEC; ++j) to[j] = to_float(v.at[j]);
}
template <int VEC, class T> POEM_DEVICE void store_floats(T* p, const float (&from)[VEC]) {
  Pack<T, VEC> v;
#pragma unroll
  for (int j = 0; j < VEC; ++j) v.at[j] = from_float<T>(from[j]);
  store<T, VEC>(p, v);
}

POEM_DEVICE float warp_sum(float v) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
  return v;
}
// The sum over the threads of a run. WHICH tells the calls of a kernel apart, so that none waits for the readers of the one before.
template <int THREADS, int WHICH = 0> POEM_DEVICE float run_sum(float v) {
  constexpr int WARPS = THREADS / 32;
  v = warp_sum(v);
  if constexpr (WARPS == 1) return v;
  POEM_SHARED(float, partial, [WARPS]);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = partial[0];
#pragma unroll
  for (int i = 1; i < WARPS; ++i) v += partial[i];  // every thread in the same order
  return v;
}

constexpr int block_of(int threads) { return threads == 32 ? 256 : threads; }
// How many blocks a multiprocessor holds at least: half of the threads that it may, so that none needs to spill registers.
constexpr int resident(int threads) { return 1024 / block_of(threads); }
template <int THREADS> POEM_DEVICE int run_of_thread() { return blockIdx.x * (block_of(THREADS) / THREADS) + threadIdx.x / THREADS; }
// body(i, column, inside) for each pack of a run of `size` columns that a thread has; all threads make all calls.
template <int VEC, int ITEMS, int THREADS, class Body> POEM_DEVICE void for_packs(int size, Body body) {
  const int packs = ITEMS > 0 ? ITEMS : (size / VEC + THREADS - 1) / THREADS;
#pragma unroll
  for (int i = 0; i < packs; ++i) {
    const int column = (i * THREADS + (int)threadIdx.x % THREADS) * VEC;
    body(i, column, column < size);
  }
}
// read(v, column) gives columns of the run, and write(v, scale, column, inside) takes them again with 1 / sqrt(mean of squares + eps).
// Where a run is read twice, `again` is what reads it the second time.
template <int VEC, int ITEMS, int THREADS, class Read, class Again, class Write>
POEM_DEVICE void rms(int size, float eps, Read read, Again again, Write write) {
  constexpr int HELD = ITEMS > 0 ? ITEMS : 1;
  float held[HELD][VEC];
  float squares = 0.0f;
  for_packs<VEC, ITEMS, THREADS>(size, [&](int i, int column, bool inside) {
    auto& v = held[i % HELD];
    if (!inside) return;
    read(v, column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) squares += v[j] * v[j];
  });
  const float scale = 1.0f / sqrtf(run_sum<THREADS>(squares) / (float)size + eps);
  for_packs<VEC, ITEMS, THREADS>(size, [&](int i, int column, bool inside) {
    auto& v = held[i % HELD];
    if (ITEMS == 0 && inside) again(v, column);
    write(v, scale, column, inside);
  });
}
// v times scale times the gain, which is 1 where there is none.
template <bool PLUS_ONE, int VEC, class W> POEM_DEVICE void multiply(float (&v)[VEC], float scale, const W* gain, int column) {
  float w[VEC];
  if (gain) load_floats(w, gain + column);
#pragma unroll
  for (int j = 0; j < VEC; ++j) v[j] = v[j] * scale * (gain ? PLUS_ONE ? 1.0f + w[j] : w[j] : 1.0f);
}

// ----------------------------------------------------------------------------------------------------------------- RMS norms
// out = rms(x) * w for runs of `size` columns. Gains are those of `gain_runs` runs, one after the other; no gain where `gain` is null.
template <class T, class W, int VEC, int ITEMS, int THREADS, bool PLUS_ONE>
__global__ void __launch_bounds__(block_of(THREADS), resident(THREADS))
    rmsnorm(const T* __restrict__ x, const W* __restrict__ gain, T* __restrict__ out, int runs, int size, int gain_runs, float eps) {
  const int run = run_of_thread<THREADS>();
  const bool mine = run < runs;  // a warp without a run still takes part in the sum
  const int64_t start = (int64_t)run * size;
  const W* const own = gain + run % gain_runs * size;  // gain_runs is 1 where there is none
  auto read = [&](float (&v)[VEC], int column) { load_floats(v, x + start + column); };
  rms<VEC, ITEMS, THREADS>(mine ? size : 0, eps, read, read, [&](float (&v)[VEC], float scale, int column, bool inside) {
    if (!inside) return;
    multiply<PLUS_ONE>(v, scale, own, column);
    store_floats(out + start + column, v);
  });
}
// A row of x; with ADD, after residual += x, which is rounded to T before it is normed.
template <class T, int VEC, bool ADD> struct Row {
  const T* x;
  T* residual;
  POEM_DEVICE void read(float (&v)[VEC], int column) const {
    load_floats(v, x + column);
    if constexpr (ADD) {
      float r[VEC];
      load_floats(r, residual + column);
#pragma unroll
      for (int j = 0; j < VEC; ++j) v[j] = to_float(from_float<T>(r[j] + v[j]));
      store_floats(residual + column, v);
    }
  }
  POEM_DEVICE void again(float (&v)[VEC], int column) const { load_floats(v, (ADD ? residual : x) + column); }
};
// The same for rows of `width` after residual += x. One row per block.
template <class T, class W, int VEC, int ITEMS, int THREADS, bool PLUS_ONE> __global__ void __launch_bounds__(THREADS, resident(THREADS))
    add_rmsnorm(const T* __restrict__ x, T* __restrict__ residual, const W* __restrict__ gain, T* __restrict__ out, int width, float eps) {
  const int64_t start = (int64_t)blockIdx.x * width;
  const Row<T, VEC, true> row{x + start, residual + start};
  auto read = [&](float (&v)[VEC], int column) { row.read(v, column); };
  auto again = [&](float (&v)[VEC], int column) { row.again(v, column); };
  rms<VEC, ITEMS, THREADS>(width, eps, read, again, [&](float (&v)[VEC], float scale, int column, bool inside) {
    if (!inside) return;
    multiply<PLUS_ONE>(v, scale, gain, column);
    store_floats(out + start + column, v);
  });
}

// ------------------------------------------------------------------------------------------------------- norms for a8 products
// Columns of a normed row as e4m3 codes with a scale for each run of 128, bit by bit as if the row had been stored as T in between. Scales
// of rows that do not exist are 1. All threads of a warp call; those of 128 columns are neighbours.
template <class T, int VEC> POEM_DEVICE void store_codes(float (&v)[VEC], uint8_t* codes, float* scales, int row, int rows, int column,
                                                         int width, int stride, bool inside) {
  static_assert(VEC >= 4, "a run is one warp's, and codes are stored by four");
  uint32_t largest = 0;
  if (inside) {
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      v[j] = to_float(from_float<T>(v[j]));
      largest = max(largest, magnitude_bits(v[j]));
    }
  }
#pragma unroll
  for (int by = 64 / VEC; by > 0; by /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, by));
  if (!inside) return;
  const float scale = activation_scale(largest);
  Pack<uint32_t, VEC / 4> packed;
#pragma unroll
  for (int j = 0; j < VEC; j += 4) packed.at[j / 4] = activation_codes(&v[j], scale);
  store<uint32_t, VEC / 4>(reinterpret_cast<uint32_t*>(codes + (int64_t)row * width + column), packed);
  if (column % 128 != 0) return;
  float* const of_run = scales + (int64_t)(column / 128) * stride;
  of_run[row] = scale;
  if (row == rows - 1)
    for (int missing = rows; missing < stride; ++missing) of_run[missing] = 1.0f;
}
template <class T, class W, int VEC, int ITEMS, int THREADS, bool PLUS_ONE, bool ADD>
__global__ void __launch_bounds__(THREADS, resident(THREADS))
    rmsnorm_codes(const T* __restrict__ x, T* __restrict__ residual, const W* __restrict__ gain, uint8_t* __restrict__ codes,
                  float* __restrict__ scales, int rows, int width, int stride, float eps) {
  const int64_t start = (int64_t)blockIdx.x * width;
  const Row<T, VEC, ADD> row{x + start, residual + start};
  auto read = [&](float (&v)[VEC], int column) { row.read(v, column); };
  auto again = [&](float (&v)[VEC], int column) { row.again(v, column); };
  rms<VEC, ITEMS, THREADS>(width, eps, read, again, [&](float (&v)[VEC], float scale, int column, bool inside) {
    if (inside) multiply<PLUS_ONE>(v, scale, gain, column);
    store_codes<T>(v, codes, scales, blockIdx.x, rows, column, width, stride, inside);
  });
}

// --------------------------------------------------------------------------------------------------------------- gated norms
// out = rms(x) * w * a, or with GATE_FIRST rms(x * a) * w, where a is sigmoid(gate), or silu(gate). x has a dtype of its own.
template <class X, class T, class W, int VEC, int ITEMS, int THREADS, bool SILU_GATE, bool GATE_FIRST>
__global__ void __launch_bounds__(block_of(THREADS), resident(THREADS))
    rmsnorm_gated(const X* __restrict__ x, const T* __restrict__ gate, const W* __restrict__ gain, T* __restrict__ out, int runs, int size,
                  int gain_runs, float eps) {
  const int run = run_of_thread<THREADS>();
  const bool mine = run < runs;
  const int64_t start = (int64_t)run * size;
  auto open = [&](float (&v)[VEC], int column) {
    float g[VEC];
    load_floats(g, gate + start + column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) v[j] *= SILU_GATE ? activated<SILU>(g[j]) : sigmoid(g[j]);
  };
  auto read = [&](float (&v)[VEC], int column) {
    load_floats(v, x + start + column);
    if (GATE_FIRST) open(v, column);
  };
  rms<VEC, ITEMS, THREADS>(mine ? size : 0, eps, read, read, [&](float (&v)[VEC], float scale, int column, bool inside) {
    if (!inside) return;
    multiply<false>(v, scale, gain + run % gain_runs * size, column);
    if (!GATE_FIRST) open(v, column);
    store_floats(out + start + column, v);
  });
}

// --------------------------------------------------------------------------------------------------------------- layer norms
// out = (x - mean) / sqrt(variance + eps) * w + b, the variance in a second pass; no gain or bias where the pointer is null. One row per
// block.
template <class T, class W, class B, int VEC, int ITEMS, int THREADS> __global__ void __launch_bounds__(THREADS, resident(THREADS))
    layernorm(const T* __restrict__ x, const W* __restrict__ gain, const B* __restrict__ bias, T* __restrict__ out, int width, float eps) {
  const int64_t row = (int64_t)blockIdx.x * width;
  constexpr int HELD = ITEMS > 0 ? ITEMS : 1;
  float held[HELD][VEC];
  float sum = 0.0f;
  for_packs<VEC, ITEMS, THREADS>(width, [&](int i, int column, bool inside) {
    auto& v = held[i % HELD];
    if (!inside) return;
    load_floats(v, x + row + column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum += v[j];
  });
  const float mean = run_sum<THREADS, 1>(sum) / (float)width;
  auto centre = [&](float (&v)[VEC], int column) {
    if (ITEMS == 0) load_floats(v, x + row + column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) v[j] -= mean;
  };
  float squares = 0.0f;
  for_packs<VEC, ITEMS, THREADS>(width, [&](int i, int column, bool inside) {
    auto& v = held[i % HELD];
    if (!inside) return;
    centre(v, column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) squares += v[j] * v[j];
  });
  const float scale = 1.0f / sqrtf(run_sum<THREADS, 2>(squares) / (float)width + eps);
  for_packs<VEC, ITEMS, THREADS>(width, [&](int i, int column, bool inside) {
    auto& v = held[i % HELD];
    if (!inside) return;
    if (ITEMS == 0) centre(v, column);
    multiply<false>(v, scale, gain, column);
    if (bias) {
      float b[VEC];
      load_floats(b, bias + column);
#pragma unroll
      for (int j = 0; j < VEC; ++j) v[j] += b[j];
    }
    store_floats(out + row + column, v);
  });
}
