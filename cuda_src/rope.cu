// rope.cu: rotary positions. Pairs of channels of each head turn by angles that the rows' positions give.
//
// T is the dtype of activations, P that of positions. Which channels turn together is data: packs of VEC channels of a head, as (first,
// second). Channels first + j and second + j are a pair, or with NEIGHBOURS first + j and first + j + 1 for even j; with second = -1 the
// pack is copied. Packs that turn come first, in the order of their pairs.
#include "prelude.cuh"
using namespace poem;

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }

template <class T> POEM_DEVICE void turn(T& first, T& second, float2 t) {
  const float a = to_float(first), b = to_float(second);
  first = from_float<T>(a * t.x - b * t.y);
  second = from_float<T>(b * t.x + a * t.y);
}

// Pair i of row n turns by positions[n, columns[i]] * frequencies[i]; columns may be null where a row has one position. Rows of lanes of more
// than `switch_at` cells take the second list of frequencies, unless lane_of_row is null. One block per row: angles are shared by all heads
// of q and k. `sign` is -1 for the inverse turn; k may have no heads.
// Dynamic shared memory: a pair of floats for each pair of channels.
template <class T, class P, int VEC, bool NEIGHBOURS> __global__ void __launch_bounds__(256, 4)
    rope(const T* __restrict__ q, const T* __restrict__ k, const P* __restrict__ positions, const int* __restrict__ columns,
         const float* __restrict__ frequencies, const int2* __restrict__ packs, const int* __restrict__ lane_of_row,
         const int* __restrict__ kv_len, T* __restrict__ q_out, T* __restrict__ k_out, int q_heads, int k_heads, int head_dim, int axes,
         int pairs, int packs_of_head, int switch_at, float factor, float sign) {
  POEM_DYNAMIC_SHARED(memory);
  float2* const turns = reinterpret_cast<float2*>(memory);
  const int sequence = lane_of_row ? lane_of_row[blockIdx.x] : -1;
  const bool late = sequence >= 0 && kv_len[sequence] > switch_at;
  for (int i = threadIdx.x; i < pairs; i += 256) {
    const float angle =
        (float)positions[(int64_t)blockIdx.x * axes + (columns ? columns[i] : 0)] * frequencies[(late ? pairs : 0) + i];
    turns[i] = make_float2(cosf(angle) * factor, sinf(angle) * factor * sign);
  }
  __syncthreads();
  for (int p = threadIdx.x; p < (q_heads + k_heads) * packs_of_head; p += 256) {
    const int head = p / packs_of_head, i = p - head * packs_of_head;
    const bool is_q = head < q_heads;
    const int64_t start =
        is_q ? ((int64_t)blockIdx.x * q_heads + head) * head_dim : ((int64_t)blockIdx.x * k_heads + head - q_heads) * head_dim;
    const T* const from = (is_q ? q : k) + start;
    T* const to = (is_q ? q_out : k_out) + start;
    const int2 at = packs[i];
    Pack<T, VEC> a = load<T, VEC>(from + at.x);
    if (at.y >= 0) {
      if constexpr (NEIGHBOURS) {
        static_assert(VEC % 2 == 0, "a pack has both channels of a pair");
#pragma unroll
        for (int j = 0; j < VEC; j += 2) turn(a.at[j], a.at[j + 1], turns[(i * VEC + j) / 2]);
      } else {
        Pack<T, VEC> b = load<T, VEC>(from + at.y);
#pragma unroll
        for (int j = 0; j < VEC; ++j) turn(a.at[j], b.at[j], turns[i * VEC + j]);
        store<T, VEC>(to + at.y, b);
      }
    }
    store<T, VEC>(to + at.x, a);
  }
}
