// attn.cu: rows into paged caches, rotary positions on the way there, and attention over paged caches.
//
// T is the dtype of activations, C that of cells. A cache plane is [pages, page_size, heads, width]; cell j of a lane is at offset
// j % page_size of page page_indices[page_indptr[lane] + j / page_size]. What a cell holds is code * scale; a scale other than 1 belongs to
// cells of 8 bits. Pointers that a call leaves out are null.
#include "prelude.cuh"
using namespace poem;

constexpr uint32_t WARP = 0xffffffffu;
constexpr float LOG2_E = 1.44269504088896341f;
POEM_DEVICE float minus_infinity() { return bits_float(0xff800000u); }

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }

// ------------------------------------------------------------------------------------------------------------ into caches
template <class C, class T> POEM_DEVICE C cell_of(T x, float scale) {
  if constexpr (same_type<C, T>) return x;
  else if constexpr (sizeof(C) == 1) return from_float<C>(to_float(x) / scale);   // saturates
  else return from_float<C>(to_float(x));
}
template <class C, class T, int VEC> POEM_DEVICE void store_cells(C* to, const Pack<T, VEC>& v, float scale) {
  Pack<C, VEC> cells;
#pragma unroll
  for (int j = 0; j < VEC; ++j) cells.at[j] = cell_of<C>(v.at[j], scale);
  store<C, VEC>(to, cells);
}
// The slot of a new row, or -1 for a row that is not stored: a row of padding, or an offset outside its page.
POEM_DEVICE int64_t slot_of(const int* write_page, const int* write_offset, int row, int page_size, int pages) {
  const int page = write_page[row], offset = write_offset[row];
  return page < 0 || page >= pages || offset < 0 || offset >= page_size ? -1 : (int64_t)page * page_size + offset;
}
template <class T, class C, int VEC> POEM_DEVICE void append_row(const T* from, C* to, int width, float scale) {
  for (int column = threadIdx.x * VEC; column < width; column += blockDim.x * VEC) store_cells<C, T, VEC>(to + column, load<T, VEC>(from + column), scale);
}

// Columns x_first .. x_first + width - 1 of each row into the row's cell of one plane. One block for each row.
template <class T, class C, int VEC>
__global__ void __launch_bounds__(128) append(const T* __restrict__ x, const int* __restrict__ write_page, const int* __restrict__ write_offset,
                                              C* __restrict__ cache, int x_stride, int x_first, int width, int page_size, int pages, float scale) {
  const int64_t slot = slot_of(write_page, write_offset, blockIdx.x, page_size, pages);
  if (slot >= 0) append_row<T, C, VEC>(x + (int64_t)blockIdx.x * x_stride + x_first, cache + slot * width, width, scale);
}
// The same for k and v, each into its plane.
template <class T, class C, int VEC>
__global__ void __launch_bounds__(128) kv_append(const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ write_page,
                                                 const int* __restrict__ write_offset, C* __restrict__ k_cache, C* __restrict__ v_cache, int k_stride,
                                                 int k_first, int k_width, int v_stride, int v_first, int v_width, int page_size, int pages,
                                                 float k_scale, float v_scale) {
  const int64_t slot = slot_of(write_page, write_offset, blockIdx.x, page_size, pages);
  if (slot < 0) return;
  append_row<T, C, VEC>(k + (int64_t)blockIdx.x * k_stride + k_first, k_cache + slot * k_width, k_width, k_scale);
  append_row<T, C, VEC>(v + (int64_t)blockIdx.x * v_stride + v_first, v_cache + slot * v_width, v_width, v_scale);
}

// q and k turned, and k and v stored, for one row a block. Pair i of a head is (origin + i, origin + i + distance), or with NEIGHBOURS
// (origin + 2i, origin + 2i + 1); it turns by position * frequency, where columns[i] names the position of those that a row has (axes), and
// table_of_row the list of frequencies. k is rounded to T before it is cast to the cell, as if it had been an activation in between.
// Dynamic shared memory: a pair of floats for each pair of channels.
template <class T, class C, int VEC, bool NEIGHBOURS>
__global__ void __launch_bounds__(256) rope_append(
    const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ positions, const int* __restrict__ columns,
    const float* __restrict__ frequencies, const int* __restrict__ table_of_row, const int* __restrict__ write_page,
    const int* __restrict__ write_offset, T* __restrict__ q_out, C* __restrict__ k_cache, C* __restrict__ v_cache, int q_stride, int q_first,
    int k_stride, int k_first, int v_stride, int v_first, int q_heads, int kv_heads, int head_dim, int v_width, int axes, int pairs, int origin,
    int distance, int page_size, int pages, float factor, float sign, float k_scale, float v_scale) {
  POEM_DYNAMIC_SHARED(memory);
  float2* const turns = reinterpret_cast<float2*>(memory);
  const int row = blockIdx.x;
  const float* const own = frequencies + (table_of_row ? (int64_t)table_of_row[row] * pairs : 0);
  for (int i = threadIdx.x; i < pairs; i += 256) {
    const float angle = (float)positions[(int64_t)row * axes + (columns ? columns[i] : 0)] * own[i];
    turns[i] = make_float2(cosf(angle) * factor, sinf(angle) * factor * sign);
  }
  __syncthreads();
  const int64_t slot = slot_of(write_page, write_offset, row, page_size, pages);
  const int packs = head_dim / VEC, heads = slot < 0 ? q_heads : q_heads + kv_heads;
  for (int p = threadIdx.x; p < heads * packs; p += 256) {
    const int head = p / packs, channel = (p - head * packs) * VEC, inside = channel - origin;
    const bool is_q = head < q_heads;
    const T* const from = is_q ? q + (int64_t)row * q_stride + q_first + head * head_dim
                               : k + (int64_t)row * k_stride + k_first + (head - q_heads) * head_dim;
    auto put = [&](int at, const Pack<T, VEC>& y) {
      if (is_q) store<T, VEC>(q_out + ((int64_t)row * q_heads + head) * head_dim + at, y);
      else store_cells<C, T, VEC>(k_cache + (slot * kv_heads + head - q_heads) * head_dim + at, y, k_scale);
    };
    Pack<T, VEC> a = load<T, VEC>(from + channel);
    if constexpr (NEIGHBOURS) {
      if (inside >= 0 && inside < 2 * pairs) {
#pragma unroll
        for (int j = 0; j + 1 < VEC; j += 2) {
          const float2 t = turns[(inside + j) / 2];
          const float x = to_float(a.at[j]), y = to_float(a.at[j + 1]);
          a.at[j] = from_float<T>(x * t.x - y * t.y);
          a.at[j + 1] = from_float<T>(y * t.x + x * t.y);
        }
      }
      put(channel, a);
    } else {
      if (inside >= distance && inside < distance + pairs) continue;   // the second of a pair, written with the first
      if (inside >= 0 && inside < pairs) {
        Pack<T, VEC> b = load<T, VEC>(from + channel + distance);
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
          const float2 t = turns[inside + j];
          const float x = to_float(a.at[j]), y = to_float(b.at[j]);
          a.at[j] = from_float<T>(x * t.x - y * t.y);
          b.at[j] = from_float<T>(y * t.x + x * t.y);
        }
        put(channel + distance, b);
      }
      put(channel, a);
    }
  }
  if (slot >= 0) append_row<T, C, VEC>(v + (int64_t)row * v_stride + v_first, v_cache + slot * v_width, v_width, v_scale);
}

// -------------------------------------------------------------------------------------------------------------- attention
// The rows of one key head are its group's query heads of one new row after the other: row i * group + h is head h of new row i. A block
// takes TILE of them against a piece of the cells they may see, in tiles of CELLS cells, counted from cell 0, so that the order of a row's
// sums does not depend on the rows beside it.
struct Block {
  int first_row, rows;     // of the lane, in the packed activations
  int start, count;        // packed rows of this block
  int position;            // of the lane's first new row
  int lowest, stop;        // cells that any of the block's rows may see
  int first;               // lowest, or before it: a multiple of CELLS
  const int* pages;
};
template <int TILE, int CELLS>
POEM_DEVICE bool find_block(Block& b, const int* tiles, const int* qo_indptr, const int* kv_len, const int* page_indptr, const int* page_indices,
                            int group, int window, int causal) {
  const int lane = tiles[blockIdx.x * 2];
  if (lane < 0) return false;
  b.start = tiles[blockIdx.x * 2 + 1];
  b.first_row = qo_indptr[lane];
  b.rows = qo_indptr[lane + 1] - b.first_row;
  b.count = min(TILE, b.rows * group - b.start);
  if (b.count <= 0) return false;
  b.position = kv_len[lane] - b.rows;
  b.stop = causal ? b.position + (b.start + b.count - 1) / group + 1 : kv_len[lane];
  b.lowest = window > 0 ? max(0, b.position + b.start / group - window + 1) : 0;
  b.first = b.lowest / CELLS * CELLS;
  b.pages = page_indices + page_indptr[lane];
  return true;
}

// Where a 16-byte chunk of a row of a tile lies, so that eight rows at one chunk share no bank.
template <int CHUNKS> POEM_DEVICE uint32_t place(int row, int chunk) {
  static_assert(CHUNKS % 2 == 0, "rows of whole 32 bytes");
  const int by = CHUNKS % 8 == 0 ? row & 7 : CHUNKS % 4 == 0 ? row >> 1 & 3 : row >> 2 & 1;
  return (row * CHUNKS + (chunk ^ by)) * 16;
}
// Two neighbouring 8-bit cells as activations: exact.
template <class T, class C> POEM_DEVICE uint32_t widened(uint32_t pair) {
  float2 f;
  if constexpr (same_type<C, e4m3>) f = unpack_e4m3((uint16_t)pair);
  else f = unpack_e5m2((uint16_t)pair);
  return pack<T>(f.x, f.y);
}

// What a row's weighted values are multiplied by, and its log-sum-exp in base 2, once all weights are in: `total` of them relative to 2^most.
// A sink is one more score without a value. Every row sees at least its own cell: where all scores are -inf, 0 / 0 is NaN.
POEM_DEVICE float2 finished(float most, float total, float sink, float v_scale) {
  sink *= LOG2_E;
  const float top = fmaxf(most, sink), weight = exp2_approx(most - top);
  const float all = total * weight + exp2_approx(sink - top);
  return make_float2(weight * v_scale / all, top + log2f(all));
}
template <int N> struct Constant { static constexpr int value = N; };

// A running softmax: largest score, sum of weights, weighted values, all for scores in units of log 2.
template <class T, class C, int D, int DV, int WARPS_M, int WARPS_N, int CELLS, int STAGES, int PARTS>
__global__ void __launch_bounds__(WARPS_M* WARPS_N * 32) attention(
    const T* __restrict__ q, const C* __restrict__ k_cache, const C* __restrict__ v_cache, const int* __restrict__ tiles,
    const int* __restrict__ qo_indptr, const int* __restrict__ kv_len, const int* __restrict__ page_indptr, const int* __restrict__ page_indices,
    const float* __restrict__ sinks, T* __restrict__ out, float* __restrict__ lse, float* __restrict__ partial, float2* __restrict__ sums,
    int q_stride, int q_first, int group, int kv_heads, int page_shift, int window, int causal, int total_rows, int shortest, float scale, float cap,
    float v_scale) {
  constexpr int TILE = WARPS_M * 16, THREADS = WARPS_M * WARPS_N * 32, OWN = CELLS / WARPS_N, SN = OWN / 8, ON = DV / 8, KS = D / 16;
  constexpr bool NARROW = sizeof(C) == 1, HELD = D <= 128;
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
  const int from_tile = blockIdx.z * per_piece, tile_count = min(per_piece, all_tiles - from_tile);
  const int base_cell = b.first + from_tile * CELLS;
  const uint32_t base = shared_address(memory);

  auto output_row = [&](int packed) { return (int64_t)(b.first_row + packed / group) * heads + head * group + packed % group; };
  if (tile_count <= 0) {   // a piece without cells: only where there are several
    for (int r = t; r < b.count; r += THREADS)
      sums[blockIdx.z * (int64_t)total_rows * heads + output_row(b.start + r)] = make_float2(minus_infinity(), 0.0f);
    return;
  }

  // The slot of a cell that some row may see, or -1. Others are zeros in shared memory, so that nothing in them spoils a sum.
  auto slot_of_cell = [&](int cell) -> int64_t {
    if (cell < b.lowest || cell >= b.stop) return -1;
    const int page = b.pages[cell >> page_shift];
    return page < 0 ? -1 : ((int64_t)page << page_shift) + (cell & ((1 << page_shift) - 1));
  };
  auto load_plane = [&](auto chunks, const C* cache, uint32_t to, int cell0) {
    constexpr int CHUNKS = decltype(chunks)::value, ELEMENTS = 16 / (int)sizeof(C);
    for (int i = t; i < CELLS * CHUNKS; i += THREADS) {
      const int row = i / CHUNKS, chunk = i % CHUNKS;
      const int64_t slot = slot_of_cell(cell0 + row);
      const C* const from = slot < 0 ? cache : cache + ((slot * kv_heads + head) * CHUNKS + chunk) * ELEMENTS;
      cp_async(to + place<CHUNKS>(row, chunk), from, slot < 0 ? 0 : 16);
    }
  };
  auto load_stage = [&](int tile) {
    const uint32_t to = base + tile % STAGES * STAGE;
    load_plane(Constant<K_CHUNKS>{}, k_cache, to, base_cell + tile * CELLS);
    load_plane(Constant<V_CHUNKS>{}, v_cache, to + K_BYTES, base_cell + tile * CELLS);
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < tile_count) load_stage(s);
    cp_async_commit();
  }

  // This thread's two rows, and q as the products take it. With 8-bit cells four neighbouring columns of a row come to one thread, so
  // q's columns are taken in that order too.
  int packed[2], low[2], high[2];
  const T* q_row[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    packed[i] = b.start + wm * 16 + g + 8 * i;
    const bool mine = packed[i] < b.start + b.count;
    const int position = b.position + packed[i] / group;
    high[i] = !mine ? 0x7fffffff : causal ? position : b.stop - 1;   // rows that are nobody's see everything and go nowhere
    low[i] = mine && window > 0 ? position - window + 1 : 0;
    q_row[i] = mine ? q + (int64_t)(b.first_row + packed[i] / group) * q_stride + q_first + (int64_t)(head * group + packed[i] % group) * D : nullptr;
  }
  uint32_t held[HELD ? KS : 1][4];
  uint32_t* const kept = reinterpret_cast<uint32_t*>(memory + STAGES * STAGE) + t * 4;   // each thread reads back what it wrote itself
#pragma unroll
  for (int kk = 0; kk < KS; ++kk)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = kk * 16 + (NARROW ? quad * 4 + i / 2 * 2 : quad * 2 + i / 2 * 8);
      const uint32_t pair = q_row[i % 2] ? *reinterpret_cast<const uint32_t*>(q_row[i % 2] + column) : 0;
      if constexpr (HELD) held[kk][i] = pair;
      else kept[kk * THREADS * 4 + i] = pair;
    }

  auto score = [&](float product) {
    const float x = product * scale;
    return cap > 0.0f ? cap * LOG2_E * tanhf(x / cap) : x * LOG2_E;
  };
  auto column_of = [&](int n, int e) { return NARROW ? n / 2 * 16 + quad * 4 + e * 2 + n % 2 : n * 8 + quad * 2 + e; };
  float o[ON][4] = {};
  float largest[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.0f, 0.0f};
  for (int tile = 0; tile < tile_count; ++tile) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (tile + STAGES - 1 < tile_count) load_stage(tile + STAGES - 1);
    cp_async_commit();
    const uint32_t keys = base + tile % STAGES * STAGE, values = keys + K_BYTES;
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
          ldmatrix(r, keys + place<K_CHUNKS>(wn * OWN + n * 8 + lane % 16, kk + lane / 16));
#pragma unroll
          for (int i = 0; i < 4; ++i)
            mma_m16n8k16<T>(s[n + i % 2], a[i / 2], widened<T, C>(r[i] & 0xffff), widened<T, C>(r[i] >> 16));
        } else {
          ldmatrix(r, keys + place<K_CHUNKS>(wn * OWN + n * 8 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
          mma_m16n8k16<T>(s[n], a[0], r[0], r[1]);
          mma_m16n8k16<T>(s[n + 1], a[0], r[2], r[3]);
        }
      }
    }

    const bool all_visible = __all_sync(WARP, cell0 >= low[0] && cell0 >= low[1] && cell0 + OWN - 1 <= high[0] && cell0 + OWN - 1 <= high[1]);
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < SN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int cell = cell0 + n * 8 + quad * 2 + e % 2;
        float x = score(s[n][e]);
        if (!all_visible && (cell < low[e / 2] || cell > high[e / 2])) x = minus_infinity();
        s[n][e] = x;
        most[e / 2] = fmaxf(most[e / 2], x);
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(WARP, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(WARP, most[i], 2));
      const float shift = exp2_approx(largest[i] - (most[i] == minus_infinity() ? 0.0f : most[i]));
      largest[i] = most[i];
      sum[i] *= shift;
#pragma unroll
      for (int n = 0; n < ON; ++n) {
        o[n][i * 2] *= shift;
        o[n][i * 2 + 1] *= shift;
      }
      most[i] = most[i] == minus_infinity() ? 0.0f : most[i];
    }
#pragma unroll
    for (int n = 0; n < SN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[n][e] = exp2_approx(s[n][e] - most[e / 2]);
        sum[e / 2] += s[n][e];
      }

    // Weights have 24 bits, an operand of the tensor cores has 8: with two parts a weight is off by 2^-16 of itself.
#pragma unroll
    for (int n = 0; n < SN; n += 2) {
      uint32_t p[PARTS][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = s[n + i / 2][i % 2 * 2], y = s[n + i / 2][i % 2 * 2 + 1];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
          p[part][i] = pack<T>(x, y);
          const float2 rounded = unpack<T>(p[part][i]);
          x -= rounded.x;
          y -= rounded.y;
        }
      }
#pragma unroll
      for (int d = 0; d < ON; d += NARROW ? 4 : 2) {
        uint32_t r[4];
        ldmatrix<true>(r, values + place<V_CHUNKS>(wn * OWN + n * 8 + lane % 16, (NARROW ? d / 2 : d) + lane / 16));
        if constexpr (NARROW) {   // a register holds two columns of two cells: even columns make one tile, odd ones the next
#pragma unroll
          for (int i = 0; i < 4; ++i) r[i] = permute_bytes(r[i], 0, 0x3120);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int shift = i % 2 * 16, pair = i / 2 * 2;
            const uint32_t b0 = widened<T, C>(r[pair] >> shift & 0xffff), b1 = widened<T, C>(r[pair + 1] >> shift & 0xffff);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) mma_m16n8k16<T>(o[d + i], p[part], b0, b1);
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

  // A value that is not finite makes NaN of its product with a weight of 0, in rows that may not see it. Rows of one position all see the
  // same cells; where positions differ and a NaN came out, the sums are taken again without the cells that a row may not see.
  if constexpr (WARPS_M > 1) {
    bool spoilt = false;
#pragma unroll
    for (int n = 0; n < ON; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) spoilt |= o[n][e] != o[n][e];
    if (__syncthreads_or(spoilt)) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = b.start + wm * 16 + g + 8 * i;
        if (row >= b.start + b.count) continue;
        const T* const query = q + (int64_t)(b.first_row + row / group) * q_stride + q_first + (int64_t)(head * group + row % group) * D;
        const float most = largest[i] == minus_infinity() ? 0.0f : largest[i];
#pragma unroll
        for (int n = 0; n < ON; ++n) o[n][i * 2] = o[n][i * 2 + 1] = 0.0f;
        for (int cell = max(low[i], base_cell); cell <= min(high[i], base_cell + tile_count * CELLS - 1); ++cell) {
          const int64_t slot = slot_of_cell(cell);
          if (slot < 0) continue;
          const C* const key = k_cache + (slot * kv_heads + head) * D;
          const C* const value = v_cache + (slot * kv_heads + head) * DV;
          float product = 0.0f;
          for (int d = 0; d < D; ++d) product += to_float(query[d]) * to_float(key[d]);
          const float weight = exp2_approx(score(product) - most);
#pragma unroll
          for (int n = 0; n < ON; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) o[n][i * 2 + e] += weight * to_float(value[column_of(n, e)]);
        }
      }
    }
  }

  // The warps that share rows add up in shared memory, in order; then all threads write.
  cp_async_wait<0>();
  __syncthreads();
  float* const values = reinterpret_cast<float*>(memory);                                    // [WARPS_N, TILE, DV]
  float2* const states = reinterpret_cast<float2*>(memory + WARPS_N * TILE * DV * sizeof(float));   // [WARPS_N, TILE]
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = wn * TILE + wm * 16 + g + 8 * i;
    if (quad == 0) states[row] = make_float2(largest[i], sum[i]);
#pragma unroll
    for (int n = 0; n < ON; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) values[row * DV + column_of(n, e)] = o[n][i * 2 + e];
  }
  __syncthreads();
  for (int i = t; i < b.count * (DV / 2); i += THREADS) {
    const int r = i / (DV / 2), column = i % (DV / 2) * 2;
    float most = minus_infinity();
#pragma unroll
    for (int w = 0; w < WARPS_N; ++w) most = fmaxf(most, states[w * TILE + r].x);
    float x = 0.0f, y = 0.0f, total = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS_N; ++w) {
      const float2 state = states[w * TILE + r];
      const float weight = state.x == minus_infinity() ? (state.y == 0.0f ? 0.0f : state.y) : exp2_approx(state.x - most);
      x += weight * values[(w * TILE + r) * DV + column];
      y += weight * values[(w * TILE + r) * DV + column + 1];
      total += weight * state.y;
    }
    const int64_t at = output_row(b.start + r);
    if (gridDim.z > 1) {
      const int64_t place_of_piece = blockIdx.z * (int64_t)total_rows * heads + at;
      store<float, 2>(partial + place_of_piece * DV + column, {x, y});
      if (column == 0) sums[place_of_piece] = make_float2(most, total);
    } else {
      const float2 f = finished(most, total, sinks ? sinks[head * group + (b.start + r) % group] : minus_infinity(), v_scale);
      store<T, 2>(out + at * DV + column, {from_float<T>(x * f.x), from_float<T>(y * f.x)});
      if (lse && column == 0) lse[at] = f.y;
    }
  }
}

// Adds up the pieces of each row, in order: out is sum_i 2^(m_i - m) o_i over sum_i 2^(m_i - m) l_i. Grid: tiles, key heads, rows of a tile.
template <class T, int DV, int TILE>
__global__ void __launch_bounds__(64) combine(const float* __restrict__ partial, const float2* __restrict__ sums, const int* __restrict__ tiles,
                                              const int* __restrict__ qo_indptr, const float* __restrict__ sinks, T* __restrict__ out,
                                              float* __restrict__ lse, int group, int kv_heads, int total_rows, int pieces, float v_scale) {
  const int lane = tiles[blockIdx.x * 2];
  if (lane < 0) return;
  const int packed = tiles[blockIdx.x * 2 + 1] + blockIdx.z, first_row = qo_indptr[lane], rows = qo_indptr[lane + 1] - first_row;
  if (packed >= rows * group) return;
  const int head = blockIdx.y * group + packed % group, heads = kv_heads * group;
  const int64_t at = (int64_t)(first_row + packed / group) * heads + head, stride = (int64_t)total_rows * heads;
  float most = minus_infinity();
  for (int piece = 0; piece < pieces; ++piece) most = fmaxf(most, sums[piece * stride + at].x);
  for (int column = threadIdx.x * 2; column < DV; column += 128) {
    float x = 0.0f, y = 0.0f, total = 0.0f;
    for (int piece = 0; piece < pieces; ++piece) {
      const float2 state = sums[piece * stride + at];
      if (state.y == 0.0f) continue;   // a piece without cells has no values
      const float weight = state.x == minus_infinity() ? state.y : exp2_approx(state.x - most);
      const Pack<float, 2> v = load<float, 2>(partial + (piece * stride + at) * DV + column);
      x += weight * v.at[0];
      y += weight * v.at[1];
      total += weight * state.y;
    }
    const float2 f = finished(most, total, sinks ? sinks[head] : minus_infinity(), v_scale);
    store<T, 2>(out + at * DV + column, {from_float<T>(x * f.x), from_float<T>(y * f.x)});
    if (lse && column == 0) lse[at] = f.y;
  }
}
