// elemwise.cu: every op that computes an element of its result from one element of each operand, as one kernel.
//
// The kernel takes the function and how each operand is read as types, so that an op is a line of a table:
// elementwise<Add, 8, bf16, Whole<bf16>, Columns<float>> adds a bias. All arithmetic is float32 and a result is rounded once, where it is
// stored. A thread computes VEC neighbours at a time, which operands that are read by column must have whole.
#include "prelude.cuh"
using namespace poem;

// ------------------------------------------------------------------------------------------------------------------ operands
// Where VEC elements of the result lie: `at` from its start, in pack `pack` of all and of `packs_of_row` in a row.
struct Place {
  int64_t at;
  uint32_t pack, packs_of_row;
  const int* rows_of;  // for each row, which row of a mapped operand belongs to it
  POEM_DEVICE uint32_t row() const { return pack / packs_of_row; }
  template <int N> POEM_DEVICE int column() const { return (int)(pack % packs_of_row) * N; }
};
template <int N> struct Floats {
  float at[N];
};
template <int N, class T> POEM_DEVICE Floats<N> widened(const T* p) {
  const Pack<T, N> v = *reinterpret_cast<const Pack<T, N>*>(p);
  Floats<N> f;
#pragma unroll
  for (int j = 0; j < N; ++j) f.at[j] = to_float(v.at[j]);
  return f;
}
template <int N> POEM_DEVICE Floats<N> repeated(float x) {
  Floats<N> f;
#pragma unroll
  for (int j = 0; j < N; ++j) f.at[j] = x;
  return f;
}

// The shape of the result.
template <class T> struct Whole {
  static constexpr bool BY_COLUMN = false;
  const T* p;
  template <int N> POEM_DEVICE Floats<N> read(const Place& place) const { return widened<N>(p + place.at); }
};
// One row for all rows.
template <class T> struct Columns {
  static constexpr bool BY_COLUMN = true;
  const T* p;
  template <int N> POEM_DEVICE Floats<N> read(const Place& place) const { return widened<N>(p + place.column<N>()); }
};
// Part WHICH of rows that are PARTS times as wide as the result; with MAPPED, rows that are looked up.
template <class T, int PARTS, int WHICH, bool MAPPED> struct Part {
  static constexpr bool BY_COLUMN = true;
  const T* p;
  template <int N> POEM_DEVICE Floats<N> read(const Place& place) const {
    const int64_t row = MAPPED ? max(place.rows_of[place.row()], 0) : (int)place.row();  // rows of padding have -1
    return widened<N>(p + (row * PARTS + WHICH) * ((int64_t)place.packs_of_row * N) + place.column<N>());
  }
};
// One element for each run of SIZE columns.
template <class T, int SIZE> struct Run {
  static constexpr bool BY_COLUMN = true;
  const T* p;
  template <int N> POEM_DEVICE Floats<N> read(const Place& place) const { return repeated<N>(to_float(p[place.at / SIZE])); }
};
// One element for all.
template <class T> struct One {
  static constexpr bool BY_COLUMN = false;
  const T* p;
  template <int N> POEM_DEVICE Floats<N> read(const Place&) const { return repeated<N>(to_float(*p)); }
};
struct Number {
  static constexpr bool BY_COLUMN = false;
  float value;
  template <int N> POEM_DEVICE Floats<N> read(const Place&) const { return repeated<N>(value); }
};

// ----------------------------------------------------------------------------------------------------------------- functions
struct Same {
  POEM_DEVICE static float of(float x) { return x; }
};
struct Add {
  POEM_DEVICE static float of(float x, float y) { return x + y; }
};
struct Multiply {
  POEM_DEVICE static float of(float x, float y) { return x * y; }
};
struct Tanh {
  POEM_DEVICE static float of(float x) { return tanhf(x); }
};
struct Relu {
  POEM_DEVICE static float of(float x) { return x <= 0.0f ? 0.0f : x; }  // NaN stays NaN
};
struct ReluSquared {
  POEM_DEVICE static float of(float x) { return Relu::of(x) * Relu::of(x); }
};
struct ScaledSilu {
  POEM_DEVICE static float of(float x, float s) { return activated<SILU>(s * x); }
};
struct Clamp {
  POEM_DEVICE static float of(float x, float low, float high) { return fminf(fmaxf(x, low), high); }  // NaN becomes low
};
struct Softcap {
  POEM_DEVICE static float of(float x, float cap) { return cap * tanhf(x / cap); }
};
struct Standardize {
  POEM_DEVICE static float of(float x, float bias, float scale) { return (x - bias) * scale; }
};
struct Gate {
  POEM_DEVICE static float of(float x, float gate) { return x * sigmoid(gate); }
};
struct ScaledGate {
  POEM_DEVICE static float of(float x, float gate, float scale) { return x * (scale * sigmoid(gate)); }
};
struct AddGated {
  POEM_DEVICE static float of(float r, float gate, float y) { return r + gate * y; }
};
struct ScaleShift {
  POEM_DEVICE static float of(float x, float scale, float shift) { return x * (1.0f + scale) + shift; }
};
struct ScaleByOneMore {
  POEM_DEVICE static float of(float x, float scale) { return x * (1.0f + scale); }
};
struct TanhGate {
  POEM_DEVICE static float of(float x, float gate) { return tanhf(gate) * x; }
};
template <Activation ACT> struct Activated {
  POEM_DEVICE static float of(float x) { return activated<ACT>(x); }
};
// Gated units, of a gate and what it lets through.
template <Activation ACT> struct Glu {
  POEM_DEVICE static float of(float gate, float up) { return activated<ACT>(gate) * up; }
};
struct GluAlpha {
  POEM_DEVICE static float of(float gate, float up, float alpha) { return (up + 1.0f) * (gate * sigmoid(alpha * gate)); }
};
struct GluSitu {
  POEM_DEVICE static float of(float gate, float up, float beta) { return beta * tanhf(gate / beta) * sigmoid(gate) * up; }
};
struct GluSituCapped {
  POEM_DEVICE static float of(float gate, float up, float beta, float cap) { return GluSitu::of(gate, cap * tanhf(up / cap), beta); }
};
// Gate and up limited first; NaN becomes the limit, or its opposite.
template <class F> struct Limited {
  template <class... More> POEM_DEVICE static float of(float gate, float up, float limit, More... more) {
    return F::of(fminf(gate, limit), fminf(fmaxf(up, -limit), limit), more...);
  }
};

// -------------------------------------------------------------------------------------------------------------------- kernel
template <class F, class T, int N, class... Read> POEM_DEVICE Pack<T, N> computed(const Read&... read) {
  Pack<T, N> y;
#pragma unroll
  for (int j = 0; j < N; ++j) y.at[j] = from_float<T>(F::of(read.at[j]...));
  return y;
}
template <class T, int N> POEM_DEVICE void store(T* to, const Pack<T, N>& y) { *reinterpret_cast<Pack<T, N>*>(to) = y; }
// out = F(operands), element by element; `count` elements in rows of `width`. The grid strides over all packs; the last may be short where
// no operand is read by column.
template <class F, int VEC, class T, class... Operands> __global__ void __launch_bounds__(256, 6)
    elementwise(T* __restrict__ out, const int* __restrict__ rows_of, int64_t count, int width, Operands... operands) {
  const uint32_t packs = (uint32_t)((count + VEC - 1) / VEC), packs_of_row = (uint32_t)(width / VEC);
  for (uint32_t pack = blockIdx.x * 256u + threadIdx.x; pack < packs; pack += gridDim.x * 256u) {
    const Place place{(int64_t)pack * VEC, pack, packs_of_row, rows_of};
    if ((Operands::BY_COLUMN || ...) || place.at + VEC <= count) {
      store(out + place.at, computed<F, T, VEC>(operands.template read<VEC>(place)...));
    } else {
      for (int64_t at = place.at; at < count; ++at)
        store(out + at, computed<F, T, 1>(operands.template read<1>(Place{at})...));
    }
  }
}

// The same for products by the rule a8: results are rounded to T and then to e4m3 codes [rows, width], a multiple of 4, with a scale for
// each run of 128 columns, [runs, stride], which is 1 for rows that do not exist. One warp for each row and run; the last run may be short.
template <class F, class T, class... Operands> __global__ void __launch_bounds__(256)
    elementwise_codes(uint8_t* __restrict__ codes, float* __restrict__ scales, const int* __restrict__ rows_of, int rows, int width,
                      int stride, Operands... operands) {
  const int row = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, run = blockIdx.x, column = run * 128 + lane * 4;
  const bool mine = row < rows && column < width;
  const int64_t at = (int64_t)row * width + column;
  float v[4] = {};
  uint32_t largest = 0;
  if (mine) {
    const Place place{at, (uint32_t)(at / 4), (uint32_t)(width / 4), rows_of};
    const Pack<T, 4> y = computed<F, T, 4>(operands.template read<4>(place)...);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[j] = to_float(y.at[j]);
      largest = max(largest, magnitude_bits(v[j]));
    }
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, by));
  const float scale = activation_scale(largest);
  if (lane == 0 && row < stride) scales[(int64_t)run * stride + row] = scale;
  if (mine) *reinterpret_cast<uint32_t*>(codes + at) = activation_codes(v, scale);
}
