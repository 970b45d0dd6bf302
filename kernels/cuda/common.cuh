// What every kernel shares. Compiled by NVRTC: device code only, no host headers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp8.h>

typedef __nv_bfloat16 bf16;
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int WARP = 32;
constexpr u32 FULL = 0xffffffffu;
#define INF __int_as_float(0x7f800000)

// Programmatic dependent launch: the next kernel of the stream may take its place once every block of this one has begun, and a kernel touches
// what others write, or writes anything, only after the kernels before it have ended. Every kernel begins with `take_turn`, or with these two and
// reads of weights between them.
__device__ __forceinline__ void admit_next() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void take_turn() {
    admit_next();
    await_previous();
}

// Where the next kernel reads what the ones before this one wrote ahead of its own turn: it is admitted once that stands.
__device__ __forceinline__ void take_turn_first() {
    await_previous();
    admit_next();
}

// An address of shared memory, as instructions take it.
__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ float f32(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float f32(float x) { return x; }
__device__ __forceinline__ bf16 to_bf16(float x) { return __float2bfloat16_rn(x); }
__device__ __forceinline__ void store(bf16* p, float x) { *p = to_bf16(x); }
__device__ __forceinline__ void store(float* p, float x) { *p = x; }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(FULL, v, offset);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(FULL, v, offset));
    return v;
}

// The greatest value of a warp and its index, the lowest among equals; every lane gets it.
__device__ __forceinline__ void greatest(float& value, int& index) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const float v = __shfl_xor_sync(FULL, value, offset);
        const int i = __shfl_xor_sync(FULL, index, offset);
        if (v > value || (v == value && i < index)) { value = v; index = i; }
    }
}

// Sum over a block of whole warps; every thread gets the result. The order of additions depends on the block size alone.
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float partial[WARP];
    v = warp_sum(v);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    const float total = warp_sum(lane < warps ? partial[lane] : 0.f);
    __syncthreads();
    return total;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + __expf(-x)); }

// A sequence's rows of a step: `rows` token rows from `row_start`, `past` cache rows before them, its cache from `cache_start`.
struct SequenceRows {
    int row_start, rows, past, cache_start;
};

// The sequence of a token row. In decode every sequence has one row, so its number is tried first; else a scan, since sequences are few and
// sorted, and a table would have to be sent by the host.
__device__ __forceinline__ int sequence_of(const SequenceRows* sequences, int count, int row) {
    if (row < count && sequences[row].row_start == row && sequences[row].rows > 0) return row;
    int s = 0;
    while (s + 1 < count && row >= sequences[s + 1].row_start) ++s;
    return s;
}

// Eight consecutive bf16, 16-byte aligned.
__device__ __forceinline__ void unpack8(const uint4& raw, float (&v)[8]) {
    const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) { v[2 * i] = __uint_as_float(words[i] << 16); v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u); }
}
__device__ __forceinline__ void load8(const bf16* p, float (&v)[8]) { unpack8(*reinterpret_cast<const uint4*>(p), v); }
__device__ __forceinline__ void store8(bf16* p, const float (&v)[8]) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 both = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        words[i] = *reinterpret_cast<const u32*>(&both);
    }
    *reinterpret_cast<uint4*>(p) = make_uint4(words[0], words[1], words[2], words[3]);
}
