// Norms of rows that a block keeps in shared memory, and the sum before them: what computes both gives the same bits, whoever brings the summands.
#pragma once
#include "common.cuh"

// Eight elements of a row that was scaled to a mean square of one, times the weight's.
__device__ __forceinline__ void norm8(const float* row, float scale, const bf16* weight, bf16* out) {
    float w[8], v[8];
    load8(weight, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = f32(to_bf16(row[j] * scale)) * w[j];
    store8(out, v);
}

// y = rmsnorm(row) * w, `row` in shared memory; `square` is this thread's share of the squares.
__device__ __forceinline__ void norm_row(const float* row, float square, const bf16* weight, bf16* out, int n, float eps) {
    const float scale = rsqrtf(block_sum(square) / n + eps);
    if (n % 8 != 0) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = to_bf16(f32(to_bf16(row[i] * scale)) * f32(weight[i]));
        return;
    }
    for (int i = threadIdx.x * 8; i < n; i += blockDim.x * 8) norm8(row + i, scale, weight + i, out + i);
}

// Eight elements of sum = a + b, rounded, which are also kept in `row`, with their squares.
__device__ __forceinline__ void add_to_row(float (&a)[8], const float (&b)[8], float* row, bf16* sum, float& square) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        a[j] = f32(to_bf16(a[j] + b[j]));
        row[j] = a[j];
        square += a[j] * a[j];
    }
    store8(sum, a);
}
