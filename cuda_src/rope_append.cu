// rope_append.cu: rotary positions of queries and keys, and keys and values into their cache, in one launch.
//
// T is the dtype of activations: bf16, f16 or float; C that of the cells: those, or e4m3 and e5m2, which hold value / scale and saturate.
// Turned channels are rounded to T, as if they were stored, before keys are cast to C.
#include "prelude.cuh"
using namespace poem;

template <class T, int VEC> POEM_DEVICE Pack<T, VEC> load(const T* p) { return *reinterpret_cast<const Pack<T, VEC>*>(p); }
template <class T, int VEC> POEM_DEVICE void store(T* p, const Pack<T, VEC>& v) { *reinterpret_cast<Pack<T, VEC>*>(p) = v; }

template <class C> POEM_DEVICE C cell_of(float x) { return from_float<C>(x); }
template <> POEM_DEVICE e4m3 cell_of<e4m3>(float x) { return e4m3{(uint8_t)(pack_e4m3(x, 0.0f) & 0xff)}; }
template <> POEM_DEVICE e5m2 cell_of<e5m2>(float x) { return e5m2{(uint8_t)(pack_e5m2(x, 0.0f) & 0xff)}; }

// A cell's VEC channels from values of T. A scale of 1 divides nothing, so that plain cells keep their bits.
template <class T, class C, int VEC> POEM_DEVICE void append(C* to, const Pack<T, VEC>& v, float scale) {
  Pack<C, VEC> cell;
#pragma unroll
  for (int j = 0; j < VEC; ++j) {
    if constexpr (same_type<T, C>) cell.at[j] = v.at[j];
    else cell.at[j] = cell_of<C>(scale == 1.0f ? to_float(v.at[j]) : to_float(v.at[j]) / scale);
  }
  store<C, VEC>(to, cell);
}

// Channels i and i + rotary/2 of each head of q and k turn by the angle position * frequencies[i]; channels from `rotary` on are copied.
// q goes to q_out; k and v go to cell (pages[row], offsets[row]) of their planes [pages, page_size, width]. A row whose page is negative
// has no cell. One block per row. Strides are those of rows, in elements: q, k and v may be columns of one matrix.
// Dynamic shared memory: rotary/2 pairs of floats.
template <class T, class C, int VEC>
__global__ void __launch_bounds__(256) rope_append(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                                                   const int* __restrict__ positions, const float* __restrict__ frequencies,
                                                   const int* __restrict__ pages, const int* __restrict__ offsets, T* __restrict__ q_out,
                                                   C* __restrict__ k_cells, C* __restrict__ v_cells, int q_stride, int k_stride, int v_stride,
                                                   int q_heads, int k_heads, int head_dim, int rotary, int v_width, int page_size, float factor,
                                                   float sign, float k_scale, float v_scale) {
  POEM_DYNAMIC_SHARED(memory);
  float2* const turns = reinterpret_cast<float2*>(memory);
  const int half = rotary / 2, row = blockIdx.x;
  for (int i = threadIdx.x; i < half; i += 256) {
    const float angle = (float)positions[row] * frequencies[i];
    turns[i] = make_float2(cosf(angle) * factor, sinf(angle) * factor * sign);
  }
  __syncthreads();
  const int page = pages[row];
  const size_t cell = (size_t)(page < 0 ? 0 : page) * page_size + offsets[row];
  C* const k_cell = k_cells + cell * k_heads * head_dim;
  C* const v_cell = v_cells + cell * v_width;
  const int pairs = half / VEC, per_head = pairs + (head_dim - rotary) / VEC, turned = (q_heads + k_heads) * per_head;
  for (int p = threadIdx.x; p < turned + v_width / VEC; p += 256) {
    if (p >= turned) {
      const int column = (p - turned) * VEC;
      if (page >= 0) append<T, C, VEC>(v_cell + column, load<T, VEC>(v + (size_t)row * v_stride + column), v_scale);
      continue;
    }
    const int head = p / per_head, i = p - head * per_head;
    const bool is_q = head < q_heads;
    const int first = (is_q ? head : head - q_heads) * head_dim;
    const T* const from = (is_q ? q + (size_t)row * q_stride : k + (size_t)row * k_stride) + first;
    T* const to = q_out + (size_t)row * q_heads * head_dim + first;
    if (i >= pairs) {
      const int column = rotary + (i - pairs) * VEC;
      const Pack<T, VEC> copied = load<T, VEC>(from + column);
      if (is_q) store<T, VEC>(to + column, copied);
      else if (page >= 0) append<T, C, VEC>(k_cell + first + column, copied, k_scale);
      continue;
    }
    const Pack<T, VEC> a = load<T, VEC>(from + i * VEC), b = load<T, VEC>(from + half + i * VEC);
    Pack<T, VEC> turned_a, turned_b;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      const float2 t = turns[i * VEC + j];
      const float fa = to_float(a.at[j]), fb = to_float(b.at[j]);
      turned_a.at[j] = from_float<T>(fa * t.x - fb * t.y);
      turned_b.at[j] = from_float<T>(fb * t.x + fa * t.y);
    }
    if (is_q) {
      store<T, VEC>(to + i * VEC, turned_a);
      store<T, VEC>(to + half + i * VEC, turned_b);
    } else if (page >= 0) {
      append<T, C, VEC>(k_cell + first + i * VEC, turned_a, k_scale);
      append<T, C, VEC>(k_cell + first + half + i * VEC, turned_b, k_scale);
    }
  }
}
