// attn_append.cu: rows into paged caches, with norms of heads and rotary positions on the way there.
//
// T is the dtype of activations, C that of cells. A cache plane is [pages, page_size, width]; a row goes to offset write_offset of page
// write_page. Cells of 8 bits hold x / scale, where there is a scale. Pointers that a call leaves out are null.
#include "prelude.cuh"
using namespace poem;

constexpr uint32_t WARP = 0xffffffffu;

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }

template <class C, class T> POEM_DEVICE C cell_of(T x, float scale) {
  if constexpr (same_type<C, T>) return x;
  else if constexpr (sizeof(C) == 1) return from_float<C>(to_float(x) / scale);  // saturates
  else return from_float<C>(to_float(x));
}
template <class C, class T, int VEC> POEM_DEVICE void store_cells(C* to, const Pack<T, VEC>& v, float scale) {
  Pack<C, VEC> cells;
#pragma unroll
  for (int j = 0; j < VEC; ++j) cells.at[j] = cell_of<C>(v.at[j], scale);
  store<C, VEC>(to, cells);
}
// The slot of a new row; negative for a row that is not stored: its page is -1, or the offset outside its page.
POEM_DEVICE int64_t slot_of(const int* write_page, const int* write_offset, int row, int page_size, int pages) {
  const int page = write_page[row], offset = write_offset[row];
  return page >= pages || offset < 0 || offset >= page_size ? -1 : (int64_t)page * page_size + offset;
}
template <class T, class C, int VEC> POEM_DEVICE void append_row(const T* from, C* to, int width, const float* scale) {
  const float by = scale ? *scale : 1.0f;
  for (int column = threadIdx.x * VEC; column < width; column += blockDim.x * VEC)
    store_cells<C, T, VEC>(to + column, load<T, VEC>(from + column), by);
}

// Each row into its cell of one plane. One block for each row. rows: how many there are, where those behind them are padding and name slots
// like others.
template <class T, class C, int VEC> __global__ void __launch_bounds__(128)
    append(const T* __restrict__ x, const int* __restrict__ write_page, const int* __restrict__ write_offset, const int* __restrict__ rows,
           C* __restrict__ cache, int width, int page_size, int pages, const float* __restrict__ scale) {
  const int row = blockIdx.x;
  if (rows && row >= *rows) return;
  const int64_t slot = slot_of(write_page, write_offset, row, page_size, pages);
  if (slot >= 0) append_row<T, C, VEC>(x + (int64_t)row * width, cache + slot * width, width, scale);
}
// The same for k and v, each into its plane.
template <class T, class C, int VEC> __global__ void __launch_bounds__(128)
    kv_append(const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ write_page, const int* __restrict__ write_offset,
              const int* __restrict__ rows, C* __restrict__ k_cache, C* __restrict__ v_cache, int k_width, int v_width, int page_size,
              int pages, const float* __restrict__ k_scale, const float* __restrict__ v_scale) {
  const int row = blockIdx.x;
  if (rows && row >= *rows) return;
  const int64_t slot = slot_of(write_page, write_offset, row, page_size, pages);
  if (slot < 0) return;
  append_row<T, C, VEC>(k + (int64_t)row * k_width, k_cache + slot * k_width, k_width, k_scale);
  append_row<T, C, VEC>(v + (int64_t)row * v_width, v_cache + slot * v_width, v_width, v_scale);
}

template <class T> POEM_DEVICE void turn(T& first, T& second, float2 t) {
  const float a = to_float(first), b = to_float(second);
  first = from_float<T>(a * t.x - b * t.y);
  second = from_float<T>(b * t.x + a * t.y);
}

// q and k turned, and k and v stored, for one row a block. Pair i turns by position * frequency, where columns[i] names the position of
// those that a row has (axes). Lanes of more than `switch_at` cells take the second list of frequencies. What turns together is data, as in
// rope.cu: packs of VEC channels of a head, as (first, second); channels first + j and second + j are a pair, or with NEIGHBOURS first + j
// and first + j + 1 for even j; with second = -1 the pack is copied. k is rounded to T before it is cast to the cell, as if it had been an
// activation in between.
// With gains (G is not void), each head of q and k is x / sqrt(mean of squares + eps) * (gain_offset + gain) first, rounded to T.
// Dynamic shared memory: a pair of floats for each pair of channels, and a float for each head.
template <class T, class C, class G, int VEC, bool NEIGHBOURS> __global__ void __launch_bounds__(256, 4)
    rope_append(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const G* __restrict__ q_gain,
                const G* __restrict__ k_gain, const int* __restrict__ positions, const int* __restrict__ columns,
                const float* __restrict__ frequencies, const int2* __restrict__ packs, const int* __restrict__ lane_of_row,
                const int* __restrict__ kv_len, const int* __restrict__ write_page, const int* __restrict__ write_offset,
                T* __restrict__ q_out, C* __restrict__ k_cache, C* __restrict__ v_cache, int q_stride, int q_first, int k_stride,
                int k_first, int v_stride, int v_first, int q_heads, int kv_heads, int head_dim, int v_width, int axes, int pairs,
                int packs_of_head, int switch_at, int page_size, int pages, float factor, float sign, float eps, float gain_offset,
                const float* __restrict__ k_scale, const float* __restrict__ v_scale) {
  constexpr bool NORMED = !same_type<G, void>;
  static_assert(!NEIGHBOURS || VEC % 2 == 0, "pairs lie in one pack");
  POEM_DYNAMIC_SHARED(memory);
  float2* const turns = reinterpret_cast<float2*>(memory);
  float* const inverse = reinterpret_cast<float*>(turns + pairs);  // of each head's root mean square
  const int row = blockIdx.x, sequence = lane_of_row ? lane_of_row[row] : -1;
  const bool late = sequence >= 0 && kv_len[sequence] > switch_at;
  for (int i = threadIdx.x; i < pairs; i += 256) {
    const float angle = (float)positions[(int64_t)row * axes + (columns ? columns[i] : 0)] * frequencies[(late ? pairs : 0) + i];
    turns[i] = make_float2(cosf(angle) * factor, sinf(angle) * factor * sign);
  }
  const int64_t slot = slot_of(write_page, write_offset, row, page_size, pages);
  const int heads = slot < 0 ? q_heads : q_heads + kv_heads;
  auto source = [&](int head) {
    return head < q_heads ? q + (int64_t)row * q_stride + q_first + head * head_dim
                          : k + (int64_t)row * k_stride + k_first + (head - q_heads) * head_dim;
  };
  if constexpr (NORMED) {
    const int lane = threadIdx.x % 32;
    for (int head = threadIdx.x / 32; head < heads; head += 8) {
      float squares = 0.0f;
      for (int channel = lane * VEC; channel < head_dim; channel += 32 * VEC) {
        const Pack<T, VEC> x = load<T, VEC>(source(head) + channel);
#pragma unroll
        for (int j = 0; j < VEC; ++j) squares += to_float(x.at[j]) * to_float(x.at[j]);
      }
#pragma unroll
      for (int other = 16; other > 0; other /= 2) squares += __shfl_xor_sync(WARP, squares, other);
      if (lane == 0) inverse[head] = 1.0f / sqrtf(squares / (float)head_dim + eps);
    }
  }
  __syncthreads();
  const float by = k_scale ? *k_scale : 1.0f;
  for (int p = threadIdx.x; p < heads * packs_of_head; p += 256) {
    const int head = p / packs_of_head, i = p - head * packs_of_head;
    const bool is_q = head < q_heads;
    auto get = [&](int channel) -> Pack<T, VEC> {
      Pack<T, VEC> x = load<T, VEC>(source(head) + channel);
      if constexpr (NORMED) {
        const Pack<G, VEC> gain = load<G, VEC>((is_q ? q_gain : k_gain) + channel);
#pragma unroll
        for (int j = 0; j < VEC; ++j) x.at[j] = from_float<T>(to_float(x.at[j]) * inverse[head] * (gain_offset + to_float(gain.at[j])));
      }
      return x;
    };
    auto put = [&](int channel, const Pack<T, VEC>& x) {
      if (is_q) store<T, VEC>(q_out + ((int64_t)row * q_heads + head) * head_dim + channel, x);
      else store_cells<C, T, VEC>(k_cache + (slot * kv_heads + head - q_heads) * head_dim + channel, x, by);
    };
    const int2 at = packs[i];
    Pack<T, VEC> a = get(at.x);
    if (at.y >= 0) {
      if constexpr (NEIGHBOURS) {
#pragma unroll
        for (int j = 0; j < VEC; j += 2) turn(a.at[j], a.at[j + 1], turns[(i * VEC + j) / 2]);
      } else {
        Pack<T, VEC> b = get(at.y);
#pragma unroll
        for (int j = 0; j < VEC; ++j) turn(a.at[j], b.at[j], turns[i * VEC + j]);
        put(at.y, b);
      }
    }
    put(at.x, a);
  }
  if (slot >= 0) append_row<T, C, VEC>(v + (int64_t)row * v_stride + v_first, v_cache + slot * v_width, v_width, v_scale);
}
