// sampling.cu: the next token of each row of logits, the likeliest one or one drawn at random.
//
// Everything that decides is an integer: an order-preserving key for each logit, and a weight exp((logit - largest) / temperature) counted
// in steps of 2^-45. So sums are exact, and neither the order of addition nor the other rows can change a token.
#include "prelude.cuh"
using namespace poem;

constexpr uint32_t WARP = 0xffffffffu;
constexpr uint32_t KEY_OF_MINUS_INFINITY = 0x007fffffu, KEY_OF_INFINITY = 0xff800000u;

// Larger for larger numbers. Zeros are equal, NaN counts as -inf. No number has the key 0.
POEM_DEVICE uint32_t key_of(float x) {
  if (is_nan(x)) return KEY_OF_MINUS_INFINITY;
  const uint32_t bits = float_bits(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
// The candidate with the larger number is larger, or that with the lower index among equals.
POEM_DEVICE uint64_t candidate(float x, int index) { return (uint64_t)key_of(x) << 32 | (uint32_t)~index; }
POEM_DEVICE int index_of(uint64_t candidate) { return (int)~(uint32_t)candidate; }

POEM_DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a < b ? b : a; }
POEM_DEVICE uint64_t warp_largest(uint64_t v) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v = larger(v, __shfl_xor_sync(WARP, v, by));
  return v;
}
POEM_DEVICE uint64_t warp_sum(uint64_t v) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(WARP, v, by);
  return v;
}
// The sum of v over this lane and those before it.
POEM_DEVICE uint64_t cumulated(uint64_t v) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const uint64_t other = __shfl_up_sync(WARP, v, by);
    if (threadIdx.x % 32 >= by) v += other;
  }
  return v;
}
template <int THREADS> POEM_DEVICE uint64_t block_largest(uint64_t v) {
  POEM_SHARED(uint64_t, partial, [THREADS / 32]);
  v = warp_largest(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) v = larger(v, partial[i]);
  return v;
}

// ---------------------------------------------------------------------------------------------------------------- argmax
// best[row, piece] is the largest candidate among `columns` columns of a row. Grid: pieces, rows.
template <class T, int VEC> __global__ void __launch_bounds__(256)
    largest_of_pieces(const T* __restrict__ x, uint64_t* __restrict__ best, int width, int columns) {
  const T* const row = x + (int64_t)blockIdx.y * width;
  const int first = blockIdx.x * columns, stop = min(first + columns, width);
  uint64_t found = 0;
  for (int column = first + threadIdx.x * VEC; column < stop; column += 256 * VEC) {
    const Pack<T, VEC> v = *reinterpret_cast<const Pack<T, VEC>*>(row + column);
#pragma unroll
    for (int j = 0; j < VEC; ++j) found = larger(found, candidate(to_float(v.at[j]), column + j));
  }
  found = block_largest<256>(found);
  if (threadIdx.x == 0) best[(int64_t)blockIdx.y * gridDim.x + blockIdx.x] = found;
}
// ids[row * stride + column] is the index of a row's largest candidate. One warp for each row.
__global__ void __launch_bounds__(32)
    index_of_largest(const uint64_t* __restrict__ best, int* __restrict__ ids, int pieces, int stride, int column) {
  uint64_t found = 0;
  for (int piece = threadIdx.x; piece < pieces; piece += 32) found = larger(found, best[(int64_t)blockIdx.x * pieces + piece]);
  found = warp_largest(found);
  if (threadIdx.x == 0) ids[(int64_t)blockIdx.x * stride + column] = index_of(found);
}

// -------------------------------------------------------------------------------------------------------------- sampling
// The tokens that a cut leaves, likeliest first: those with a larger key, and those with this key up to id `last`.
struct Cut {
  uint32_t key;
  int last;
  POEM_DEVICE bool keeps(uint32_t other, int id) const { return other > key || (other == key && id <= last); }
};

// The first id at which the measures of ids 0, 1, ... add up to `need`; `width` if they never do. The same in every thread. Between two
// calls there is a barrier.
template <int THREADS, class Measure> POEM_DEVICE int locate(int width, uint64_t need, Measure measure) {
  constexpr int WARPS = THREADS / 32;
  POEM_SHARED(uint64_t, sums, [WARPS]);
  POEM_SHARED(int, found, [1]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int length = (width + THREADS - 1) / THREADS * 32, first = warp * length, stop = min(first + length, width);
  uint64_t sum = 0;
  for (int id = first + lane; id < stop; id += 32) sum += measure(id);
  sum = warp_sum(sum);
  if (lane == 0) sums[warp] = sum;
  if (threadIdx.x == 0) *found = width;
  __syncthreads();
  uint64_t before = 0;
  for (int i = 0; i < warp; ++i) before += sums[i];
  if (before < need && need <= before + sum) {
    for (int start = first; start < stop; start += 32) {
      const uint64_t until = cumulated(start + lane < stop ? measure(start + lane) : 0);
      const uint32_t reached = __ballot_sync(WARP, before + until >= need);
      if (reached) {
        if (lane == 0) *found = start + __ffs(reached) - 1;
        break;
      }
      before += __shfl_sync(WARP, until, 31);
    }
  }
  __syncthreads();
  return *found;
}

// The fewest tokens, likeliest first and lower ids first among equals, whose measures add up to `need`; all if they never do.
// Eight bits of the key at a time: a histogram of the measures tells in which of 256 parts the last one lies.
template <int THREADS, class T, class Measure> POEM_DEVICE Cut fewest(const T* row, int width, uint64_t need, Measure measure) {
  static_assert(THREADS >= 256, "each part of the histogram has a thread");
  POEM_SHARED(uint64_t, histogram, [256]);
  POEM_SHARED(uint64_t, rest, [2]);
  uint32_t key = 0, known = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < width; id += THREADS) {
      const uint32_t other = key_of(to_float(row[id]));
      if ((other & known) == key) atomicAdd(&histogram[other >> shift & 255], measure(id));
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // each lane looks at eight parts, from the largest down
      const int lane = threadIdx.x, top = 255 - lane * 8;
      uint64_t own = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) own += histogram[top - i];
      const uint64_t until = cumulated(own);
      if (until - own < need && (need <= until || lane == 31)) {
        uint64_t left = need - (until - own);
        int part = top;
        for (; part > 0 && histogram[part] < left; --part) left -= histogram[part];
        rest[0] = left;
        rest[1] = part;
      }
    }
    __syncthreads();
    need = rest[0];
    const uint32_t part = (uint32_t)rest[1];
    key |= part << shift;
    known |= 255u << shift;
  }
  const int last = locate<THREADS>(width, need, [&](int id) { return key_of(to_float(row[id])) == key ? measure(id) : (uint64_t)0; });
  return {key, last};
}

// ids[row] is a token of logits [rows, width], one block for each row: temperature, then top-k, then top-p, then min-p, then the first id
// whose cumulated probability exceeds `uniform`, in 0..1. Temperature 0 takes the likeliest; top_k 0, top_p 1 and min_p 0 keep all. A row
// that holds NaN or +inf, or nothing but -inf, is no distribution: its id is -1. log_probabilities are natural logarithms of the tokens'
// probabilities under the logits themselves, at most 2^-20 off.
template <class T, int THREADS> __global__ void __launch_bounds__(THREADS)
    sample(const T* __restrict__ logits, const double* __restrict__ temperature, const int* __restrict__ top_k,
           const double* __restrict__ top_p, const double* __restrict__ min_p, const double* __restrict__ uniform, int* __restrict__ ids,
           double* __restrict__ log_probabilities, int width) {
  constexpr double STEPS = 35184372088832.0;  // 2^45: the sum of 3 * 2^17 weights fits 64 bits
  const T* const row = logits + (int64_t)blockIdx.x * width;
  uint64_t best = 0;
  bool wrong = false;
  for (int id = threadIdx.x; id < width; id += THREADS) {
    const float x = to_float(row[id]);
    best = larger(best, candidate(x, id));
    wrong |= is_nan(x) || key_of(x) == KEY_OF_INFINITY;
  }
  best = block_largest<THREADS>(best);
  if (__syncthreads_or(wrong) || (uint32_t)(best >> 32) == KEY_OF_MINUS_INFINITY) {
    if (threadIdx.x == 0) {
      ids[blockIdx.x] = -1;
      log_probabilities[blockIdx.x] = 0.0;
    }
    return;
  }
  POEM_SHARED(uint64_t, total, [1]);
  auto total_mass = [&](auto measure) {
    uint64_t sum = 0;
    for (int id = threadIdx.x; id < width; id += THREADS) sum += measure(id);
    sum = warp_sum(sum);
    __syncthreads();
    if (threadIdx.x == 0) *total = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
    __syncthreads();
    return *total;
  };
  auto steps = [](double weight) { return (uint64_t)(weight * STEPS + 0.5); };
  const float peak = to_float(row[index_of(best)]);
  const uint64_t plain = total_mass([&](int id) { return steps(expf(to_float(row[id]) - peak)); });  // at temperature 1
  auto choose = [&](int id) {
    if (threadIdx.x != 0) return;
    ids[blockIdx.x] = id;
    log_probabilities[blockIdx.x] = (double)to_float(row[id]) - (double)peak - log((double)plain / STEPS);
  };
  const double heat = temperature[blockIdx.x];
  if (heat == 0.0) {
    choose(index_of(best));
    return;
  }
  const double largest = (double)peak, least = min_p[blockIdx.x];
  Cut by_count = {0, width}, by_mass = {0, width};
  auto weight = [&](int id) { return exp(((double)to_float(row[id]) - largest) / heat); };
  auto mass = [&](int id) {
    const uint32_t key = key_of(to_float(row[id]));
    if (!by_count.keeps(key, id) || !by_mass.keeps(key, id)) return (uint64_t)0;
    const double w = weight(id);
    return w >= least ? steps(w) : (uint64_t)0;
  };
  if (top_k[blockIdx.x] > 0) by_count = fewest<THREADS>(row, width, (uint64_t)top_k[blockIdx.x], [](int) { return (uint64_t)1; });
  if (top_p[blockIdx.x] < 1.0) {
    auto mass_of_all = [&](int id) {
      return by_count.keeps(key_of(to_float(row[id])), id) ? steps(weight(id)) : (uint64_t)0;
    };
    by_mass = fewest<THREADS>(row, width, (uint64_t)ceil(top_p[blockIdx.x] * (double)total_mass(mass_of_all)), mass_of_all);
  }
  const uint64_t sum = total_mass(mass);
  const int chosen = locate<THREADS>(width, (uint64_t)(uniform[blockIdx.x] * (double)sum) + 1, mass);
  choose(chosen);
}
