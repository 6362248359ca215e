// attn.cu: attention over paged caches.
//
// T is the dtype of activations, C that of cells. A cache plane is [pages, page_size, heads, width]; cell j of a lane is at offset
// j % page_size of page page_indices[page_indptr[lane] + j / page_size]. What a cell holds is code * scale; scales belong to cells of 8
// bits. Pointers that a call leaves out are null.
#include "prelude.cuh"
using namespace poem;

constexpr uint32_t WARP = 0xffffffffu;
constexpr float LOG2_E = 1.44269504088896341f;
POEM_DEVICE float minus_infinity() { return bits_float(0xff800000u); }

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }

// The rows of one key head are its group's query heads of one new row after the other: row i * group + h is head h of new row i. A block
// takes TILE of them against a piece of the cells they may see, in tiles of CELLS cells, counted from cell 0, so that the order of a row's
// sums does not depend on the rows beside it.
struct Block {
  int lane, first_row;  // of the lane, in the packed activations
  int start, count;     // packed rows of this block
  int position;         // of the lane's first new row
  int length;           // cells of the lane
  int lowest, stop;     // cells that any of the block's rows may see
  int first;            // lowest, or before it: a multiple of CELLS
  const int* pages;
};
template <int TILE, int CELLS> POEM_DEVICE bool find_block(Block& b, const int* tiles, const int* qo_indptr, const int* kv_len,
                                                           const int* page_indptr, const int* page_indices, int group, int window,
                                                           int causal) {
  b.lane = tiles[blockIdx.x * 2];
  if (b.lane < 0) return false;
  b.start = tiles[blockIdx.x * 2 + 1];
  b.first_row = qo_indptr[b.lane];
  const int rows = qo_indptr[b.lane + 1] - b.first_row;
  b.count = min(TILE, rows * group - b.start);
  b.length = kv_len[b.lane];
  b.position = b.length - rows;
  b.stop = causal ? b.position + (b.start + b.count - 1) / group + 1 : b.length;
  b.lowest = max(0, b.position + b.start / group - window + 1);
  b.first = b.lowest / CELLS * CELLS;
  b.pages = page_indices + page_indptr[b.lane];
  return true;
}

// Tiles have rows of CHUNKS times 16 bytes. Chunks of a row change places within SPAN, by its number, so that eight rows at one chunk share
// no bank.
template <int CHUNKS> struct Row {
  static constexpr int SPAN = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
  static_assert(CHUNKS % 2 == 0, "rows of whole 32 bytes");
  uint32_t start, turned;
  POEM_DEVICE Row(uint32_t tile, int row, int chunk) : start(tile + row * CHUNKS * 16), turned((row / (8 / SPAN) % SPAN ^ chunk) * 16) {}
  // The address of chunk + further, of the row that lies 8 * eights below; `chunk` being 0 or 1, and `further` even, or 0 and any.
  POEM_DEVICE uint32_t at(int further, int eights) const {
    return start + (turned ^ further % SPAN * 16) + further / SPAN * SPAN * 16 + eights * 8 * CHUNKS * 16;
  }
};
// What a packed row sees, and what its scores depend on.
struct View {
  int low, high;  // cells, as far as a mask allows
  int position;
  float growth;       // of its scores, times log2(e)
  const float* bias;  // by distance
  int64_t first_bit;  // of its mask
};

// Bytes LOW and HIGH of four 8-bit cells as a pair of activations: exact.
template <class T, class C, int LOW, int HIGH> POEM_DEVICE uint32_t widened(uint32_t cells) {
  if constexpr (same_type<T, bf16> && same_type<C, e4m3>) return e4m3_pair(permute_bytes(cells, cells, HIGH << 12 | LOW << 4));
  const uint16_t pair = (uint16_t)permute_bytes(cells, cells, HIGH << 4 | LOW);
  const float2 f = same_type<C, e4m3> ? unpack_e4m3(pair) : unpack_e5m2(pair);
  return pack<T>(f.x, f.y);
}

// A softmax under way: `most`, the largest score, and `sum`, of the weights 2^(score - most), belong to weighted values that are kept
// elsewhere. What those count for where the largest score of all is `most`. Without a finite score the sum is 0, or NaN for a score that is
// NaN.
POEM_DEVICE float counts_for(float2 state, float most) { return state.x == minus_infinity() ? state.y : exp2_approx(state.x - most); }

POEM_DEVICE void add_weighted(Pack<float, 4>& sum, float weight, const Pack<float, 4>& x) {
#pragma unroll
  for (int e = 0; e < 4; ++e) sum.at[e] += weight * x.at[e];
}

// What a row's weighted values are multiplied by, and its log-sum-exp in base 2, once all weights are in: `total` of them relative to
// 2^most. A sink is one more score without a value. Where all scores are -inf, there are 0 / 0 of each value; where there is none, 0.
template <class Sees> POEM_DEVICE float2 finished(float most, float total, float sink, float v_scale, Sees sees_any) {
  sink *= LOG2_E;
  const float top = fmaxf(most, sink);
  if (top == minus_infinity() && total == 0.0f) return make_float2(sees_any() ? bits_float(0x7fffffff) : 0.0f, minus_infinity());
  const float weight = exp2_approx(most - top), all = total * weight + exp2_approx(sink - top);
  return make_float2(weight * v_scale / all, top + log2f(all));
}

// Softmax-weighted sums of values, each block for a piece of the cells. The pieces of a tile's rows are added up, in order, by the block
// that comes last: it finds that out by `counters`, one for each tile and key head, which are 0 before and after the launch.
//
// A score is scale * <q, k>. Without PLAIN it goes on: cap * tanh(score / cap), plus bias[row, head, distance] for distances below
// `extent`, times 1 + log_slope ln((position + 1) / log_floor) from position log_floor on; and a row may see only cells whose bit is set in
// `mask`, where its lane has bits there: [rows, length] of them from byte mask_indptr[lane] on. Sinks are floats if wide_sinks, else T;
// own_sinks says that each row has a list of its own. Where there is none, window is the largest integer,
// extent 0 and log_floor infinite.
template <class T, class C, int D, int DV, int WARPS_M, int WARPS_N, int CELLS, int STAGES, int PARTS, bool PLAIN>
__global__ void __launch_bounds__(WARPS_M * WARPS_N * 32, 1)
    attention(const T* __restrict__ q, const C* __restrict__ k_cache, const C* __restrict__ v_cache, const int* __restrict__ tiles,
              const int* __restrict__ qo_indptr, const int* __restrict__ kv_len, const int* __restrict__ page_indptr,
              const int* __restrict__ page_indices, const float* __restrict__ k_scale, const float* __restrict__ v_scale,
              const void* __restrict__ sinks, const uint8_t* __restrict__ mask, const int* __restrict__ mask_indptr,
              const float* __restrict__ bias, T* __restrict__ out, float* __restrict__ lse, float* partial, float2* sums,
              uint32_t* counters, int group, int kv_heads, int page_size, uint32_t page_magic, int page_shift,
              int window, int causal, int total_rows, int shortest, int own_sinks, int wide_sinks, int extent, float scale, float cap,
              float log_floor, float log_slope) {
  constexpr int TILE = WARPS_M * 16, THREADS = WARPS_M * WARPS_N * 32, OWN = CELLS / WARPS_N, SN = OWN / 8, ON = DV / 8, KS = D / 16;
  constexpr bool NARROW = sizeof(C) == 1, HELD = D <= 128;
  constexpr float RAISED = same_type<T, f16> ? 32768.0f : 1.0f;
  constexpr int K_CHUNKS = D * sizeof(C) / 16, V_CHUNKS = DV * sizeof(C) / 16;
  constexpr uint32_t K_BYTES = CELLS * D * sizeof(C), STAGE = K_BYTES + CELLS * DV * sizeof(C);
  static_assert(OWN % 16 == 0 && D % (NARROW ? 32 : 16) == 0 && DV % (NARROW ? 32 : 16) == 0, "tile shape");
  POEM_DYNAMIC_SHARED(memory);
  const int t = threadIdx.x, lane = t % 32, warp = t / 32, wm = warp % WARPS_M, wn = warp / WARPS_M, g = lane / 4, quad = lane % 4;
  const int head = blockIdx.y, heads = kv_heads * group;
  Block b;
  if (!find_block<TILE, CELLS>(b, tiles, qo_indptr, kv_len, page_indptr, page_indices, group, window, causal)) return;
  const int all_tiles = (b.stop - b.first + CELLS - 1) / CELLS;
  const int per_piece = max(shortest, (all_tiles + (int)gridDim.z - 1) / (int)gridDim.z);
  const int pieces = (all_tiles + per_piece - 1) / per_piece;  // at most gridDim.z; a short lane has fewer
  const int from_tile = blockIdx.z * per_piece, tile_count = min(per_piece, all_tiles - from_tile);
  if (tile_count <= 0) return;
  const int base_cell = b.first + from_tile * CELLS;
  const uint32_t base = shared_address(memory);

  // The slot of a cell that some row may see, which so has a page.
  auto slot_of_cell = [&](int cell) -> int {
    const int number = __umulhi(2u * cell, page_magic) >> page_shift;  // cell / page_size
    return (b.pages[number] - number) * page_size + cell;
  };
  auto load_stage = [&](int tile) {
    constexpr int CHUNKS = K_CHUNKS > V_CHUNKS ? K_CHUNKS : V_CHUNKS, ELEMENTS = 16 / (int)sizeof(C);
    const uint32_t keys = base + tile % STAGES * STAGE, values = keys + K_BYTES;
#pragma unroll (HELD || WARPS_M == 1 ? 4 : 1)
    for (int i = t; i < CELLS * CHUNKS; i += THREADS) {
      const int row = i / CHUNKS, chunk = i % CHUNKS, cell = base_cell + tile * CELLS + row;
      const bool seen = cell >= b.lowest && cell < b.stop;  // others are zeros, so that nothing in them spoils a sum
      const int64_t at = seen ? (int64_t)slot_of_cell(cell) * kv_heads + head : 0;
      const uint32_t bytes = seen ? 16 : 0;
      if (chunk < K_CHUNKS) cp_async(Row<K_CHUNKS>(keys, row, 0).at(chunk, 0), k_cache + (at * K_CHUNKS + chunk) * ELEMENTS, bytes);
      if (chunk < V_CHUNKS) cp_async(Row<V_CHUNKS>(values, row, 0).at(chunk, 0), v_cache + (at * V_CHUNKS + chunk) * ELEMENTS, bytes);
    }
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < tile_count) load_stage(s);
    cp_async_commit();
  }

  // Of a packed row: its place in the results, its queries, and what it sees.
  auto head_of = [&](int packed) { return head * group + packed % group; };
  auto output_row = [&](int packed) { return (int64_t)(b.first_row + packed / group) * heads + head_of(packed); };
  auto query_of = [&](int packed) { return q + output_row(packed) * D; };
  const bool masked = !PLAIN && mask && mask_indptr[b.lane + 1] > mask_indptr[b.lane];
  auto view_of = [&](int packed) -> View {
    const int position = b.position + packed / group;
    const float seen = (float)(position + 1), growth = seen > log_floor ? 1.0f + log_slope * logf(seen / log_floor) : 1.0f;
    return {position - window + 1, causal ? position : b.stop - 1, position, LOG2_E * growth, bias + output_row(packed) * extent,
            (int64_t)(packed / group) * b.length};
  };
  auto visible = [&](const View& row, int cell) -> bool {
    if (cell < row.low || cell > row.high) return false;
    return !masked || (mask + mask_indptr[b.lane])[(row.first_bit + cell) / 8] >> (row.first_bit + cell) % 8 & 1;
  };
  // A score in units of log 2.
  const float unit = (PLAIN ? LOG2_E : 1.0f) * scale * (k_scale ? *k_scale : 1.0f);
  auto score = [&](float product, const View& row, int cell) -> float {
    float x = product * unit;
    if constexpr (PLAIN) return x;
    if (cap > 0.0f) x = cap * tanhf(x / cap);
    const int distance = row.position - cell;
    if (distance >= 0 && distance < extent) x += row.bias[distance];
    return x * row.growth;
  };

  // This thread's two rows, the last one in place of rows that are nobody's; and q as the products take it. With 8-bit cells four
  // neighbouring columns of a row come to one thread, so q's columns are taken in that order too.
  const int last = b.start + b.count - 1, own[2] = {min(b.start + wm * 16 + g, last), min(b.start + wm * 16 + g + 8, last)};
  const View rows[2] = {view_of(own[0]), view_of(own[1])};
  uint32_t held[HELD ? KS : 1][4];
  uint32_t* const kept = reinterpret_cast<uint32_t*>(memory + STAGES * STAGE) + t * 4;  // each thread reads back what it wrote itself
#pragma unroll
  for (int kk = 0; kk < KS; ++kk)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = kk * 16 + (NARROW ? quad * 4 + i / 2 * 2 : quad * 2 + i / 2 * 8);
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(query_of(own[i % 2]) + column);
      if constexpr (HELD) held[kk][i] = pair;
      else kept[kk * THREADS * 4 + i] = pair;
    }

  float o[ON][4] = {};
  float largest[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.0f, 0.0f};
  for (int tile = 0; tile < tile_count; ++tile) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (tile + STAGES - 1 < tile_count) load_stage(tile + STAGES - 1);
    cp_async_commit();
    const uint32_t keys = base + tile % STAGES * STAGE, values = keys + K_BYTES;
    const Row<K_CHUNKS> key_row(keys, wn * OWN + (NARROW ? lane % 16 : lane % 8 + lane / 16 * 8), NARROW ? lane / 16 : lane / 8 % 2);
    const Row<V_CHUNKS> value_row(values, wn * OWN + lane % 16, lane / 16);
    const int cell0 = base_cell + tile * CELLS + wn * OWN;

    float s[SN][4] = {};
#pragma unroll
    for (int kk = 0; kk < KS; kk += NARROW ? 2 : 1) {
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int step = 0; step < (NARROW ? 2 : 1); ++step)
          if constexpr (HELD) a[step][i] = held[kk + step][i];
          else a[step][i] = kept[(kk + step) * THREADS * 4 + i];
#pragma unroll
      for (int n = 0; n < SN; n += 2) {
        uint32_t r[4];
        if constexpr (NARROW) {
          ldmatrix(r, key_row.at(kk, n));
#pragma unroll
          for (int i = 0; i < 4; ++i) mma_m16n8k16<T>(s[n + i % 2], a[i / 2], widened<T, C, 0, 1>(r[i]), widened<T, C, 2, 3>(r[i]));
        } else {
          ldmatrix(r, key_row.at(kk * 2, n));
          mma_m16n8k16<T>(s[n], a[0], r[0], r[1]);
          mma_m16n8k16<T>(s[n + 1], a[0], r[2], r[3]);
        }
      }
    }

    const bool all_visible = !masked && __all_sync(WARP, cell0 >= rows[1].low && cell0 + OWN - 1 <= rows[0].high);
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < SN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int cell = cell0 + n * 8 + quad * 2 + e % 2;
        s[n][e] = all_visible || visible(rows[e / 2], cell) ? score(s[n][e], rows[e / 2], cell) : minus_infinity();
        most[e / 2] = fmaxf(most[e / 2], s[n][e]);
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(WARP, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(WARP, most[i], 2));
      const float finite = most[i] == minus_infinity() ? 0.0f : most[i];
      const float shift = exp2_approx(largest[i] - finite);
      largest[i] = most[i];
      most[i] = finite;
      sum[i] *= shift;
#pragma unroll
      for (int n = 0; n < ON; ++n) {
        o[n][i * 2] *= shift;
        o[n][i * 2 + 1] *= shift;
      }
    }
#pragma unroll
    for (int n = 0; n < SN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2_approx(s[n][e] - most[e / 2]);
        sum[e / 2] += s[n][e];
      }

    // Weights have 24 bits, an operand of the tensor cores has 8 or 11: with two parts a weight is off by 2^-16 or 2^-22 of itself. The
    // smallest f16 is 2^-24, so weights in f16 are raised.
#pragma unroll
    for (int n = 0; n < SN; n += 2) {
      uint32_t p[PARTS][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t parts[PARTS];
        split<T>(parts, s[n + i / 2][i % 2 * 2] * RAISED, s[n + i / 2][i % 2 * 2 + 1] * RAISED);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) p[part][i] = parts[part];
      }
#pragma unroll
      for (int d = 0; d < ON; d += NARROW ? 4 : 2) {
        if constexpr (NARROW && DV > 128) __syncwarp();  // or more is loaded ahead than registers hold
        uint32_t r[4];
        ldmatrix<true>(r, value_row.at(NARROW ? d / 2 : d, n));
        if constexpr (NARROW) {  // a register holds two columns of two cells: even columns make one tile, odd ones the next
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const uint32_t even[2] = {widened<T, C, 0, 2>(r[i]), widened<T, C, 0, 2>(r[i + 1])};
            const uint32_t odd[2] = {widened<T, C, 1, 3>(r[i]), widened<T, C, 1, 3>(r[i + 1])};
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
              mma_m16n8k16<T>(o[d + i], p[part], even[0], even[1]);
              mma_m16n8k16<T>(o[d + i + 1], p[part], odd[0], odd[1]);
            }
          }
        } else {
#pragma unroll
          for (int part = 0; part < PARTS; ++part) {
            mma_m16n8k16<T>(o[d], p[part], r[0], r[1]);
            mma_m16n8k16<T>(o[d + 1], p[part], r[2], r[3]);
          }
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(WARP, sum[i], 1);
    sum[i] += __shfl_xor_sync(WARP, sum[i], 2);
  }

  // The warps that share rows meet in shared memory.
  constexpr int PITCH = DV + 8;                            // floats from one row to the next, so that rows lie in different banks
  float* const values = reinterpret_cast<float*>(memory);  // [WARPS_N, TILE, PITCH]
  float2* const states = reinterpret_cast<float2*>(values + WARPS_N * TILE * PITCH);  // [WARPS_N, TILE]
  bool spoilt = false;
#pragma unroll
  for (int n = 0; n < ON; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      o[n][e] /= RAISED;
      spoilt |= is_nan(o[n][e]);
    }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = wn * TILE + wm * 16 + g + 8 * i;
    float* const to = values + row * PITCH;
    if (quad == 0) states[row] = make_float2(largest[i], sum[i]);
#pragma unroll
    for (int n = 0; n < ON; n += NARROW ? 2 : 1) {
      if constexpr (NARROW) store<float, 4>(to + n * 8 + quad * 4, {o[n][i * 2], o[n + 1][i * 2], o[n][i * 2 + 1], o[n + 1][i * 2 + 1]});
      else store<float, 2>(to + n * 8 + quad * 2, {o[n][i * 2], o[n][i * 2 + 1]});
    }
  }
  // A value that is not finite makes NaN of its product with a weight of 0, in rows that may not see it, and infinity that of the second
  // part of a weight. Where a NaN came out, its row is summed again, by a warp, as written: without the cells that it may not see.
  if (__syncthreads_or(spoilt)) {
    for (int r = warp; r < b.count * WARPS_N; r += WARPS_M * WARPS_N) {
      const int packed = b.start + r / WARPS_N, of = r % WARPS_N;
      float* const to = values + (of * TILE + r / WARPS_N) * PITCH;
      const float most = states[of * TILE + r / WARPS_N].x;
      bool wrong = false;
      for (int d = lane; d < DV; d += 32) wrong |= is_nan(to[d]);
      if (!__any_sync(WARP, wrong)) continue;
      const View row = view_of(packed);
      float x[(DV + 31) / 32] = {};  // of columns lane, lane + 32, ...
      for (int c = 0; c < tile_count * OWN; ++c) {
        const int cell = base_cell + c / OWN * CELLS + of * OWN + c % OWN;
        if (!visible(row, cell)) continue;
        const int64_t at = (int64_t)slot_of_cell(cell) * kv_heads + head;
        const C* const key = k_cache + at * D;
        const C* const value = v_cache + at * DV;
        float product = 0.0f;
        for (int d = lane; d < D; d += 32) product += to_float(query_of(packed)[d]) * to_float(key[d]);
        for (int other = 16; other > 0; other /= 2) product += __shfl_xor_sync(WARP, product, other);
        const float weight = exp2_approx(score(product, row, cell) - (most == minus_infinity() ? 0.0f : most));
#pragma unroll
        for (int k = 0; k < (DV + 31) / 32; ++k)
          if (lane + 32 * k < DV) x[k] += weight * to_float(value[lane + 32 * k]);
      }
#pragma unroll
      for (int k = 0; k < (DV + 31) / 32; ++k)
        if (lane + 32 * k < DV) to[lane + 32 * k] = x[k];
    }
    __syncthreads();
  }
  const int64_t stride = (int64_t)total_rows * heads;  // rows of a piece in `partial` and `sums`
  auto finish = [&](int r, float most, float total) -> float2 {
    const int64_t sink = own_sinks ? output_row(b.start + r) : head_of(b.start + r);
    const float z = !sinks       ? minus_infinity()
                    : wide_sinks ? static_cast<const float*>(sinks)[sink]
                                 : to_float(static_cast<const T*>(sinks)[sink]);
    auto sees_any = [&]() -> bool {  // without a mask a row sees at least its own cell
      const View row = view_of(b.start + r);
      bool found = !masked;
      for (int cell = max(0, row.low); !found && cell <= row.high; ++cell) found = visible(row, cell);
      return found;
    };
    return finished(most, total, z, v_scale ? *v_scale : 1.0f, sees_any);
  };
  auto store_result = [&](int64_t at, const Pack<float, 4>& x, float factor) {
    store<T, 4>(out + at, {from_float<T>(x.at[0] * factor), from_float<T>(x.at[1] * factor), from_float<T>(x.at[2] * factor),
                           from_float<T>(x.at[3] * factor)});
  };
  for (int i = t; i < b.count * (DV / 4); i += THREADS) {
    const int r = i / (DV / 4), column = i % (DV / 4) * 4;
    float most = minus_infinity();
#pragma unroll
    for (int w = 0; w < WARPS_N; ++w) most = fmaxf(most, states[w * TILE + r].x);
    float total = 0.0f;
    Pack<float, 4> x = {};
#pragma unroll
    for (int w = 0; w < WARPS_N; ++w) {
      const float2 state = states[w * TILE + r];
      const float weight = counts_for(state, most);
      add_weighted(x, weight, load<float, 4>(values + (w * TILE + r) * PITCH + column));
      total += weight * state.y;
    }
    const int64_t at = output_row(b.start + r);
    if (pieces > 1) {
      store<float, 4>(partial + (blockIdx.z * stride + at) * DV + column, x);
      if (column == 0) sums[blockIdx.z * stride + at] = make_float2(most, total);
    } else {
      const float2 f = finish(r, most, total);
      store_result(at * DV + column, x, f.x);
      if (lse && column == 0) lse[at] = f.y;
    }
  }
  if (pieces == 1) return;

  // What this block has written comes before its arrival; what all have written is read after the last one's.
  POEM_SHARED(uint32_t, arrived, [1]);
  uint32_t* const counter = counters + blockIdx.x * kv_heads + head;
  __syncthreads();
  if (t == 0) arrived[0] = atomic_add_acq_rel(counter, 1u);
  __syncthreads();
  if (arrived[0] != pieces - 1) return;
  if (t == 0) store_release(counter, 0u);          // ready for the next launch
  float* const weights = values;                   // [pieces, TILE]
  float* const factors = weights + pieces * TILE;  // [TILE]
  for (int r = warp; r < b.count; r += THREADS / 32) {
    const float2* const of_row = sums + output_row(b.start + r);
    float most = minus_infinity();
    for (int piece = lane; piece < pieces; piece += 32) most = fmaxf(most, of_row[piece * stride].x);
#pragma unroll
    for (int other = 16; other > 0; other /= 2) most = fmaxf(most, __shfl_xor_sync(WARP, most, other));
    float total = 0.0f;
    for (int piece = lane; piece < pieces; piece += 32) {
      const float2 state = of_row[piece * stride];
      const float weight = counts_for(state, most);
      weights[piece * TILE + r] = weight;
      total += weight * state.y;
    }
#pragma unroll
    for (int other = 16; other > 0; other /= 2) total += __shfl_xor_sync(WARP, total, other);
    const float2 f = finish(r, most, total);
    if (lane == 0) factors[r] = f.x;
    if (lane == 0 && lse) lse[output_row(b.start + r)] = f.y;
  }
  __syncthreads();
  for (int i = t; i < b.count * (DV / 4); i += THREADS) {
    const int r = i / (DV / 4);
    const int64_t at = output_row(b.start + r) * DV + i % (DV / 4) * 4;
    Pack<float, 4> x = {};
#pragma unroll 4
    for (int piece = 0; piece < pieces; ++piece)
      add_weighted(x, weights[piece * TILE + r], load<float, 4>(partial + piece * stride * DV + at));
    store_result(at, x, factors[r]);
  }
}
