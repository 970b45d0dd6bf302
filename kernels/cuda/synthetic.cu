// Made-up weights, generated where they are used: the words of ChaCha8 streams, as the host's generator draws them, so that values agree bit for bit.
#include "common.cuh"

// How a word becomes a value; the same numbers as the host passes them.
enum Grid { UNIFORM = 0, FP8 = 1, INT4 = 2, FP4 = 3 };
// Where values go: rows of bf16 or float, or tiles (see mma.cuh).
enum Form { ROWS_BF16 = 0, ROWS_F32 = 1, TILES_INT4 = 2, TILES_FP8 = 3 };

struct Key {
    u32 words[8];
};

__device__ __forceinline__ u32 rotate(u32 x, int n) { return __funnelshift_l(x, x, n); }
__device__ __forceinline__ void quarter(u32& a, u32& b, u32& c, u32& d) {
    a += b, d = rotate(d ^ a, 16), c += d, b = rotate(b ^ c, 12);
    a += b, d = rotate(d ^ a, 8), c += d, b = rotate(b ^ c, 7);
}

// Block `counter` of a stream: 16 words (RFC 8439's round function, 8 rounds, 64-bit counter and stream number).
__device__ __forceinline__ void chacha8(const u32* key, u64 stream, u64 counter, u32 (&out)[16]) {
    const u32 start[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, key[0], key[1], key[2], key[3], key[4], key[5], key[6], key[7],
                           (u32)counter, (u32)(counter >> 32), (u32)stream, (u32)(stream >> 32)};
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] = start[i];
#pragma unroll
    for (int round = 0; round < 4; ++round) {
        quarter(out[0], out[4], out[8], out[12]);
        quarter(out[1], out[5], out[9], out[13]);
        quarter(out[2], out[6], out[10], out[14]);
        quarter(out[3], out[7], out[11], out[15]);
        quarter(out[0], out[5], out[10], out[15]);
        quarter(out[1], out[6], out[11], out[12]);
        quarter(out[2], out[7], out[8], out[13]);
        quarter(out[3], out[4], out[9], out[14]);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) out[i] += start[i];
}

// Uniform in [-1, 1) from the 24 high bits. Products and sums are rounded one by one, as the host does it.
__device__ __forceinline__ float unit(u32 word) { return __fadd_rn(__fmul_rn((float)(word >> 8), 1.f / (1 << 23)), -1.f); }

__device__ __forceinline__ u8 e4m3_code(u32 word) { return __nv_fp8_e4m3(__fmul_rn(unit(word), 448.f)).__x; }
__device__ __forceinline__ int int4_code(u32 word) { return (int)(((u64)word * 15) >> 32) - 7; }

__device__ __forceinline__ float value_of(u32 word, int grid, float mean, float scale) {
    switch (grid) {
        case UNIFORM: return f32(to_bf16(__fadd_rn(mean, __fmul_rn(scale, unit(word)))));
        case FP8: {
            __nv_fp8_e4m3 v;
            v.__x = e4m3_code(word);
            return __fmul_rn(float(v), scale);
        }
        case INT4: return __fmul_rn((float)int4_code(word), scale);
        default: {
            const int code = word >> 29;
            const float magnitude = code < 4 ? 0.5f * code : code < 6 ? code - 2.f : code == 6 ? 4.f : 6.f;
            return __fmul_rn(word >> 28 & 1 ? -magnitude : magnitude, scale);
        }
    }
}

// Where element (row, col) of a local matrix lies in tiles of 16 rows; `fused`: 8 rows of gate and 8 of up. `k` columns a tile.
__device__ __forceinline__ void tile_place(int row, int rows, int fused, int* tile, int* tile_row) {
    if (!fused) { *tile = row / 16, *tile_row = row % 16; return; }
    const int half = rows / 2, up = row >= half, r = up ? row - half : row;
    *tile = r / 8, *tile_row = r % 8 + 8 * up;
}

// Eight columns a thread. Local rows come in `row_runs` runs [first local, first global], columns in `col_runs` likewise; runs start at multiples of 8
// columns. Grid: any. `matrix` is one expert's: its stream number and its place in the result.
extern "C" __global__ void synthesize(const u32* key, u64 stream, u8* out, int rows, int cols, u64 whole_cols, const int* row_runs, int row_run_count, const int* col_runs,
                                      int col_run_count, int form, int grid, float mean, float scale, int fused) {
    take_turn();
    const int groups = (cols + 7) / 8;
    const u64 total = (u64)rows * groups;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        const int row = i / groups, col = i % groups * 8;
        int r = 0, c = 0;
        while (r + 1 < row_run_count && row >= row_runs[2 * (r + 1)]) ++r;
        while (c + 1 < col_run_count && col >= col_runs[2 * (c + 1)]) ++c;
        const u64 global_row = (u64)row_runs[2 * r + 1] + row - row_runs[2 * r], global_col = (u64)col_runs[2 * c + 1] + col - col_runs[2 * c];
        const u64 word = global_row * whole_cols + global_col;
        const int skip = word % 16;
        u32 words[8] = {};
        // The eight words lie in one block or in two.
#pragma unroll 1
        for (int b = 0; b < (skip > 8 ? 2 : 1); ++b) {
            u32 block[16];
            chacha8(key, stream, word / 16 + b, block);
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int k = 0; k < 16; ++k)
                    if (skip + j == 16 * b + k) words[j] = block[k];
        }
        const int held = min(8, cols - col);
        if (form == ROWS_BF16 || form == ROWS_F32) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float v = value_of(words[j], grid, mean, scale);
                if (j >= held) continue;
                if (form == ROWS_BF16) ((bf16*)out)[(u64)row * cols + col + j] = to_bf16(v);
                else ((float*)out)[(u64)row * cols + col + j] = v;
            }
            continue;
        }
        int tile, tile_row;
        tile_place(row, rows, fused, &tile, &tile_row);
        if (form == TILES_INT4) {
            u8* at = out + ((u64)tile * ((cols + 127) / 128) + col / 128) * 1152;
            const int group = col % 128 / 32, q = col % 32 / 8;
            u32 packed = 0;
#pragma unroll
            for (int j = 0; j < 8; ++j) packed |= (u32)((j < held ? int4_code(words[j]) : 0) + 8) << (4 * (j / 2 + j % 2 * 4));
            ((u32*)at)[tile_row / 8 * 128 + (tile_row % 8 * 4 + q) * 4 + group] = packed;
            if (q == 0) ((bf16*)(at + 1024))[tile_row * 4 + group] = to_bf16(scale);
        } else {
            u8* at = out + ((u64)tile * ((cols + 63) / 64) + col / 64) * 1024 + tile_row / 8 * 512 + (tile_row % 8 * 4 + col % 64 / 16) * 16 + col % 16;
#pragma unroll
            for (int j = 0; j < 8; ++j) at[j / 4 * 4 + (j % 4 == 1 ? 2 : j % 4 == 2 ? 1 : j % 4)] = j < held ? e4m3_code(words[j]) : 0;
        }
    }
}

// `n` floats: the scales of packed FP8.
extern "C" __global__ void fill_f32(float* out, float value, u64 n) {
    take_turn();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) out[i] = value;
}
