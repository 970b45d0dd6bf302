// Stored weights as `at(row, column)`, dequantized as the reference does: the product of element and scale, exact in float.
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

// Signed 4-bit, symmetric: element j of a row in bits 4*(j%8) of word j/8, stored plus 8; one scale for `group` columns.
struct Int4Weight {
    const u32* words;
    const bf16* scales;
    int cols, group;
    __device__ __forceinline__ float at(long long row, int col) const {
        const u32 word = words[row * ((cols + 7) / 8) + col / 8];
        const int q = int((word >> (4 * (col % 8))) & 15u) - 8;
        return float(q) * f32(scales[row * ((cols + group - 1) / group) + col / group]);
    }
};

// FP8 e4m3 with one scale for a block of rows x columns. Rows count from the start of the matrix that owns the scales.
struct Fp8Weight {
    const u8* data;
    const float* scales;
    int cols, block_rows, block_cols;
    __device__ __forceinline__ float at(long long row, int col) const {
        __nv_fp8_e4m3 v;
        v.__x = data[row * cols + col];
        return float(v) * scales[(row / block_rows) * ((cols + block_cols - 1) / block_cols) + col / block_cols];
    }
};
