// linear.cu: out[n, m] = sum over k of x[n, k] w[m, k], for any number of rows, by mma.sync: a ring of cp.async tiles, registers, tensor cores.
//
// Weights are the 16-row operand of the products, rows of x the 8-row one, so that one text serves a single row and thousands.
//
// F is the format of w (prelude/packed.cuh), X what x holds (bf16, or e4m3 codes with a scale for each run of 128 columns), MATH what the
// tensor cores multiply, OUT what out holds. With ACT, w is [2 outputs, width], and out = act(gate) * up of the two halves, each rounded to
// OUT first, as when the product is stored and read again. So is the product before `bias`, where there is one, is added: one number for each
// row of w.
//
// Which columns meet in an mma is free as long as both operands agree. Here a lane takes RUN consecutive columns out of SPAN = 4 RUN, for it then
// reads codes as they lie in memory, in 4 to 16 bytes at a time, whatever their width.
//
// A sum over k runs through the spans in order. It may be cut into slices: either each by its own block (gridDim.z), the last of which adds
// them up, or (SLICED) all by one block. Both add slice by slice from 0, so the bits of a row do not depend on which it is, or on the tile.
#include "prelude.cuh"
using namespace poem;

// Where 16 bytes of a tile lie. Rows of ROW bytes follow each other; lanes that read RUN bytes each of consecutive rows, four lanes to a row,
// meet all banks: the pieces of a row that different runs of it occupy are exchanged by its number.
template <int ROW, int RUN> POEM_DEVICE uint32_t place(int row, int byte) {
  int piece = byte / 16;
  if constexpr (RUN == 32) {
    piece ^= row & 1;
  } else {
    static_assert(RUN == 16 || RUN == 8 || RUN == 4, "a run is 4 to 32 bytes");
    constexpr int PIECES = RUN / 4, TOGETHER = 32 / RUN, RUNS = ROW / (4 * RUN);   // pieces of four runs; rows of a wavefront; runs of a row
    constexpr int WAYS = RUNS < TOGETHER ? RUNS : TOGETHER, ALIKE = TOGETHER / WAYS;   // to exchange them; rows that do so alike
    piece ^= row / ALIKE % WAYS * PIECES;
  }
  return row * ROW + piece * 16 + byte % 16;
}

template <bool FIRST, class A, class B> POEM_DEVICE auto& either(A& a, B& b) {
  if constexpr (FIRST) return a;
  else return b;
}

// f(i) for the numbers i below COUNT that are thread t's, one out of T. How many those are is known to the compiler.
template <int COUNT, int T, class F> POEM_DEVICE void share(int t, F f) {
  static_assert(COUNT % T == 0 || COUNT < T, "whole rounds, or less than one");
  if constexpr (COUNT < T) {
    if (t < COUNT) f(t);
  } else {
#pragma unroll
    for (int n = 0; n < COUNT; n += T) f(n + t);
  }
}

template <class F, class X, class MATH> struct Walk {
  static constexpr bool FP8 = sizeof(MATH) == 1;
  static constexpr int SPAN = FP8 ? 128 : F::BITS == 16 || (F::PROMOTED && F::GROUP == 32) ? 32 : 64, RUN = SPAN / 4;
  static constexpr int STEP = FP8 ? 16 : F::WORDS * 32 / F::BITS;   // columns of a lane that are decoded together
  static constexpr int PAIRS = STEP * sizeof(MATH) / 4;             // registers that makes, for each row
  static constexpr int W_RUN = RUN * F::BITS / 8, X_RUN = RUN * sizeof(X);
  static constexpr int LOAD = W_RUN < 16 ? W_RUN : 16, STEPS = RUN / STEP, STEPS_PER_LOAD = LOAD * 8 / F::BITS / STEP;
};

template <class F, class X, class MATH, class OUT, Activation ACT, int BM, int BN, int BK, int STAGES, int WARPS_M, int WARPS_N, bool SLICED>
__global__ void __launch_bounds__(WARPS_M* WARPS_N * 32, 1)
    product(const X* __restrict__ x, const float* __restrict__ x_scale, const uint8_t* __restrict__ code, const typename F::Gain* __restrict__ gain,
            const typename F::Gain* __restrict__ offset, const float* __restrict__ row_gain, const OUT* __restrict__ bias, OUT* __restrict__ out,
            float* partial, uint32_t* counters, int rows, int outputs, int width, int scale_stride, int gain_stride, int slice) {
  using Walk = Walk<F, X, MATH>;
  using Gain = typename F::Gain;
  constexpr bool SCALED_X = sizeof(X) == 1;
  constexpr int T = WARPS_M * WARPS_N * 32, WM = BM / WARPS_M, WN = BN / WARPS_N, GROUP = F::GROUP ? F::GROUP : BK, MT = WM / 16, NT = WN / 8, SPANS = BK / Walk::SPAN;
  constexpr int W_ROW = BK * F::BITS / 8, X_ROW = BK * sizeof(X), GAINS = F::GROUP == 0 ? 0 : GROUP >= BK ? 1 : BK / GROUP;
  constexpr int X_AT = BM * W_ROW, GAIN_AT = X_AT + BN * X_ROW, OFFSET_AT = GAIN_AT + GAINS * BM * sizeof(Gain);
  constexpr int SCALE_AT = OFFSET_AT + (F::HAS_OFFSET ? GAINS * BM * (int)sizeof(Gain) : 0), STAGE = SCALE_AT + (SCALED_X ? BN * 4 : 0);
  constexpr int BO = ACT ? BM / 2 : BM;   // columns of out
  constexpr int STEPS_UNROLLED = Walk::FP8 && SLICED ? 1 : Walk::STEPS;       // beside three sums, registers hold the operands of one
  constexpr int SLICES_UNROLLED = MT * NT < 16 ? 16 / (MT * NT) : 1;          // 16 loads under way
  static_assert(WM % (ACT ? 32 : 16) == 0 && WN % 8 == 0 && BK % Walk::SPAN == 0 && (!SCALED_X || BK == 128), "tile shape");
  POEM_DYNAMIC_SHARED(memory);
  const int t = threadIdx.x, lane = t % 32, g = lane / 4, q = lane % 4, warp = t / 32;
  // Eight tiles of rows take the same columns before the next ones do, so that blocks at work share rows of w and of x in the second-level cache.
  const int tile = blockIdx.y * gridDim.x + blockIdx.x, band = tile / (8 * gridDim.x), within = tile % (8 * gridDim.x);
  const int band_rows = min(8u, gridDim.y - band * 8), m0 = within / band_rows * BO, n0 = (band * 8 + within % band_rows) * BN;
  const int wm = warp % WARPS_M * WM, wn = warp / WARPS_M * WN;
  const uint32_t base = shared_address(memory);
  const int tiles = (width + BK - 1) / BK, slice_tiles = slice / BK;
  const int first = blockIdx.z * slice_tiles, last = gridDim.z > 1 ? min(first + slice_tiles, tiles) : tiles;

  // The row of w that stands in row r of the tile: 16 rows of gates and 16 of ups in turn, or just row r. Past the end: -1.
  auto weight_row = [&](int r) -> int {
    const int m = ACT ? m0 + r / 32 * 16 + r % 16 : m0 + r;
    return m >= outputs ? -1 : ACT ? m + r / 16 % 2 * outputs : m;
  };
  auto load_gains = [&](const Gain* from, uint32_t to, int kt) -> void {
    constexpr int PIECE = 16 / sizeof(Gain), PIECES = BM / PIECE;
    share<GAINS * PIECES, T>(t, [&](int i) -> void {
      const int r = i % PIECES * PIECE, k = kt * BK + i / PIECES * GROUP, row = weight_row(r);
      const bool inside = row >= 0 && k < width;
      cp_async(to + i * 16, from + (inside ? (size_t)(k / GROUP) * gain_stride + row : 0), inside ? 16 : 0);
    });
  };
  auto load_stage = [&](int kt) -> void {
    const uint32_t stage = base + (kt - first) % STAGES * STAGE;
    share<BM * (W_ROW / 16), T>(t, [&](int i) -> void {
      const int r = i / (W_ROW / 16), byte = i % (W_ROW / 16) * 16, k = kt * BK + byte * 8 / F::BITS, row = weight_row(r);
      const bool inside = row >= 0 && k < width;
      cp_async(stage + place<W_ROW, Walk::W_RUN>(r, byte), code + (inside ? ((size_t)row * width + k) * F::BITS / 8 : 0), inside ? 16 : 0);
    });
    share<BN * (X_ROW / 16), T>(t, [&](int i) -> void {
      const int r = i / (X_ROW / 16), byte = i % (X_ROW / 16) * 16, k = kt * BK + byte / (int)sizeof(X);
      const bool inside = n0 + r < rows && k < width;
      cp_async(stage + X_AT + place<X_ROW, Walk::X_RUN>(r, byte), x + (inside ? (size_t)(n0 + r) * width + k : 0), inside ? 16 : 0);
    });
    if constexpr (GAINS > 0) load_gains(gain, stage + GAIN_AT, kt);
    if constexpr (F::HAS_OFFSET) load_gains(offset, stage + OFFSET_AT, kt);
    if constexpr (SCALED_X) {
      share<BN / 4, T>(t, [&](int i) -> void {   // a tile has as many columns as share a scale
        const int n = n0 + i * 4;
        cp_async(stage + SCALE_AT + i * 16, x_scale + (n < rows ? (size_t)kt * scale_stride + n : 0), n < rows ? 16 : 0);
      });
    }
  };

  float sum[MT][NT][4] = {};               // of a slice
  float total[SLICED ? MT : 1][NT][4] = {};   // of the slices before
  for (int s = 0; s < STAGES - 1; ++s) {
    if (first + s < last) load_stage(first + s);
    cp_async_commit();
  }
  for (int kt = first; kt < last; ++kt) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    const uint8_t* const stage = memory + (kt - first) % STAGES * STAGE;
    if (kt + STAGES - 1 < last) load_stage(kt + STAGES - 1);
    cp_async_commit();
#pragma unroll
    for (int span = 0; span < SPANS; ++span) {
      typename F::Factor factors[MT][2];
      if constexpr (GAINS > 0) {
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int group = (span * Walk::SPAN + (GROUP < Walk::SPAN ? q * Walk::RUN : 0)) / GROUP;
            const int at = (GROUP >= BK ? 0 : group * BM) + wm + i * 16 + h * 8 + g;
            const Gain* const gains = reinterpret_cast<const Gain*>(stage + GAIN_AT);
            factors[i][h] = F::factor(gains[at], reinterpret_cast<const Gain*>(stage + (F::HAS_OFFSET ? OFFSET_AT : GAIN_AT))[at]);
          }
      }
      float part[F::PROMOTED ? MT : 1][NT][4] = {};          // of this span, without gains
      float x_sums[F::HAS_OFFSET ? NT : 1][4] = {};          // of x over this span
      uint32_t codes[MT][2][Walk::LOAD / 4];
#pragma unroll STEPS_UNROLLED
      for (int step = 0; step < Walk::STEPS; ++step) {
        uint32_t b[NT][Walk::PAIRS];
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          constexpr int BYTES = Walk::STEP * sizeof(X), LOAD = BYTES < 16 ? BYTES : 16;
          uint32_t raw[BYTES / 4];
#pragma unroll
          for (int l = 0; l < BYTES / LOAD; ++l) {
            const int byte = (span * 4 + q) * Walk::X_RUN + step * BYTES + l * LOAD;
            const auto v = *reinterpret_cast<const Pack<uint32_t, LOAD / 4>*>(stage + X_AT + place<X_ROW, Walk::X_RUN>(wn + j * 8 + g, byte));
#pragma unroll
            for (int e = 0; e < LOAD / 4; ++e) raw[l * LOAD / 4 + e] = v.at[e];
          }
          if constexpr (SCALED_X && !Walk::FP8) {
            E4m3::values(raw, b[j]);
          } else if constexpr (F::SPREAD > 1) {
#pragma unroll
            for (int e = 0; e < Walk::PAIRS; ++e) b[j][e] = permute_bytes(raw[e / 2], raw[e / 2 + Walk::PAIRS / 2], e % 2 ? 0x7632 : 0x5410);
          } else {
#pragma unroll
            for (int e = 0; e < Walk::PAIRS; ++e) b[j][e] = raw[e];
          }
        }
        auto& target = either<F::PROMOTED>(part, sum);
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          uint32_t a[2][Walk::PAIRS];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (step % Walk::STEPS_PER_LOAD == 0) {
              const int byte = (span * 4 + q) * Walk::W_RUN + step / Walk::STEPS_PER_LOAD * Walk::LOAD;
              const auto v = *reinterpret_cast<const Pack<uint32_t, Walk::LOAD / 4>*>(stage + place<W_ROW, Walk::W_RUN>(wm + i * 16 + h * 8 + g, byte));
#pragma unroll
              for (int e = 0; e < Walk::LOAD / 4; ++e) codes[i][h][e] = v.at[e];
            }
            const int word = step % Walk::STEPS_PER_LOAD * (Walk::STEP * F::BITS / 32);
            if constexpr (Walk::FP8) {
#pragma unroll
              for (int e = 0; e < Walk::PAIRS; ++e) a[h][e] = codes[i][h][word + e];
            } else {
              F::decode(codes[i][h] + word, factors[i][h], a[h]);
            }
          }
#pragma unroll
          for (int p = 0; p < Walk::PAIRS; p += 2) {
            const uint32_t w[4] = {a[0][p], a[1][p], a[0][p + 1], a[1][p + 1]};
#pragma unroll
            for (int j = 0; j < NT; ++j) {
              if constexpr (Walk::FP8) mma_m16n8k32<e4m3>(target[i][j], w, b[j][p], b[j][p + 1]);
              else mma_m16n8k16<bf16>(target[i][j], w, b[j][p], b[j][p + 1]);
            }
          }
        }
        if constexpr (F::HAS_OFFSET) {
          const uint32_t ones[4] = {ONE_PAIR, ONE_PAIR, ONE_PAIR, ONE_PAIR};
#pragma unroll
          for (int p = 0; p < Walk::PAIRS; p += 2)
#pragma unroll
            for (int j = 0; j < NT; ++j) mma_m16n8k16<bf16>(x_sums[j], ones, b[j][p], b[j][p + 1]);
        }
      }
      if constexpr (F::PROMOTED) {
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          float scales[2];
          if constexpr (SCALED_X)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              scales[e] = reinterpret_cast<const float*>(stage + SCALE_AT)[wn + j * 8 + q * 2 + e];
#pragma unroll
          for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const typename F::Factor& f = factors[i][e / 2];
              if constexpr (SCALED_X) sum[i][j][e] += part[i][j][e] * scales[e % 2] * f.gain;
              else sum[i][j][e] += part[i][j][e] * f.gain;
              if constexpr (F::HAS_OFFSET) sum[i][j][e] += x_sums[j][e] * f.rest;
            }
        }
      }
    }
    if constexpr (SLICED)
      if ((kt + 1) % slice_tiles == 0 || kt + 1 == last) {
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
          for (int j = 0; j < NT; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              total[i][j][e] += sum[i][j][e];
              sum[i][j][e] = 0.0f;
            }
      }
  }
  if constexpr (SLICED) {
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][j][e] = total[i][j][e];
  }

  // Slices of other blocks: whoever comes last adds all of them, in order.
  if (gridDim.z > 1) {
    float4* const slices = reinterpret_cast<float4*>(partial) + (size_t)tile * gridDim.z * (MT * NT * T) + t;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int j = 0; j < NT; ++j)
        slices[(size_t)(blockIdx.z * MT * NT + i * NT + j) * T] = make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
    POEM_SHARED(uint32_t, arrived, [1]);
    __syncthreads();
    if (t == 0) arrived[0] = atomic_add_acq_rel(counters + tile, 1u);
    __syncthreads();
    if (arrived[0] != gridDim.z - 1) return;
    if (t == 0) counters[tile] = 0;   // ready for the next launch
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int j = 0; j < NT; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
#pragma unroll SLICES_UNROLLED
    for (unsigned z = 0; z < gridDim.z; ++z)
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) {
          const float4 v = slices[(size_t)(z * MT * NT + i * NT + j) * T];
          sum[i][j][0] += v.x, sum[i][j][1] += v.y, sum[i][j][2] += v.z, sum[i][j][3] += v.w;
        }
  }

  // Results are turned in shared memory, so that rows of out are stored 16 bytes at a time.
  constexpr int VEC = 16 / sizeof(OUT), STAGED = BO + VEC;
  OUT* const staged = reinterpret_cast<OUT*>(memory);
  __syncthreads();
  auto finished = [&](int i, int j, int e) -> OUT {
    float v = sum[i][j][e];
    const int row = weight_row(wm + i * 16 + e / 2 * 8 + g);
    if constexpr (F::ROW_GAIN) v *= row < 0 ? 0.0f : row_gain[row];
    const OUT product = from_float<OUT>(v);
    if constexpr (ACT == NO_ACTIVATION)
      if (bias && row >= 0) return from_float<OUT>(to_float(product) + to_float(bias[row]));
    return product;
  };
#pragma unroll
  for (int i = 0; i < MT; i += ACT ? 2 : 1)
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        OUT v = finished(i, j, e);
        if constexpr (ACT != NO_ACTIVATION) v = from_float<OUT>(activated<ACT>(to_float(v)) * to_float(finished(i + 1, j, e)));
        staged[(wn + j * 8 + q * 2 + e % 2) * STAGED + (wm + i * 16) / (BM / BO) + e / 2 * 8 + g] = v;
      }
  __syncthreads();
  for (int i = t; i < BN * (BO / VEC); i += T) {
    const int r = i / (BO / VEC), c = i % (BO / VEC) * VEC;
    if (n0 + r >= rows || m0 + c >= outputs) continue;
    const OUT* const from = staged + r * STAGED + c;
    OUT* const to = out + (size_t)(n0 + r) * outputs + m0 + c;
    if (outputs % VEC == 0) *reinterpret_cast<Pack<OUT, VEC>*>(to) = *reinterpret_cast<const Pack<OUT, VEC>*>(from);
    else
#pragma unroll 1
      for (int e = 0; e < VEC && m0 + c + e < outputs; ++e) to[e] = from[e];
  }
}
