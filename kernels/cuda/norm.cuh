// Parts of norms: what a kernel that brings the summands itself computes with the same instructions as the norm's own kernel, so that the bits are the same.
#pragma once
#include "common.cuh"

// Eight elements of a row, scaled, times their weights.
__device__ __forceinline__ void store_normed(bf16* out, const float* row, const float (&w)[8], float scale) {
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = f32(to_bf16(row[j] * scale)) * w[j];
    store8(out, v);
}

// Eight elements of a + b, as bf16 has them, in `a` and in memory; returns the sum of their squares.
__device__ __forceinline__ float add8(float (&a)[8], const float (&b)[8], bf16* sum) {
    float square = 0.f;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        a[j] = f32(to_bf16(a[j] + b[j]));
        square += a[j] * a[j];
    }
    store8(sum, a);
    return square;
}
