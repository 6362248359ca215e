// One kernel for each rule that the emulator checks. RIGHT keeps it; otherwise the line marked with the rule's name breaks it.
// All take (in, out, count): 1024 unsigned numbers each, and 8 counters that are zero. One block of 128 threads unless the test says
// otherwise.
#include "prelude.cuh"
using namespace poem;
#define RULE(name) template <bool RIGHT> __global__ void name(const uint32_t* in, uint32_t* out, uint32_t* count)
#define ME (blockIdx.x * blockDim.x + threadIdx.x)

// ------------------------------------------------------------------------------------------------------------ global memory
RULE(past_the_end) { out[RIGHT ? ME : ME + 8 * blockDim.x * gridDim.x] = in[ME]; }  // past_the_end
RULE(before_the_start) { out[ME] = in[(int)ME - (RIGHT ? 0 : 3)]; }                 // before_the_start
RULE(read_only_input) {
  out[ME] = 1;
  if (!RIGHT) const_cast<uint32_t*>(in)[ME] = 1;  // read_only_input
}
RULE(aligned_access) { out[ME] = reinterpret_cast<const Pack<uint32_t, 4>*>(in + (RIGHT ? 4 : 1) * ME)->at[0]; }  // aligned_access
RULE(output_read_before_written) {
  if (RIGHT) out[ME] = 0;
  out[ME] += in[ME];  // output_read_before_written
}
RULE(output_complete) {
  if (RIGHT || ME != 77) out[ME] = in[ME];
}
RULE(constant_load) {
  using Two = Pack<uint32_t, 2>;
  using Four = Pack<uint32_t, 4>;
  prefetch_l2(in);
  out[ME] = load_streaming(in + ME) + load_streaming(reinterpret_cast<const Two*>(in) + ME).at[1];
  out[ME] += load_streaming(reinterpret_cast<const Four*>(in) + ME).at[3] + load_constant(reinterpret_cast<const Four*>(in) + ME).at[3];
  out[ME] += load_constant(reinterpret_cast<const Two*>(in) + ME).at[1];
  out[ME] += load_constant(RIGHT ? in + ME : out + ME);  // constant_load
}
RULE(null_pointer) { out[ME] = RIGHT ? in[ME] : *reinterpret_cast<const uint32_t*>(8 * ME); }  // null_pointer
RULE(array_bounds) {
  uint32_t own[4];
  for (int i = 0; i < (RIGHT ? 4 : 5); ++i) own[i] = in[ME] + i;  // array_bounds
  out[ME] = own[in[ME] % 4];
}
POEM_DEVICE void fill(uint32_t* p, int count, uint32_t value) {
  for (int i = 0; i < count; ++i) p[i] = value + i;  // pointer_bounds
}
RULE(pointer_bounds) {
  uint32_t own[4];
  fill(own, RIGHT ? 4 : 5, in[ME]);
  out[ME] = own[in[ME] % 4];
}
RULE(variable_set) {
  uint32_t own[4];
  if (RIGHT) fill(own, 4, 0);
  out[own[in[ME] % 4] > 3 ? 2000 : ME] = 1;  // variable_set
}
// Threads of one block see each other's writes after a barrier.
RULE(global_writes_apart) { out[RIGHT ? ME : ME ^ ME % 2] = in[ME]; }  // global_writes_apart
RULE(global_barrier) {
  out[ME] = in[ME];  // global_barrier
  if (RIGHT) __syncthreads();
  const uint32_t other = out[ME ^ 1];
  __syncthreads();
  out[ME] = other;
}
RULE(global_barrier_before_reuse) {
  out[ME] = in[ME];
  __syncthreads();
  const uint32_t first = out[ME - threadIdx.x];
  if (RIGHT) __syncthreads();
  out[ME] = first;  // global_barrier_before_reuse
}
// Two blocks. A block may not use what the other one writes,
RULE(blocks_write_apart) { out[RIGHT ? ME : threadIdx.x] = in[ME]; }  // blocks_write_apart
RULE(blocks_read_apart) {
  out[ME] = in[ME];
  if (!RIGHT && threadIdx.x == 0) count[7] = out[0];  // blocks_read_apart
}
// unless it learned of it: the last block to arrive adds up what all wrote.
RULE(last_block) {
  POEM_SHARED(uint32_t, arrived, [1]);
  out[ME] = in[ME];
  __syncthreads();
  if (threadIdx.x == 0) {
    if (RIGHT) __threadfence();
    arrived[0] = atomicAdd(count, 1u);
  }
  __syncthreads();
  if (arrived[0] == gridDim.x - 1) {
    __threadfence();
    uint32_t sum = 0;
    for (uint32_t b = 0; b < gridDim.x; ++b) sum += out[b * blockDim.x + threadIdx.x];  // last_block
    if (threadIdx.x == 0) count[1] = sum;
  }
}
RULE(last_block_by_acquire) {
  POEM_SHARED(uint32_t, arrived, [1]);
  out[ME] = in[ME];
  __syncthreads();
  if (threadIdx.x == 0) arrived[0] = RIGHT ? atomic_add_acq_rel(count, 1) : atomicAdd(count, 1u);
  __syncthreads();
  if (arrived[0] == gridDim.x - 1 && threadIdx.x < 4) count[1 + threadIdx.x] = out[ME ^ 128];  // last_block_by_acquire
}
RULE(published_flag) {
  POEM_SHARED(uint32_t, seen, [1]);
  out[ME] = in[ME];
  __syncthreads();
  if (threadIdx.x == 0) {
    if (RIGHT) store_release(count + blockIdx.x, 1);
    else atomicExch(count + blockIdx.x, 1u);
    reduce_add(count + 6, 1);
    seen[0] = load_acquire(count + (blockIdx.x ^ 1));
  }
  __syncthreads();
  if (seen[0] && threadIdx.x == 0) count[2 + blockIdx.x] = out[ME ^ 128];  // published_flag
}
// In a launch that overlaps its predecessor.
RULE(dependency_wait) {
  if (RIGHT) grid_dependency_wait();
  out[ME] = in[ME];  // dependency_wait
  grid_dependency_launch();
}

// ------------------------------------------------------------------------------------------------------------ shared memory
RULE(shared_barrier) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  if (RIGHT) __syncthreads();
  out[ME] = words[threadIdx.x ^ 64];  // shared_barrier
}
RULE(shared_barrier_before_reuse) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  __syncthreads();
  out[ME] = words[0];
  if (RIGHT) __syncthreads();
  if (threadIdx.x == 5) words[0] = 0;  // shared_barrier_before_reuse
}
RULE(warp_barrier_in_a_warp) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  if (RIGHT) __syncwarp();
  out[ME] = words[threadIdx.x ^ 1];  // warp_barrier_in_a_warp
}
RULE(shared_written_first) {
  POEM_SHARED(uint32_t, words, [128]);
  if (RIGHT || threadIdx.x != 5) words[threadIdx.x] = in[ME];
  __syncthreads();
  out[ME] = words[threadIdx.x];  // shared_written_first
}
RULE(shared_bounds) {
  POEM_SHARED(uint32_t, words, [128]);
  uint32_t* const first = words;
  first[threadIdx.x + (RIGHT ? 0 : 1)] = in[ME];  // shared_bounds
  out[ME] = 0;
}
RULE(shared_bytes_apart) {
  POEM_SHARED(uint8_t, bytes, [256]);
  bytes[threadIdx.x] = 1;
  if (!RIGHT) bytes[threadIdx.x / 2] = 2;  // shared_bytes_apart
  out[ME] = bytes[threadIdx.x];
}
RULE(shared_atomics) {
  POEM_SHARED(uint32_t, sum, [1]);
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  atomicAdd(sum, in[ME]);
  if (RIGHT) __syncthreads();
  out[ME] = threadIdx.x == 0 ? sum[0] : 0;  // shared_atomics
}
RULE(barrier_at_one_place) {
  if (RIGHT || threadIdx.x < 64) __syncthreads();
  else __syncthreads();  // barrier_at_one_place
  out[ME] = in[ME];
}
RULE(barrier_before_exit) {
  out[ME] = in[ME];
  if (!RIGHT && threadIdx.x >= 96) return;
  __syncthreads();  // barrier_before_exit
}
RULE(named_barrier_count) {
  barrier_sync(1, RIGHT || threadIdx.x < 64 ? 128 : 64);  // named_barrier_count
  out[ME] = in[ME];
}
RULE(named_barrier_orders) {
  POEM_SHARED(uint32_t, words, [64]);
  if (threadIdx.x < 64) {
    words[threadIdx.x] = in[ME];
    barrier_arrive(2, 128);
    out[ME] = 0;
  } else {
    if (RIGHT) barrier_sync(2, 128);
    else barrier_arrive(2, 128);
    out[ME] = words[threadIdx.x - 64];  // named_barrier_orders
  }
}

// --------------------------------------------------------------------------------------------------------------------- warps
RULE(lanes_together) {
  uint32_t v = in[ME];
  if (RIGHT || threadIdx.x % 32 < 16) v = __shfl_xor_sync(~0u, v, 1);
  else v = __ballot_sync(~0u, v);  // lanes_together
  out[ME] = v;
}
RULE(shuffle_inside_its_mask) {
  uint32_t v = in[ME];
  if (threadIdx.x % 32 < 16) v = __shfl_sync(0xffffu, v, RIGHT ? 3 : 20);  // shuffle_inside_its_mask
  out[ME] = v;
}
RULE(matrix_row_alignment) {
  POEM_SHARED(uint16_t, tile, [8 * 16]);
  tile[threadIdx.x] = threadIdx.x;
  __syncthreads();
  uint32_t r[1];
  ldmatrix(r, shared_address(tile) + threadIdx.x % 8 * 16 + (RIGHT ? 0 : 2));  // matrix_row_alignment
  out[ME] = r[0];
}

// ------------------------------------------------------------------------------------------------------- asynchronous copies
RULE(copy_wait) {
  POEM_SHARED(uint32_t, words, [4 * 128]);
  cp_async(shared_address(words + 4 * threadIdx.x), in + 4 * ME);
  cp_async_commit();
  if (RIGHT) cp_async_wait<0>();
  else cp_async_wait<1>();
  __syncthreads();
  out[ME] = words[(4 * threadIdx.x + 8) % 512];  // copy_wait
}
RULE(copy_alignment) {
  POEM_SHARED(uint32_t, words, [128]);
  cp_async<4>(shared_address(words) + 4 * threadIdx.x + (RIGHT ? 0 : 2), in + ME);  // copy_alignment
  cp_async_commit();
  cp_async_wait<0>();
  out[ME] = words[threadIdx.x];
}
RULE(copy_over_readers) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  __syncthreads();
  out[ME] = words[0];
  if (RIGHT) __syncthreads();
  if (threadIdx.x == 6) cp_async<8>(shared_address(words), in + ME);  // copy_over_readers
  cp_async_commit();
  cp_async_wait<0>();
}
RULE(copies_through_an_mbarrier) {
  POEM_SHARED(uint64_t, bar, [1]);
  POEM_SHARED(uint32_t, words, [128]);
  if (threadIdx.x == 0) mbarrier_init(shared_address(bar), 128);
  __syncthreads();
  cp_async<4>(shared_address(words + threadIdx.x), in + ME);
  cp_async_mbarrier_arrive(shared_address(bar));
  if (RIGHT) mbarrier_wait(shared_address(bar), 0);
  out[ME] = words[threadIdx.x ^ 64];  // copies_through_an_mbarrier
}
RULE(bulk_copy_wait) {
  POEM_SHARED(uint64_t, bar, [1]);
  POEM_SHARED(uint32_t, words, [128]);
  if (threadIdx.x == 0) {
    mbarrier_init(shared_address(bar), 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect(shared_address(bar), 512);
    bulk_load(shared_address(words), in + ME, 512, shared_address(bar));
  }
  __syncthreads();
  if (RIGHT || threadIdx.x != 9) mbarrier_wait(shared_address(bar), 0);
  out[ME] = words[threadIdx.x];  // bulk_copy_wait
}
RULE(mbarrier_arrivals) {
  POEM_SHARED(uint64_t, bar, [1]);
  if (threadIdx.x == 0) mbarrier_init(shared_address(bar), RIGHT ? 128 : 127);
  __syncthreads();
  if (threadIdx.x) mbarrier_arrive(shared_address(bar));  // mbarrier_arrivals
  else mbarrier_arrive_expect(shared_address(bar), 16);
  out[ME] = in[ME];
}
RULE(mbarrier_initialised) {
  POEM_SHARED(uint64_t, bar, [1]);
  if (threadIdx.x == 0) mbarrier_init(shared_address(bar), 128);
  if (RIGHT) __syncthreads();
  mbarrier_arrive(shared_address(bar));  // mbarrier_initialised
  mbarrier_wait(shared_address(bar), 0);
  out[ME] = in[ME];
}
RULE(mbarrier_apart) {
  POEM_SHARED(uint64_t, bars, [2]);
  if (threadIdx.x == 0) {
    mbarrier_init(shared_address(bars), 128);
    bars[RIGHT] = 1;  // mbarrier_apart
  }
  out[ME] = in[ME];
}
RULE(bulk_store_fence) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  if (RIGHT) fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out + ME, shared_address(words), 512);  // bulk_store_fence
    bulk_commit();
    bulk_wait_read<0>();
  }
}
RULE(bulk_store_reuse) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out + ME, shared_address(words), 512);
    bulk_commit();
    if (RIGHT) bulk_wait_read<0>();
    words[0] = 0;  // bulk_store_reuse
    bulk_wait<0>();
  }
}
RULE(bulk_store_before_exit) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  fence_async_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(out + ME, shared_address(words), 512);
    bulk_commit();
    if (RIGHT) bulk_wait_read<0>();
  }
}

// ------------------------------------------------------------------------------------------------- clusters of two blocks
RULE(cluster_barrier) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  if (RIGHT) cluster_sync();
  else __syncthreads();
  out[ME] = cluster_pointer(words, cluster_rank() ^ 1)[threadIdx.x];  // cluster_barrier
  cluster_sync();
}
RULE(cluster_arrive_once) {
  cluster_arrive();
  if (!RIGHT && cluster_rank() == 1 && threadIdx.x == 100) cluster_arrive();  // cluster_arrive_once
  cluster_wait();
  out[ME] = in[ME];
}
RULE(cluster_exit) {
  POEM_SHARED(uint32_t, words, [128]);
  words[threadIdx.x] = in[ME];
  cluster_sync();
  if (RIGHT || cluster_rank() == 0) out[ME] = cluster_pointer(words, cluster_rank() ^ 1)[threadIdx.x];
  else out[ME] = 0;
  if (RIGHT) cluster_sync();
  __syncthreads();
  if (!RIGHT && threadIdx.x == 0) count[1 + cluster_rank()] = cluster_pointer(words, cluster_rank() ^ 1)[0];  // cluster_exit
}
RULE(remote_arrival) {
  POEM_SHARED(uint64_t, bar, [1]);
  POEM_SHARED(uint32_t, words, [128]);
  if (threadIdx.x == 0) {
    mbarrier_init(shared_address(bar), 128);
    mbarrier_init_fence();
  }
  cluster_sync();
  cluster_pointer(words, cluster_rank() ^ 1)[threadIdx.x] = in[ME];
  mbarrier_arrive_cluster(cluster_address(shared_address(bar), cluster_rank() ^ 1));
  if (RIGHT) mbarrier_wait(shared_address(bar), 0);
  out[ME] = words[threadIdx.x];  // remote_arrival
  cluster_sync();
}

// ------------------------------------------------------------------------------------------------------------- warpgroups
RULE(register_budget) {  // 384 threads
  if (threadIdx.x < 128) release_registers<40>();
  else acquire_registers<RIGHT ? 232 : 240>();  // register_budget
  out[ME] = in[ME];
}
RULE(matrix_pattern) {
  POEM_DYNAMIC_SHARED(memory);
  for (int i = threadIdx.x; i < 8192; i += 128) reinterpret_cast<uint32_t*>(memory)[i] = 0;
  fence_async_proxy();
  __syncthreads();
  const uint64_t a = row_descriptor<Swizzle::bytes128>(shared_address(memory) + (RIGHT ? 1024 : 128));
  const uint64_t b = row_descriptor<Swizzle::bytes128>(shared_address(memory));
  float d[4] = {};
  wgmma_fence();
  wgmma<bf16>(d, a, b, true);  // matrix_pattern
  wgmma_commit();
  wgmma_wait<0>();
  out[ME] = in[ME] + (uint32_t)d[0];
}
RULE(stack_size) {  // stack_size
  volatile uint32_t big[RIGHT ? 8 : 40000];
  for (int i = 0; i < (RIGHT ? 8 : 40000); ++i) big[i] = in[ME];
  out[ME] = big[3];
}
