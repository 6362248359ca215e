// gather.cu: rows and columns copied by index, sums of rows, and rows of quantised tables decoded.
//
// Copies move units of type V, an unsigned integer or a vector of them that holds a whole number of elements: bits are kept, whatever they
// mean. One thread moves one unit, or decodes VEC columns of a table.
#include "prelude.cuh"
using namespace poem;

POEM_DEVICE int64_t thread_of_grid() { return blockIdx.x * (int64_t)256 + threadIdx.x; }
POEM_DEVICE int row_or_first(int row, int limit) { return (uint32_t)row < (uint32_t)limit ? row : 0; }

// out[i] = x[rows[i]] for rows of `units` units. A row outside 0 .. limit - 1 is row 0, or zeros with ZEROS.
template <class V, bool ZEROS> __global__ void __launch_bounds__(256)
    copy_rows(const V* __restrict__ x, const int* __restrict__ rows, V* __restrict__ out, int count, int units, int limit) {
  const int64_t i = thread_of_grid();
  if (i >= (int64_t)count * units) return;
  const int64_t to = i / units, unit = i - to * units;
  const int named = rows[to], from = row_or_first(named, limit);
  out[i] = ZEROS && from != named ? V{} : x[(int64_t)from * units + unit];
}

// `units` units of each row, from `first` on, of rows of `stride` units.
template <class V> __global__ void __launch_bounds__(256)
    select_columns(const V* __restrict__ x, V* __restrict__ out, int rows, int units, int stride, int first) {
  const int64_t i = thread_of_grid();
  if (i >= (int64_t)rows * units) return;
  const int64_t row = i / units, unit = i - row * units;
  out[i] = x[row * stride + first + unit];
}
// UNITS units of each row of a matrix, or of a part of it, whose rows are as wide.
template <class V, int UNITS> struct Part {
  V* p;
};
// Rows cut into parts of UNITS units, in their order; and the way back. One thread moves one of `count` units.
template <class V, int... UNITS> __global__ void __launch_bounds__(256)
    split_columns(const V* __restrict__ x, int64_t count, Part<V, UNITS>... parts) {
  const int64_t i = thread_of_grid(), row = i / (UNITS + ...), unit = i % (UNITS + ...);
  if (i >= count) return;
  const V v = x[i];
  int first = 0;
  ((unit >= first && unit < first + UNITS ? void(parts.p[row * UNITS + unit - first] = v) : void(), first += UNITS), ...);
}
template <class V, int... UNITS> __global__ void __launch_bounds__(256)
    concat_columns(V* __restrict__ out, int64_t count, Part<const V, UNITS>... parts) {
  const int64_t i = thread_of_grid(), row = i / (UNITS + ...), unit = i % (UNITS + ...);
  if (i >= count) return;
  V v;
  int first = 0;
  ((unit >= first && unit < first + UNITS ? void(v = parts.p[row * UNITS + unit - first]) : void(), first += UNITS), ...);
  out[i] = v;
}

// out[r] = src[i] for the last i with routes[i] = r; where there is none it is y[r], or zeros if y is null. Of src there are `count` rows,
// or, in memory that is larger than the pass, `count` for each of *live. One block for each row of out.
template <class V> __global__ void __launch_bounds__(256)
    scatter_rows(const V* __restrict__ src, const int* __restrict__ routes, const V* __restrict__ y, V* __restrict__ out,
                 const int* __restrict__ live, int count, int units) {
  POEM_SHARED(int, last, [1]);
  if (threadIdx.x == 0) *last = -1;
  __syncthreads();
  int found = -1;
  const int rows = live ? *live * count : count;
  for (int i = threadIdx.x; i < rows; i += 256)
    if (routes[i] == (int)blockIdx.x) found = i;
  if (found >= 0) atomicMax(last, found);
  __syncthreads();
  const int64_t start = (int64_t)blockIdx.x * units;
  const V* const from = *last >= 0 ? src + (int64_t)*last * units : y ? y + start : nullptr;
  for (int unit = threadIdx.x; unit < units; unit += 256) out[start + unit] = from ? from[unit] : V{};
}

// ------------------------------------------------------------------------------------------------------------ sums of rows
// out[n] = the mean of rows n * size .. n * size + size - 1 of x, summed in this order. VEC columns a thread.
template <class T, int VEC> __global__ void __launch_bounds__(256)
    mean_rows(const T* __restrict__ x, T* __restrict__ out, int rows, int width, int size) {
  const int packs = width / VEC;
  const int64_t i = thread_of_grid(), row = i / packs, column = i % packs * VEC;
  if (row >= rows) return;
  float sum[VEC] = {};
  for (int tap = 0; tap < size; ++tap) {
    const Pack<T, VEC> v = *reinterpret_cast<const Pack<T, VEC>*>(x + (row * size + tap) * width + column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] += to_float(v.at[j]);
  }
  Pack<T, VEC> y;
#pragma unroll
  for (int j = 0; j < VEC; ++j) y.at[j] = from_float<T>(sum[j] / (float)size);
  *reinterpret_cast<Pack<T, VEC>*>(out + row * width + column) = y;
}
// out[n] = the sum over t of weights[n, t] * table[ids[n, t]], in this order. Ids outside the vocabulary read row 0.
template <class T, int VEC> __global__ void __launch_bounds__(256)
    embed_weighted(const int* __restrict__ ids, const float* __restrict__ weights, const T* __restrict__ table, T* __restrict__ out,
                   int rows, int taps, int width, int vocab) {
  const int packs = width / VEC;
  const int64_t i = thread_of_grid(), row = i / packs, column = i % packs * VEC;
  if (row >= rows) return;
  float sum[VEC] = {};
  for (int tap = 0; tap < taps; ++tap) {
    const float weight = weights[row * taps + tap];
    const int64_t from = row_or_first(ids[row * taps + tap], vocab);
    const Pack<T, VEC> v = *reinterpret_cast<const Pack<T, VEC>*>(table + from * width + column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) sum[j] += weight * to_float(v.at[j]);
  }
  Pack<T, VEC> y;
#pragma unroll
  for (int j = 0; j < VEC; ++j) y.at[j] = from_float<T>(sum[j]);
  *reinterpret_cast<Pack<T, VEC>*>(out + row * width + column) = y;
}

// ---------------------------------------------------------------------------------------------------- quantised tables
// Codes that are no type of their own. Sub-byte codes are packed, low bits first.
struct u2 {};
struct u4 {};
struct e2m1 {};

template <class C> constexpr int BITS = 8;
template <> constexpr int BITS<u2> = 2;
template <> constexpr int BITS<u4> = 4;
template <> constexpr int BITS<e2m1> = 4;

template <class C> POEM_DEVICE float value_of_code(uint32_t code) {
  if constexpr (same_type<C, e2m1>) return e2m1_to_float(code);
  else if constexpr (same_type<C, e4m3> || same_type<C, e5m2>) return to_float(C{(uint8_t)code});
  else if constexpr (same_type<C, int8_t>) return (float)(int8_t)code;
  else return (float)code;
}

// What all columns of a group share: column c of row r has the gain number (r / height) * per_row + c / size.
struct Groups {
  int height, size, per_row;
  POEM_DEVICE int64_t of(int row, int column) const { return (int64_t)(row / height) * per_row + column / size; }
};

// out[n] = row ids[n] of a table, decoded: `finish` makes a value of the product of code and gain. Ids outside the vocabulary read row 0.
// Each step is rounded to float32 by itself, as the formats say; a fused multiply and add would not.
template <class C, class G, int VEC, class Finish> POEM_DEVICE void decode_rows(const int* ids, const uint8_t* code, const G* gain,
                                                                                bf16* out, int count, int width, int vocab, Groups groups,
                                                                                Finish finish) {
  constexpr int BYTES = VEC * BITS<C> / 8, PER_BYTE = 8 / BITS<C>;
  static_assert(BYTES > 0, "a thread decodes whole bytes");
  const int packs = width / VEC;
  const int64_t i = thread_of_grid();
  if (i >= (int64_t)count * packs) return;
  const int64_t n = i / packs;
  const int row = row_or_first(ids[n], vocab), column = (int)(i - n * packs) * VEC;
  const Pack<uint8_t, BYTES> codes = *reinterpret_cast<const Pack<uint8_t, BYTES>*>(code + ((int64_t)row * width + column) * BITS<C> / 8);
  const int64_t group = groups.of(row, column);
  const float scale = to_float(gain[group]);
  Pack<bf16, VEC> y;
#pragma unroll
  for (int j = 0; j < VEC; ++j) {
    const uint32_t byte = codes.at[j / PER_BYTE];
    const uint32_t bits = byte >> (j % PER_BYTE * BITS<C>)&((1u << BITS<C>)-1);
    y.at[j] = from_float<bf16>(finish(__fmul_rn(value_of_code<C>(bits), scale), group));
  }
  *reinterpret_cast<Pack<bf16, VEC>*>(out + n * width + column) = y;
}

// value = code * gain
template <class C, class G, int VEC> __global__ void __launch_bounds__(256)
    embed_scaled(const int* __restrict__ ids, const uint8_t* __restrict__ code, const G* __restrict__ gain, bf16* __restrict__ out,
                 int count, int width, int vocab, int height, int size, int per_row) {
  decode_rows<C, G, VEC>(ids, code, gain, out, count, width, vocab, {height, size, per_row},
                         [](float product, int64_t) { return product; });
}
// value = (code * gain) * outer, one number for the table
template <class C, class G, int VEC> __global__ void __launch_bounds__(256)
    embed_scaled_twice(const int* __restrict__ ids, const uint8_t* __restrict__ code, const G* __restrict__ gain,
                       const float* __restrict__ outer, bf16* __restrict__ out, int count, int width, int vocab, int height, int size,
                       int per_row) {
  const float factor = *outer;
  decode_rows<C, G, VEC>(ids, code, gain, out, count, width, vocab, {height, size, per_row},
                         [factor](float product, int64_t) { return product * factor; });
}
// value = code * gain + offset
template <class C, class G, int VEC> __global__ void __launch_bounds__(256)
    embed_affine(const int* __restrict__ ids, const uint8_t* __restrict__ code, const G* __restrict__ gain, const G* __restrict__ offset,
                 bf16* __restrict__ out, int count, int width, int vocab, int height, int size, int per_row) {
  decode_rows<C, G, VEC>(ids, code, gain, out, count, width, vocab, {height, size, per_row},
                         [offset](float product, int64_t group) { return __fadd_rn(product, to_float(offset[group])); });
}
