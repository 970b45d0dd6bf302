// Patterns written to and read from memory, one's own or a peer's. Every value depends on its place and on a seed in device memory, so
// that stale data, swapped data and data of an earlier replay are all wrong.
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 mixed(u64 i, u32 seed) {
    u32 x = (u32)i * 2654435761u ^ seed * 2246822519u;
    x ^= x >> 15;
    return x * 3266489917u ^ (u32)(i >> 32);
}

extern "C" __global__ void check_fill(u32* to, u64 n, const u32* seed) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) to[i] = mixed(i, *seed);
}

extern "C" __global__ void check_compare(const u32* from, u64 n, const u32* seed, u32* wrong) {
    u32 found = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) found += from[i] != mixed(i, *seed);
    if (found) atomicAdd(wrong, found);
}

extern "C" __global__ void check_move(const uint4* from, uint4* to, u64 n) {
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) to[i] = from[i];
}

extern "C" __global__ void check_next(u32* seed) { *seed += 1; }

extern "C" __global__ void check_nothing() {}

// Two GPUs tell each other numbers by turns. A peer that does not answer within `bound` polls sets `error` instead of hanging the device.
extern "C" __global__ void check_ping(u32* mine, u32* theirs, u32 start, u32 first, u32 rounds, u32 bound, u32* error) {
    for (u32 r = 1; r <= rounds; ++r) {
        if (first) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(start + r) : "memory");
        u32 polls = 0, seen;
        do {
            asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(mine) : "memory");
            if (++polls > bound) { *error = r; return; }
        } while ((int)(seen - (start + r)) < 0);
        if (!first) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(theirs), "r"(start + r) : "memory");
    }
}
