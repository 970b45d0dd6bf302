// Dense projections for few rows and for shapes that cuBLASLt does not take: y[T, N] = x[T, K] w[N, K]^T (+ bias).
#include "weights.cuh"

// A warp computes one column of up to ROWS rows, so that a weight is read once for all of them. Grid: (ceil(N / warps), ceil(T / ROWS)).
template <class Weight, class Out, int ROWS>
__device__ __forceinline__ void project(const bf16* x, const Weight w, const bf16* bias, Out* y, int rows, int n, int k) {
    const int lane = threadIdx.x % WARP, col = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, first = blockIdx.y * ROWS;
    if (col >= n) return;
    const int held = min(ROWS, rows - first);
    float sums[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) sums[r] = 0.f;
    for (int i = lane; i < k; i += WARP) {
        const float weight = w.at(col, i);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (r < held) sums[r] += weight * f32(x[(size_t)(first + r) * k + i]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float total = warp_sum(sums[r]);
        if (lane == 0 && r < held) store(y + (size_t)(first + r) * n + col, total + (bias ? f32(bias[col]) : 0.f));
    }
}

extern "C" __global__ void linear_bf16(const bf16* x, const bf16* w, const bf16* bias, bf16* y, int rows, int n, int k) {
    project<Bf16Weight, bf16, 8>(x, Bf16Weight{w, k}, bias, y, rows, n, k);
}
extern "C" __global__ void linear_f32_f32(const bf16* x, const float* w, const bf16* bias, float* y, int rows, int n, int k) {
    project<F32Weight, float, 8>(x, F32Weight{w, k}, bias, y, rows, n, k);
}
