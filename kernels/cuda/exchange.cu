// Exchanges between ranks: the one-shot all-reduce over peer memory, the same with the norm behind it, rows packed for fixed-capacity buffers of experts and unpacked, and columns
// and sums that NCCL's collectives leave to us. What a captured graph needs lies in device memory: epochs, counts, faults. Every wait has a bound.
#include "norm.cuh"
#include "shape.cuh"

constexpr int MAX_RANKS = 8;

// The first fault of a pass, read by the host at its end: what, in which command, of which rank of the group, how many.
struct Fault {
    u32 what, command, rank, count;
};
constexpr u32 LATE = 1, OVERFLOW = 2;

__device__ __forceinline__ void report(Fault* fault, u32 what, int command, int rank, u32 count) {
    if (atomicCAS(&fault->what, 0u, what) == 0u) fault->command = command, fault->rank = rank, fault->count = count;
}

// A rank's window, which its peers map. `arrived` [blocks][MAX_RANKS] is written by peers; two halves of `capacity` elements follow it, and two
// halves of packets [ranks][elements / 2], which peers write as well.
struct Control {
    u32 epoch, done, stop, unused;
};
struct Peers {
    bf16* staged[MAX_RANKS];
    u32* arrived[MAX_RANKS];
    u64* packets[MAX_RANKS];
};

__device__ __forceinline__ void release_store(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ __forceinline__ u32 acquire_load(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// Every block tells its twin on every rank that it has come to `epoch`, and waits for theirs. A peer that does not come within `bound`
// nanoseconds ends the wait, and so does the host, by a word of its own memory: nothing on the device waits for ever.
__device__ __forceinline__ void meet(const Peers* peers, Control* control, const u32* stop, Fault* fault, int command, int rank, int ranks, u32 epoch, u64 bound) {
    __syncthreads();
    if (threadIdx.x < ranks) {
        const u32 slot = blockIdx.x * MAX_RANKS;
        release_store(peers->arrived[threadIdx.x] + slot + rank, epoch);
        const u32* mine = peers->arrived[rank] + slot + threadIdx.x;
        u64 begin = 0, now;
        for (u32 polls = 0; (int)(acquire_load(mine) - epoch) < 0; ++polls) {
            if (polls % 256 != 255) continue;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
            if (begin == 0) begin = now;
            if (now - begin > bound || acquire_load(&control->stop) || acquire_load(stop)) {
                report(fault, LATE, command, threadIdx.x, 0);
                // The calls behind this one would wait as long, for nothing.
                control->stop = 1;
                break;
            }
        }
    }
    __syncthreads();
}

// out = the sum over ranks, in rank order, in f32, rounded once. Each rank stages its operand in its own window and reads everybody's. The
// halves take turns, so that a rank may be one call ahead: nobody comes to call e + 1 before it has ended call e, and nobody writes a half
// again before everybody has come to the call between. One epoch counts the calls, whatever their grids.
extern "C" __global__ void all_reduce_one_shot(const bf16* in, bf16* out, const Peers* peers, Control* control, const u32* stop, Fault* fault, int command, int rank, int ranks, u64 n,
                                               u64 capacity, u64 bound) {
    take_turn();
    const u32 epoch = *(volatile u32*)&control->epoch + 1;
    const u64 start = (u64)blockIdx.x * blockDim.x + threadIdx.x, step = (u64)gridDim.x * blockDim.x, half = (epoch & 1) * capacity, whole = n % 8 == 0 ? n / 8 : 0;
    bf16* staged = peers->staged[rank] + half;
    for (u64 i = start; i < whole; i += step) reinterpret_cast<uint4*>(staged)[i] = reinterpret_cast<const uint4*>(in)[i];
    for (u64 i = whole * 8 + start; i < n; i += step) staged[i] = in[i];
    meet(peers, control, stop, fault, command, rank, ranks, epoch, bound);
    for (u64 i = start; i < whole; i += step) {
        float sum[8] = {}, v[MAX_RANKS][8];
#pragma unroll
        for (int r = 0; r < MAX_RANKS; ++r)
            if (r < ranks) load8(peers->staged[r] + half + i * 8, v[r]);
#pragma unroll
        for (int r = 0; r < MAX_RANKS; ++r)
            if (r < ranks)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[j] += v[r][j];
        store8(out + i * 8, sum);
    }
    for (u64 i = whole * 8 + start; i < n; i += step) {
        float sum = 0.f;
        for (int r = 0; r < ranks; ++r) sum += f32(peers->staged[r][half + i]);
        out[i] = to_bf16(sum);
    }
    __syncthreads();
    // Every block has read the epoch before it is counted here, so the last one may move it on.
    if (threadIdx.x == 0 && atomicAdd(&control->done, 1u) == gridDim.x - 1) control->done = 0, control->epoch = epoch;
}

// Eight bf16 in four packets: four bytes of data and the epoch in one store of eight bytes, so that whoever sees the epoch has the data. That saves
// the fence before a flag and the trip back to fetch what it announces.
__device__ __forceinline__ void send_packets(u64* to, uint4 data, u32 epoch) {
    const u64 mark = (u64)epoch << 32;
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(mark | data.x), "l"(mark | data.y) : "memory");
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to + 2), "l"(mark | data.z), "l"(mark | data.w) : "memory");
}
// Whether all four packets are of this epoch, and their data.
__device__ __forceinline__ bool take_packets(const u64* from, u32 epoch, uint4& data) {
    u64 a, b, c, d;
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
    asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(c), "=l"(d) : "l"(from + 2) : "memory");
    data = make_uint4((u32)a, (u32)b, (u32)c, (u32)d);
    return (u32)(a >> 32) == epoch && (u32)(b >> 32) == epoch && (u32)(c >> 32) == epoch && (u32)(d >> 32) == epoch;
}

// Ranks whose packets are asked for together.
constexpr int TOGETHER = 4;

// Packets of the ranks from `first` on, this rank's own data among them. Gives up as `meet` does.
__device__ __forceinline__ void receive(uint4 (&data)[TOGETHER], const uint4& own, const u64* packets, u64 stride, int first, Control* control, const u32* stop, Fault* fault,
                                        int command, int rank, int ranks, u32 epoch, u64 bound) {
    u64 begin = 0, now;
    for (u32 polls = 0;; ++polls) {
        int missing = -1;
#pragma unroll
        for (int k = 0; k < TOGETHER; ++k)
            if (first + k < ranks && first + k != rank && !take_packets(packets + (first + k) * stride, epoch, data[k])) missing = first + k;
        if (missing < 0) break;
        if (polls % 256 != 255) continue;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (begin == 0) begin = now;
        if (now - begin > bound || acquire_load(&control->stop) || acquire_load(stop)) {
            report(fault, LATE, command, missing, 0);
            control->stop = 1;
            break;
        }
    }
#pragma unroll
    for (int k = 0; k < TOGETHER; ++k)
        if (first + k == rank) data[k] = own;
}

__device__ __forceinline__ void add_to(float (&sum)[8], uint4 data) {
    float v[8];
    unpack8(data, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += v[j];
}

// The sum over the `PARTS` blocks of a cluster, in the order in which one block of all their threads adds (`block_sum`).
template <int PARTS> __device__ __forceinline__ float row_sum(float v) {
    if (PARTS == 1) return block_sum(v);
    __shared__ float partial[WARP];
    v = warp_sum(v);
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    if (lane == 0) partial[threadIdx.x / WARP] = v;
    cluster_barrier();
    float other = 0.f;
    if (lane < PARTS * warps) {
        u32 remote;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"((u32)__cvta_generic_to_shared(partial + lane % warps)), "r"(lane / warps));
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(other) : "r"(remote));
    }
    return warp_sum(other);
}

// sum = the sum over ranks as above, rounded, plus the residual; y = rmsnorm(sum) * w: what all_reduce_one_shot and add_rms_norm compute, bit for
// bit: a thread holds the eight elements that it holds there, and warps are added in the same order. Every rank sends its row to all others as packets. The
// halves take turns and the epoch counts as above: nobody sends in call e + 2 before it has had everybody's packets of e + 1, which its peers send after
// call e. `capacity` are elements of one rank's packets in a half. Rows of at most 8 elements a thread.
template <int PARTS>
__device__ __forceinline__ void sum_and_norm(const bf16* in, const bf16* residual, const bf16* weight, bf16* y, bf16* sum, const Peers* peers, Control* control,
                                             const u32* stop, Fault* fault, int command, int rank, int ranks, int n, float eps, u64 capacity, u64 bound) {
    const int i = (blockIdx.x % PARTS * blockDim.x + threadIdx.x) * 8;
    const bool mine = i < n;
    float w[8], total[8] = {}, square = 0.f;
    admit_next();
    if (mine) load8(weight + i, w);
    await_previous();
    const u32 epoch = *(volatile u32*)&control->epoch + 1;
    const u64 at = (u64)(blockIdx.x / PARTS) * n + i, stride = capacity / 2, half = (epoch & 1) * ranks * stride;
    if (mine) {
        const uint4 own = *reinterpret_cast<const uint4*>(in + at), before = *reinterpret_cast<const uint4*>(residual + at);
        for (int r = 1; r < ranks; ++r) {
            const int peer = rank + r < ranks ? rank + r : rank + r - ranks;
            send_packets(peers->packets[peer] + half + rank * stride + at / 2, own, epoch);
        }
        const u64* packets = peers->packets[rank] + half + at / 2;
        for (int first = 0; first < ranks; first += TOGETHER) {
            uint4 data[TOGETHER];
            receive(data, own, packets, stride, first, control, stop, fault, command, rank, ranks, epoch, bound);
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k)
                if (first + k < ranks) add_to(total, data[k]);
        }
        float b[8];
        unpack8(before, b);
#pragma unroll
        for (int j = 0; j < 8; ++j) total[j] = f32(to_bf16(total[j]));
        square = add8(total, b, sum + at);
    }
    const float scale = rsqrtf(row_sum<PARTS>(square) / n + eps);
    if (mine) store_normed(y + at, total, w, scale);
    // Nobody's shared memory goes while others read it.
    if (PARTS > 1) cluster_barrier();
    // Every block has read the epoch before it is counted here, so the last one may move it on.
    if (threadIdx.x == 0 && atomicAdd(&control->done, 1u) == gridDim.x - 1) control->done = 0, control->epoch = epoch;
}

// A row of 7168 sent and received by one multiprocessor takes 3 us longer than one of 2048, so four share a wide row.
#define SUM_AND_NORM(name, parts, attributes)                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(256, 1) attributes name(const bf16* in, const bf16* residual, const bf16* weight, bf16* y, bf16* sum, const Peers* peers,  \
                                                                      Control* control, const u32* stop, Fault* fault, int command, int rank, int ranks, int n,       \
                                                                      float eps, u64 capacity, u64 bound) {                                                          \
        sum_and_norm<parts>(in, residual, weight, y, sum, peers, control, stop, fault, command, rank, ranks, n, eps, capacity, bound);                                \
    }
SUM_AND_NORM(all_reduce_add_rms_norm, 1, )
SUM_AND_NORM(all_reduce_add_rms_norm_wide, 4, __cluster_dims__(4, 1, 1))

// Which rows go to which rank. Block `d` lists the rows, ascending, that chose an expert of rank `d`: `rows` [ranks][capacity], -1 behind them;
// and for every row its slot there, `slots` [ranks][T], -1 where it does not go. Experts `bounds[d] .. bounds[d + 1]` are rank d's.
extern "C" __global__ void dispatch_lists(const int* ids, const int* bounds, int* rows, int* slots, Fault* fault, int command, int tokens, int topk, int capacity) {
    take_turn();
    __shared__ int sums[WARP];
    const int d = blockIdx.x, low = bounds[d], high = bounds[d + 1], lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int count = 0;
    for (int base = 0; base < tokens; base += blockDim.x) {
        const int row = base + threadIdx.x;
        bool goes = false;
        if (row < tokens)
            for (int j = 0; j < topk; ++j) { const int id = ids[(size_t)row * topk + j]; goes |= id >= low && id < high; }
        const u32 votes = __ballot_sync(FULL, goes);
        if (lane == 0) sums[warp] = __popc(votes);
        __syncthreads();
        int before = __popc(votes & ((1u << lane) - 1)), all = 0;
        for (int w = 0; w < blockDim.x / WARP; ++w) { before += w < warp ? sums[w] : 0; all += sums[w]; }
        const int slot = count + before;
        if (row < tokens) slots[(size_t)d * tokens + row] = goes && slot < capacity ? slot : -1;
        if (goes && slot < capacity) rows[d * capacity + slot] = row;
        count += all;
        __syncthreads();
    }
    for (int i = min(count, capacity) + threadIdx.x; i < capacity; i += blockDim.x) rows[d * capacity + i] = -1;
    if (threadIdx.x == 0 && count > capacity) report(fault, OVERFLOW, command, d, count);
}

// A record carries a row: its number, its ids, its weights, then at a multiple of 16 bytes its values. Slots without a row carry the number -1.
__device__ __forceinline__ size_t values_at(int topk) { return (4 + 8 * (size_t)topk + 15) / 16 * 16; }
__device__ __forceinline__ size_t record_bytes(int topk, int hidden) { return (values_at(topk) + 2 * (size_t)hidden + 15) / 16 * 16; }

// Bytes as 16-byte pieces where both ends allow it; rows are bf16, so two at a time else.
__device__ __forceinline__ void copy_row(bf16* to, const bf16* from, int n) {
    if (n % 8 == 0)
        for (int i = threadIdx.x; i < n / 8; i += blockDim.x) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    else
        for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = from[i];
}

// Grid: (capacity, ranks).
extern "C" __global__ void dispatch_pack(const bf16* x, const int* ids, const float* weights, const int* rows, u8* records, int topk, int hidden, int capacity) {
    take_turn();
    const int at = blockIdx.y * capacity + blockIdx.x, row = rows[at];
    u8* record = records + at * record_bytes(topk, hidden);
    if (threadIdx.x == 0) *(int*)record = row;
    if (row < 0) return;
    for (int j = threadIdx.x; j < topk; j += blockDim.x) {
        ((int*)record)[1 + j] = ids[(size_t)row * topk + j];
        ((float*)record)[1 + topk + j] = weights[(size_t)row * topk + j];
    }
    copy_row((bf16*)(record + values_at(topk)), x + (size_t)row * hidden, hidden);
}

// Received records to the rows that experts read: row `r` of source `s` at `s * slots + r`, all other rows without experts. `rows` as sent, by
// source. Grid: (capacity, ranks); the results were filled with -1 (ids) before.
extern "C" __global__ void dispatch_unpack(const u8* records, bf16* x, int* ids, float* weights, int* rows, int topk, int hidden, int capacity, int slots) {
    take_turn();
    const int at = blockIdx.y * capacity + blockIdx.x;
    const u8* record = records + at * record_bytes(topk, hidden);
    const int row = *(const int*)record;
    if (threadIdx.x == 0) rows[at] = row;
    if (row < 0) return;
    const size_t to = (size_t)blockIdx.y * slots + row;
    for (int j = threadIdx.x; j < topk; j += blockDim.x) {
        ids[to * topk + j] = ((const int*)record)[1 + j];
        weights[to * topk + j] = ((const float*)record)[1 + topk + j];
    }
    copy_row(x + to * hidden, (const bf16*)(record + values_at(topk)), hidden);
}

// Results of received rows, in the slots in which the rows came; every rank's begin `stride` elements after the last one's. Grid: (capacity, ranks).
extern "C" __global__ void combine_pack(const bf16* y, const int* rows, bf16* packed, int hidden, int capacity, int slots, u64 stride) {
    take_turn();
    const int row = rows[blockIdx.y * capacity + blockIdx.x];
    if (row >= 0) copy_row(packed + blockIdx.y * stride + (size_t)blockIdx.x * hidden, y + ((size_t)blockIdx.y * slots + row) * hidden, hidden);
}

// out[t] = the sum, in rank order, of what came back for row t, in f32, rounded once. Grid: (T).
extern "C" __global__ void combine_sum(const bf16* packed, const int* slots, bf16* out, int ranks, int hidden, u64 stride) {
    take_turn();
    const int t = blockIdx.x, tokens = gridDim.x;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = 0.f;
        for (int d = 0; d < ranks; ++d) {
            const int slot = slots[(size_t)d * tokens + t];
            if (slot >= 0) sum += f32(packed[d * stride + (size_t)slot * hidden + i]);
        }
        out[(size_t)t * hidden + i] = to_bf16(sum);
    }
}

// Columns from..from + width of every row of `in` go to columns to.. of `out`. Grid: (rows, parts of the width): a row of logits alone is long.
extern "C" __global__ void copy_columns(const bf16* in, bf16* out, int in_width, int out_width, int from, int to, int width) {
    take_turn();
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x) out[(size_t)blockIdx.x * out_width + to + i] = in[(size_t)blockIdx.x * in_width + from + i];
}

// Sums that were added in f32, rounded once.
extern "C" __global__ void round_f32_bf16(const float* in, bf16* out, u64 n) {
    take_turn();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) out[i] = to_bf16(in[i]);
}
