// linear_warpgroups.cu: out = x w^T for many rows on sm_90a: TMA into a ring, wgmma out of it, one warpgroup that loads and two that multiply.
//
// T is bf16, or e4m3 with a scale of x and a gain of w for each 128 columns, by which sums are promoted to float32. OUT, ACT, bias as in linear.cu.
// Tiles are 128 rows of x by BN rows of w by 128 bytes. Blocks stay and take tile after tile, eight rows of tiles at a time, so that neighbours in
// time share rows of w and of x in the second-level cache, and the next tile loads while this one is stored.
#include "prelude.cuh"
using namespace poem;

template <class T, class OUT, Activation ACT, int BN, int STAGES>
__global__ void __launch_bounds__(384, 1)
    product_by_warpgroups(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap out,
                          const float* __restrict__ x_scale, const float* __restrict__ gain, const OUT* __restrict__ bias, int rows, int outputs,
                          int width, int scale_stride, int gain_stride) {
  constexpr bool FP8 = sizeof(T) == 1;
  constexpr int BM = 128, BK = 128 / sizeof(T), X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;
  constexpr int SCALES = FP8 ? (BM + BN) * 4 : 0;   // bytes of a step: of rows of x, then gains of rows of w
  constexpr int BO = ACT ? BN / 2 : BN, CHUNK = 128 / sizeof(OUT), STORES = BO / CHUNK, R = BN / 2;   // registers of D
  constexpr int STAGING_AT = STAGES * STAGE, SCALES_AT = STAGING_AT + BM * BO * (int)sizeof(OUT);
  static_assert(BO % CHUNK == 0, "tile shape");
  POEM_DYNAMIC_SHARED(memory);
  POEM_SHARED(uint64_t, bars, [2 * STAGES]);
  const int t = threadIdx.x, group = t / 128, steps = (width + BK - 1) / BK;
  const int row_tiles = (rows + BM - 1) / BM, out_tiles = (outputs + BO - 1) / BO, tiles = row_tiles * out_tiles;
  const uint32_t base = shared_address(memory), full = shared_address(bars), empty = full + 8 * STAGES;
  if (t == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 2);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  auto row_of = [&](int tile) -> int {
    const int band = tile / (8 * out_tiles), size = min(8, row_tiles - band * 8);
    return (band * 8 + tile % (8 * out_tiles) % size) * BM;
  };
  auto column_of = [&](int tile) -> int {
    const int band = tile / (8 * out_tiles), size = min(8, row_tiles - band * 8);
    return tile % (8 * out_tiles) / size * BO;
  };
  int step = 0;   // of all tiles of this block
  if (group == 0) {
    release_registers<24>();
    if (t == 0)
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int n0 = row_of(tile), m0 = column_of(tile);
        for (int kt = 0; kt < steps; ++kt, ++step) {
          const int s = step % STAGES;
          const uint32_t bar = full + 8 * s, stage = base + s * STAGE;
          mbarrier_wait(empty + 8 * s, step / STAGES % 2 ^ 1);
          // Scales are rows of a matrix that may end before the tile does.
          const uint32_t of_x = FP8 ? min(BM, scale_stride - n0) * 4 : 0, of_w = FP8 ? min(BO, gain_stride - m0) * 4 : 0;
          const uint32_t of_ups = FP8 && ACT ? min(BO, gain_stride - outputs - m0) * 4 : 0;
          mbarrier_arrive_expect(bar, STAGE + of_x + of_w + of_ups);
          if constexpr (FP8) {
            const uint32_t to = base + SCALES_AT + s * SCALES;
            bulk_load(to, x_scale + (size_t)kt * scale_stride + n0, of_x, bar);
            bulk_load(to + BM * 4, gain + (size_t)kt * gain_stride + m0, of_w, bar);
            if (ACT) bulk_load(to + (BM + BO) * 4, gain + (size_t)kt * gain_stride + outputs + m0, of_ups, bar);
          }
          tma_load(stage, &x, bar, kt * BK, n0);
          tma_load(stage + X_BYTES, &w, bar, kt * BK, m0);
          if (ACT) tma_load(stage + X_BYTES + BO * 128, &w, bar, kt * BK, outputs + m0);
        }
      }
  } else {
    acquire_registers<240>();
    const int half = group - 1, own = t % 128, lane = t % 32, warp = own / 32;
    const uint32_t staging_at = STAGING_AT + half * STORES * 64 * 128;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const int n0 = row_of(tile) + half * 64, m0 = column_of(tile), row = n0 + warp * 16 + lane / 4;
      float sum[R];
      float part[FP8 ? R : 1];
      if constexpr (FP8) {
#pragma unroll
        for (int i = 0; i < R; ++i) sum[i] = 0.0f;
      }
      for (int kt = 0; kt < steps; ++kt, ++step) {
        const int s = step % STAGES;
        mbarrier_wait(full + 8 * s, step / STAGES % 2);
        const uint32_t sx = base + s * STAGE + half * 64 * 128, sw = base + s * STAGE + X_BYTES;
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
          const uint64_t a = row_descriptor<Swizzle::bytes128>(sx + kk * 32), b = row_descriptor<Swizzle::bytes128>(sw + kk * 32);
          if constexpr (FP8) wgmma<T>(part, a, b, kk > 0);
          else wgmma<T>(sum, a, b, kt > 0 || kk > 0);
        }
        wgmma_commit();
        if constexpr (FP8) {
          const float* const of_x = reinterpret_cast<const float*>(memory + SCALES_AT + s * SCALES);
          const float* const of_w = of_x + BM;
          const float low = row < rows ? of_x[row % BM] : 0.0f, high = row + 8 < rows ? of_x[row % BM + 8] : 0.0f;
          wgmma_wait<0>();
#pragma unroll
          for (int j = 0; j < BN / 8; ++j) {   // eight rows of w lie in one tile of its gains
            const float g = m0 + j * 8 % BO < outputs ? of_w[j * 8] : 0.0f;
            sum[4 * j] += part[4 * j] * (low * g), sum[4 * j + 1] += part[4 * j + 1] * (low * g);
            sum[4 * j + 2] += part[4 * j + 2] * (high * g), sum[4 * j + 3] += part[4 * j + 3] * (high * g);
          }
          barrier_sync(3 + half, 128);   // all have read the scales
          if (own == 0) mbarrier_arrive(empty + 8 * s);
        } else if (kt > 0) {   // the products of this step go on while the next one is waited for
          wgmma_wait<1>();
          if (own == 0) mbarrier_arrive(empty + 8 * ((step - 1) % STAGES));
        }
      }
      if constexpr (!FP8) {
        wgmma_wait<0>();
        if (own == 0) mbarrier_arrive(empty + 8 * ((step - 1) % STAGES));
      }
      if (own == 0) bulk_wait_read<0>();   // of the tile before
      barrier_sync(1 + half, 128);
#pragma unroll
      for (int j = 0; j < BO / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int column = j * 8 + lane % 4 * 2, r = warp * 16 + lane / 4 + h * 8;
          float v[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            v[e] = sum[j * 4 + h * 2 + e];
            if constexpr (ACT != NO_ACTIVATION)
              v[e] = activated<ACT>(to_float(from_float<OUT>(v[e]))) * to_float(from_float<OUT>(sum[R / 2 + j * 4 + h * 2 + e]));
            else if (bias && m0 + column + e < outputs) v[e] = to_float(from_float<OUT>(v[e])) + to_float(bias[m0 + column + e]);
          }
          const uint32_t at = column / CHUNK * 8192 + swizzled<Swizzle::bytes128>(r * 128 + column % CHUNK * sizeof(OUT));
          if constexpr (sizeof(OUT) == 2) *reinterpret_cast<uint32_t*>(memory + staging_at + at) = pack<OUT>(v[0], v[1]);
          else *reinterpret_cast<float2*>(memory + staging_at + at) = make_float2(v[0], v[1]);
        }
      fence_async_proxy();
      barrier_sync(1 + half, 128);
      if (own == 0) {
        for (int c = 0; c < STORES; ++c) tma_store(&out, base + staging_at + c * 8192, m0 + c * CHUNK, n0);
        bulk_commit();
      }
    }
    if (own == 0) bulk_wait_read<0>();
  }
}
