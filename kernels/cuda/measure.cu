// For measurements: what holds a stream back until the host is ahead, and what stands in for a collective whose other ranks are not there.
#include "common.cuh"

__device__ __forceinline__ u64 nanoseconds() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ void spin(u64 start, u64 ns) {
    while (nanoseconds() - start < ns) {}
}

// Occupies its stream for `ns`.
extern "C" __global__ void hold(u64 ns) {
    take_turn();
    spin(nanoseconds(), ns);
}

// Copies `bytes`, an even number, and ends no earlier than `ns` after it began: the rank's own part of a collective and its stated time.
extern "C" __global__ void stand_in(const u8* from, u8* to, u64 bytes, u64 ns) {
    take_turn();
    const u64 start = nanoseconds(), at = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    if ((((u64)from | (u64)to | bytes) & 15) == 0) {
        for (u64 i = at; i < bytes / 16; i += step) ((uint4*)to)[i] = ((const uint4*)from)[i];
    } else {
        for (u64 i = at; i < bytes / 2; i += step) ((unsigned short*)to)[i] = ((const unsigned short*)from)[i];
    }
    spin(start, ns);
}

// Reads `count` times 16 bytes, so that nothing else stays in the cache; what is read is written only if it is never so.
extern "C" __global__ void read_through(uint4* from, u64 count) {
    take_turn();
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x;
    u32 seen = 0;
#pragma unroll 8
    for (u64 i = at; i < count; i += step) {
        const uint4 v = from[i];
        seen |= v.x | v.y | v.z | v.w;
    }
    if (seen != 0) from[at] = make_uint4(0, 0, 0, 0);
}
