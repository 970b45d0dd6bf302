// Dense projections of many token rows: tiles of 64 outputs by 64 tokens, both operands staged in shared memory. y[T, N] = x[T, K] w[N, K]^T (+ bias).
#include "shape.cuh"

constexpr int TILE = 64, STAGES = 3, THREADS = 128, STAGE = TILE * TILE;

__device__ __forceinline__ u32 address_of(const bf16* p) { return (u32)__cvta_generic_to_shared(p); }
// Rows of 64 elements, eight pieces of 16 bytes; the piece is moved by the row so that eight rows of a column of pieces lie in eight banks.
__device__ __forceinline__ int swizzled(int row, int piece) { return row * TILE + (piece ^ (row & 7)) * 8; }
__device__ __forceinline__ void copy16(bf16* to, const bf16* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&m)[4], const bf16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address_of(p)));
}
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A thread copies piece `tid % 8` of rows tid / 8 + 16 j of both tiles; its pointers stay the same from step to step.
struct Copier {
    const bf16 *weights[4], *tokens[4];
    bool weight_there[4], token_there[4];
    __device__ __forceinline__ void issue(bf16* stage, int step, int k) const {
        const int col = step * TILE + threadIdx.x % 8 * 8;
        const bool inside = col < k;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int at = swizzled(threadIdx.x / 8 + 16 * j, threadIdx.x % 8);
            copy16(stage + at, weights[j] + (inside ? col : 0), inside && weight_there[j]);
            copy16(stage + STAGE + at, tokens[j] + (inside ? col : 0), inside && token_there[j]);
        }
    }
};

// The four warps take quarters: 32 outputs by 32 tokens. CLUSTER blocks split K. Grid: (CLUSTER * ceil(N / 64), ceil(T / 64), batch).
template <int CLUSTER>
__device__ __forceinline__ void project_tile(const bf16* x, const bf16* w, const bf16* bias, void* y, const Shape& s) {
    extern __shared__ __align__(128) bf16 stages[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, batch = blockIdx.z;
    const int out = blockIdx.x / CLUSTER * TILE, row = blockIdx.y * TILE, split = CLUSTER == 1 ? 0 : cluster_rank();
    Copier copier;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int r = threadIdx.x / 8 + 16 * j;
        copier.weight_there[j] = out + r < s.n;
        copier.token_there[j] = row + r < s.rows;
        copier.weights[j] = w + batch * s.w_batch + (size_t)min(out + r, s.n - 1) * s.k;
        copier.tokens[j] = x + (size_t)batch * s.x_batch + token_row(s, min(row + r, s.rows - 1)) * s.x_stride;
    }
    const int steps = (s.k + TILE - 1) / TILE, share = (steps + CLUSTER - 1) / CLUSTER;
    const int first = split * share, last = min(steps, first + share);
#pragma unroll
    for (int u = 0; u < STAGES - 1; ++u) {
        if (first + u < last) copier.issue(stages + u * 2 * STAGE, first + u, s.k);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float acc[8][4] = {};
    const int low = warp / 2 * 32, left = warp % 2 * 32;
    for (int step = first; step < last; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const int ahead = step + STAGES - 1;
        if (ahead < last) copier.issue(stages + (ahead - first) % STAGES * 2 * STAGE, ahead, s.k);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const bf16 *weights = stages + (step - first) % STAGES * 2 * STAGE, *tokens = weights + STAGE;
#pragma unroll
        for (int k = 0; k < TILE / 16; ++k) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                load_matrices(a[i], weights + swizzled(low + 16 * i + lane % 16, 2 * k + lane / 16));
                load_matrices(b[i], tokens + swizzled(left + 16 * i + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    mma(acc[4 * i + 2 * j], a[i], b[j][0], b[j][1]);
                    mma(acc[4 * i + 2 * j + 1], a[i], b[j][2], b[j][3]);
                }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    reduce_cluster<8, CLUSTER>(reinterpret_cast<float4*>(stages), acc);
    if (split != 0) return;
#pragma unroll
    for (int t = 0; t < 8; ++t)
#pragma unroll
        for (int c = 0; c < 4; ++c)
            store_result(y, bias, s, batch, row + left + t % 4 * 8 + lane % 4 * 2 + c % 2, out + low + t / 4 * 16 + lane / 4 + c / 2 * 8, acc[t][c]);
}

extern "C" __global__ void __launch_bounds__(THREADS) linear_tile_bf16(const bf16* x, const bf16* w, const bf16* bias, void* y, SHAPE_PARAMS) {
    take_turn();
    project_tile<1>(x, w, bias, y, SHAPE);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(THREADS) linear_tile_bf16_split(const bf16* x, const bf16* w, const bf16* bias, void* y, SHAPE_PARAMS) {
    take_turn();
    project_tile<4>(x, w, bias, y, SHAPE);
}
