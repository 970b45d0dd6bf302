// Collectives over peer memory: one-shot all-reduce and fixed-capacity dispatch and combine. Epochs live in device memory; every wait has a bound.
#include "common.cuh"

constexpr int MAX_RANKS = 8;

struct Peers {
    void* data[MAX_RANKS];
    u32* flags[MAX_RANKS];
};

__device__ __forceinline__ void release_store(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ u32 acquire_load(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Every block tells its twin on every rank that it has arrived, and waits for theirs. Flags: [2 parities][blocks][ranks].
// A peer that never comes sets `error` after `bound` polls instead of hanging the device.
__device__ __forceinline__ void block_barrier(const Peers* peers, int rank, int ranks, u32 epoch, u32 bound, u32* error) {
    __syncthreads();
    if (threadIdx.x < ranks) {
        const u32 slot = ((epoch & 1) * gridDim.x + blockIdx.x) * MAX_RANKS;
        release_store(peers->flags[threadIdx.x] + slot + rank, epoch);
        const u32* mine = peers->flags[rank] + slot + threadIdx.x;
        u32 polls = 0;
        while ((int)(acquire_load(mine) - epoch) < 0)
            if (++polls > bound) { atomicExch(error, 1u + threadIdx.x); break; }
    }
    __syncthreads();
}

// out = sum over ranks, in rank order, of each rank's staged copy. The staging buffer holds two parities of `capacity` elements, so that a rank may
// run one call ahead. `epochs[block]` is this rank's count of calls of that block.
extern "C" __global__ void all_reduce_one_shot(const bf16* in, bf16* out, const Peers* peers, u32* epochs, u32* error, int rank, int ranks, u64 n, u64 capacity, u32 bound) {
    take_turn();
    const u32 epoch = epochs[blockIdx.x] + 1;
    const u64 start = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    bf16* staged = (bf16*)peers->data[rank] + (epoch & 1) * capacity;
    for (u64 i = start; i < n; i += step) staged[i] = in[i];
    block_barrier(peers, rank, ranks, epoch, bound, error);
    for (u64 i = start; i < n; i += step) {
        float sum = 0.f;
        for (int r = 0; r < ranks; ++r) {
            const bf16* peer = (const bf16*)peers->data[r] + (epoch & 1) * capacity;
            sum += f32(peer[i]);
        }
        out[i] = to_bf16(sum);
    }
    __syncthreads();
    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}

// Columns from..from + width of every row of `in` go to columns to.. of `out`. Grid: (rows, parts of the width): a row of logits alone is long.
extern "C" __global__ void copy_columns(const bf16* in, bf16* out, int in_width, int out_width, int from, int to, int width) {
    take_turn();
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x) out[(size_t)blockIdx.x * out_width + to + i] = in[(size_t)blockIdx.x * in_width + from + i];
}

// Sums that were added in f32, rounded once.
extern "C" __global__ void round_f32_bf16(const float* in, bf16* out, u64 n) {
    take_turn();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) out[i] = to_bf16(in[i]);
}
