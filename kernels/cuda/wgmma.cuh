// Hopper's warpgroup products: four warps multiply operands in shared memory into sums in registers. Compiled for sm_90a only; other
// architectures never instantiate what is here.
#pragma once
#include "common.cuh"

constexpr int GROUP = 128;
// A row of an operand's block of 64 columns. Its eight pieces of 16 bytes are exchanged by the row's number, as wgmma expects it.
constexpr int ROW_BYTES = 128;

// Where piece `piece` of row `row` of a block lies.
__device__ __forceinline__ int swizzled(int row, int piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }
__device__ __forceinline__ void copy16(u32 to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// An operand in shared memory: blocks of 64 columns, `leading` bytes apart where columns are not contracted. Eight rows are 1024 bytes apart; a
// block starts at a multiple of that. PTX ISA 9.0, matrix descriptor.
__device__ __forceinline__ u64 operand(u32 address, int leading) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(ROW_BYTES * 8 >> 4) << 32 | 1ull << 62;
}
// `operand` so many bytes further.
__device__ __forceinline__ u64 further(u64 operand, int bytes) { return operand + (bytes >> 4); }

// What ordinary stores and copies wrote is seen by the products that follow.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// The compiler does not know that sums change until a product has been waited for.
template <int N>
__device__ __forceinline__ void hold(float (&c)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
template <int N>
__device__ __forceinline__ void products_begin(float (&c)[N]) {
    hold(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void products_end(float (&c)[N]) {
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(c);
}

#define SUMS4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SUMS16(i) SUMS4(i), SUMS4(i + 4), SUMS4(i + 8), SUMS4(i + 12)
#define SUMS32(i) SUMS16(i), SUMS16(i + 16)
#define SUMS64(i) SUMS32(i), SUMS32(i + 32)
#define SUMS128(i) SUMS64(i), SUMS64(i + 64)

// c[64, 32] (+)= a[64, 16] b[16, 32]; a thread holds 16 sums.
template <int ADD>
__device__ __forceinline__ void product_32(float (&c)[16], u64 a, u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, %16, %17, p, 1, 1, 0, 0;\n\t}"
                 : SUMS16(0)
                 : "l"(a), "l"(b), "n"(ADD));
}

// c[64, 64] (+)= a[64, 16] b[16, 64]; a thread holds 32 sums. TURNED: the rows of `a` are contiguous, not its columns.
template <int ADD, int TURNED>
__device__ __forceinline__ void product_64(float (&c)[32], u64 a, u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, %32, %33, p, 1, 1, %35, 0;\n\t}"
                 : SUMS32(0)
                 : "l"(a), "l"(b), "n"(ADD), "n"(TURNED));
}

// c[64, 256] (+)= a[64, 16] b[16, 256]; a thread holds 128 sums. The columns of `b` are contiguous, not its rows.
template <int ADD>
__device__ __forceinline__ void product_256(float (&c)[128], u64 a, u64 b) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %130, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, %128, %129, p, 1, 1, 0, 1;\n\t}"
                 : SUMS128(0)
                 : "l"(a), "l"(b), "n"(ADD));
}
#undef SUMS4
#undef SUMS16
#undef SUMS32
#undef SUMS64
#undef SUMS128
