// What the dense projections have in common: where operands lie, and sums over the blocks of a cluster.
#pragma once
#include "common.cuh"

// Where operands lie. `batch` matrices (heads) side by side: matrix b starts b * *_batch elements further; rows follow at *_stride elements.
// With sequences, the token rows are the cache rows of all sequences, sequence after sequence.
struct Shape {
    int rows, n, k, x_stride, y_stride, x_batch, y_batch;
    long long w_batch;
    int parts, f32_out;
    const SequenceRows* sequences;
    int sequence_count;
};
#define SHAPE_PARAMS                                                                                                                        \
    int rows, int n, int k, int x_stride, int y_stride, int x_batch, int y_batch, long long w_batch, int parts, int f32_out,               \
        const SequenceRows *sequences, int sequence_count
#define SHAPE Shape{rows, n, k, x_stride, y_stride, x_batch, y_batch, w_batch, parts, f32_out, sequences, sequence_count}

__device__ __forceinline__ size_t token_row(const Shape& s, int row) {
    if (!s.sequences) return row;
    int i = 0;
    while (i + 1 < s.sequence_count && row >= s.sequences[i].past + s.sequences[i].rows) row -= s.sequences[i].past + s.sequences[i].rows, ++i;
    return s.sequences[i].cache_start + row;
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}
__device__ __forceinline__ float4 cluster_load(const float4* local, u32 rank) {
    u32 address = (u32)__cvta_generic_to_shared(local), remote;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(remote));
    return v;
}

__device__ __forceinline__ float2 cluster_load(const float2* local, u32 rank) {
    u32 remote;
    float2 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(local)), "r"(rank));
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(remote));
    return v;
}

__device__ __forceinline__ void cluster_store(float* local, u32 rank, float v) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"((u32)__cvta_generic_to_shared(local)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(v) : "memory");
}

// Adds the sums of the blocks of a cluster, in rank order, into the first one's. `room` in shared memory: N float4 a thread.
template <int N, int CLUSTER>
__device__ __forceinline__ void reduce_cluster(float4* room, float (&acc)[N][4]) {
    if (CLUSTER == 1) return;
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) room[n * blockDim.x + threadIdx.x] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    cluster_barrier();
    if (cluster_rank() == 0)
        for (int r = 1; r < CLUSTER; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const float4 v = cluster_load(&room[n * blockDim.x + threadIdx.x], r);
                acc[n][0] += v.x, acc[n][1] += v.y, acc[n][2] += v.z, acc[n][3] += v.w;
            }
    cluster_barrier();
}

__device__ __forceinline__ void store_result(void* y, const bf16* bias, const Shape& s, int batch, int row, int out, float v) {
    if (row >= s.rows || out >= s.n) return;
    if (bias) v += f32(bias[out]);
    const size_t at = (size_t)batch * s.y_batch + (size_t)row * s.y_stride + out;
    if (s.f32_out) ((float*)y)[at] = v;
    else ((bf16*)y)[at] = to_bf16(v);
}
