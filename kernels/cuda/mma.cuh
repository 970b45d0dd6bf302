// Weights times a few token rows on the tensor cores, weights as the 16-row operand so that up to 8 tokens cost no more than one.
//
// The contracted index may run in any order as long as both operands agree, so each lane reads 16 consecutive bytes of a weight row and the
// same columns of a token row, and no operand passes through shared memory. Weights are read once, past L1; token rows stay in it.
#pragma once
#include "common.cuh"

constexpr int MMA_WARPS = 8;

__device__ __forceinline__ uint4 stream16(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ uint2 stream8(const void* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
__device__ __forceinline__ uint4 zero16() { return make_uint4(0, 0, 0, 0); }

// c[16, 8] += a[16, 16] b[16, 8]. Lane l: g = l / 4, q = l % 4; c holds rows g (c0, c1) and g + 8 (c2, c3) of columns 2q and 2q + 1.
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Token rows of a lane, one for each 8-token tile; null where there is no token.
template <int NT>
struct Tokens {
    const bf16* row[NT];
    __device__ __forceinline__ uint4 at(int tile, int col) const {
        return row[tile] ? *reinterpret_cast<const uint4*>(row[tile] + col) : zero16();
    }
};

// bf16 rows as checkpoints store them; the row length is a multiple of 8. A step is 32 columns.
struct Bf16Stream {
    static constexpr int STEP = 32, AHEAD = 4;
    struct Raw { uint4 low, high; };
    const bf16 *low, *high;
    int cols;
    __device__ __forceinline__ Raw load(int step) const {
        const int col = step * STEP + threadIdx.x % 4 * 8;
        if (col >= cols) return Raw{zero16(), zero16()};
        return Raw{stream16(low + col), stream16(high + col)};
    }
    template <int NT>
    __device__ __forceinline__ void multiply(const Raw& w, int step, const Tokens<NT>& x, float (&acc)[NT][4]) const {
        const int col = step * STEP + threadIdx.x % 4 * 8;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const uint4 v = col < cols ? x.at(n, col) : zero16();
            mma(acc[n], w.low.x, w.high.x, w.low.y, w.high.y, v.x, v.y);
            mma(acc[n], w.low.z, w.high.z, w.low.w, w.high.w, v.z, v.w);
        }
    }
};

__device__ __forceinline__ u32 pair(__nv_bfloat162 v) { return *reinterpret_cast<u32*>(&v); }
__device__ __forceinline__ __nv_bfloat162 pair(u32 v) { return *reinterpret_cast<__nv_bfloat162*>(&v); }

// Nibbles j and j + 4 of a word as two bf16, less 8: `128 + nibble` is exact in bf16, and so is the difference.
__device__ __forceinline__ u32 int4_pair(u32 word, int j) {
    const u32 biased = ((word >> (4 * j)) & 0x000f000fu) | 0x43004300u;
    return pair(__hsub2(pair(biased), pair(0x43084308u)));
}

// Packed 4-bit weights, tiles of 16 rows by 128 columns (INT4_TILE_BYTES each): a lane's 16 bytes of row g, then of row g + 8, then scales
// [16 rows, 4 groups]. Word i of a lane holds columns 32 i + 8 q .. + 8; the integers enter the product and the scale of a group
// multiplies its sum, in float. A step is a tile.
constexpr int INT4_TILE_BYTES = 1152;
struct Int4Stream {
    static constexpr int STEP = 128, AHEAD = 3;
    struct Raw { uint4 low, high; uint2 low_scale, high_scale; };
    const u8* tile;
    int cols;
    __device__ __forceinline__ Raw load(int step) const {
        const u8* at = tile + (size_t)step * INT4_TILE_BYTES;
        const int lane = threadIdx.x % WARP;
        return Raw{stream16(at + lane * 16), stream16(at + 512 + lane * 16), stream8(at + 1024 + lane / 4 * 8), stream8(at + 1088 + lane / 4 * 8)};
    }
    template <int NT>
    __device__ __forceinline__ void multiply(const Raw& w, int step, const Tokens<NT>& x, float (&acc)[NT][4]) const {
        const u32 low[4] = {w.low.x, w.low.y, w.low.z, w.low.w}, high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
        const u32 low_scales[2] = {w.low_scale.x, w.low_scale.y}, high_scales[2] = {w.high_scale.x, w.high_scale.y};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int col = step * STEP + 32 * i + threadIdx.x % 4 * 8;
            u32 a[4], b[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) { a[j] = int4_pair(low[i], j); b[j] = int4_pair(high[i], j); }
            const float low_scale = __uint_as_float(i % 2 ? low_scales[i / 2] & 0xffff0000u : low_scales[i / 2] << 16);
            const float high_scale = __uint_as_float(i % 2 ? high_scales[i / 2] & 0xffff0000u : high_scales[i / 2] << 16);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 v = col < cols ? x.at(n, col) : zero16();
                float sum[4] = {0.f, 0.f, 0.f, 0.f};
                mma(sum, a[0], b[0], a[1], b[1], v.x, v.y);
                mma(sum, a[2], b[2], a[3], b[3], v.z, v.w);
                acc[n][0] += low_scale * sum[0];
                acc[n][1] += low_scale * sum[1];
                acc[n][2] += high_scale * sum[2];
                acc[n][3] += high_scale * sum[3];
            }
        }
    }
};

// Two e4m3 bytes, in the high halves of a word's 16-bit halves, as bf16: the bits land in bf16's exponent and mantissa, 2^120 too small.
__device__ __forceinline__ u32 fp8_pair(u32 halves) {
    const u32 bits = (halves & 0x80008000u) | ((halves >> 4) & 0x07f007f0u);
    return pair(__hmul2(pair(bits), pair(0x7b807b80u)));
}

// Packed FP8 e4m3, tiles of 16 rows by 64 columns: a lane's 16 bytes of row g, then of row g + 8; in each word the middle bytes are swapped.
// Scales are per block of rows x columns, in float; a step is a tile and lies in one block.
constexpr int FP8_TILE_BYTES = 1024;
struct Fp8Stream {
    static constexpr int STEP = 64, AHEAD = 4;
    struct Raw { uint4 low, high; };
    const u8* tile;
    const float *low_scales, *high_scales;
    int cols, block_cols;
    __device__ __forceinline__ Raw load(int step) const {
        const u8* at = tile + (size_t)step * FP8_TILE_BYTES;
        const int lane = threadIdx.x % WARP;
        return Raw{stream16(at + lane * 16), stream16(at + 512 + lane * 16)};
    }
    template <int NT>
    __device__ __forceinline__ void multiply(const Raw& w, int step, const Tokens<NT>& x, float (&acc)[NT][4]) const {
        const u32 low[4] = {w.low.x, w.low.y, w.low.z, w.low.w}, high[4] = {w.high.x, w.high.y, w.high.z, w.high.w};
        const int block = step * STEP / block_cols;
        const float low_scale = low_scales[block], high_scale = high_scales[block];
        float sum[NT][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int col = step * STEP + threadIdx.x % 4 * 16 + half * 8;
            u32 a[4], b[4];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                a[2 * j] = fp8_pair(low[2 * half + j] << 8);
                a[2 * j + 1] = fp8_pair(low[2 * half + j]);
                b[2 * j] = fp8_pair(high[2 * half + j] << 8);
                b[2 * j + 1] = fp8_pair(high[2 * half + j]);
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 v = col < cols ? x.at(n, col) : zero16();
                mma(sum[n], a[0], b[0], a[1], b[1], v.x, v.y);
                mma(sum[n], a[2], b[2], a[3], b[3], v.z, v.w);
            }
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            acc[n][0] += low_scale * sum[n][0];
            acc[n][1] += low_scale * sum[n][1];
            acc[n][2] += high_scale * sum[n][2];
            acc[n][3] += high_scale * sum[n][3];
        }
    }
};

// Steps first, first + stride, .. below `steps`, with W::AHEAD steps' loads in flight.
template <class W, int NT>
__device__ __forceinline__ void accumulate(const W& w, const Tokens<NT>& x, int first, int stride, int steps, float (&acc)[NT][4]) {
    constexpr int AHEAD = W::AHEAD;
    typename W::Raw ring[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u)
        if (first + u * stride < steps) ring[u] = w.load(first + u * stride);
    for (int s = first; s < steps; s += AHEAD * stride) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int at = s + u * stride;
            if (at >= steps) break;
            const typename W::Raw now = ring[u];
            if (at + AHEAD * stride < steps) ring[u] = w.load(at + AHEAD * stride);
            w.template multiply<NT>(now, at, x, acc);
        }
    }
}

// Adds the sums of the `parts` warps that share a tile, in warp order; the first of them ends up with the total.
template <int NT>
__device__ __forceinline__ void reduce_warps(float (&acc)[NT][4], int part, int parts) {
    if (parts == 1) return;
    __shared__ float4 partial[MMA_WARPS][NT][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int n = 0; n < NT; ++n) partial[warp][n][lane] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    __syncthreads();
    if (part == 0)
        for (int p = 1; p < parts; ++p)
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float4 v = partial[warp + p][n][lane];
                acc[n][0] += v.x, acc[n][1] += v.y, acc[n][2] += v.z, acc[n][3] += v.w;
            }
    __syncthreads();
}
