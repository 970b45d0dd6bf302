// Unpacked weights as `at(row, column)`.
#pragma once
#include "common.cuh"

struct Bf16Weight {
    const bf16* data;
    int cols;
    __device__ __forceinline__ float at(long long row, int col) const { return f32(data[row * cols + col]); }
};

struct F32Weight {
    const float* data;
    int cols;
    __device__ __forceinline__ float at(long long row, int col) const { return data[row * cols + col]; }
};
