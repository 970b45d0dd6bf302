// Router choice, the whole router in one kernel, and the lists of rows of each expert.
#include "mma.cuh"
#include "shape.cuh"

enum Scoring { SIGMOID = 0, SOFTMAX = 1, SOFTMAX_TOPK = 2 };

// The weights of the chosen, normalized where the rule says so; `mine` is lane k's.
__device__ __forceinline__ void write_weights(float mine, int topk, int scoring, int normalize, float normalize_eps, float scale, float* weights) {
    if (scoring == SOFTMAX_TOPK) {
        const float top = __shfl_sync(FULL, mine, 0);
        mine = __expf(mine - top);
    }
    const int lane = threadIdx.x % WARP;
    // In order, so that the sum does not depend on how the warp is arranged.
    float sum = 0.f;
    for (int k = 0; k < topk; ++k) sum += __shfl_sync(FULL, mine, k);
    const float divisor = (normalize || scoring == SOFTMAX_TOPK) ? sum + normalize_eps : 1.f;
    if (lane < topk) weights[lane] = mine / divisor * scale;
}

// Experts that a lane can hold in registers.
constexpr int HELD = 16;

// Up to 32 * HELD experts, each lane holding every 32nd; topk at most 32.
__device__ __forceinline__ void choose_held(const float* scores, const float* biased, int experts, int topk, int scoring, int normalize, float normalize_eps,
                                            float scale, int* ids, float* weights) {
    const int lane = threadIdx.x % WARP;
    float held[HELD];
#pragma unroll
    for (int j = 0; j < HELD; ++j) {
        // NaN goes last, with what is left out.
        const float b = lane + j * WARP < experts ? biased[lane + j * WARP] : -INF;
        held[j] = b == b ? b : -INF;
    }
    u32 taken = 0;
    float mine = 0.f;
    for (int k = 0; k < topk; ++k) {
        float value = -INF;
        int index = 0x7fffffff;
#pragma unroll
        for (int j = 0; j < HELD; ++j)
            if (!(taken >> j & 1) && lane + j * WARP < experts && (held[j] > value || index == 0x7fffffff)) { value = held[j]; index = lane + j * WARP; }
        greatest(value, index);
        if (index % WARP == lane) taken |= 1u << (index / WARP);
        if (lane == k) { mine = scores[index]; ids[k] = index; }
    }
    write_weights(mine, topk, scoring, normalize, normalize_eps, scale, weights);
}

// Any number of experts, through shared memory.
__device__ __forceinline__ void choose(const float* scores, float* biased, int experts, int topk, int scoring, int normalize, float normalize_eps, float scale,
                                       int* ids, float* weights) {
    const int lane = threadIdx.x % WARP;
    float mine = 0.f;
    for (int k = 0; k < topk; ++k) {
        float value = -INF;
        int index = 0x7fffffff;
        for (int e = lane; e < experts; e += WARP)
            if (biased[e] > value || (biased[e] == value && e < index)) { value = biased[e]; index = e; }
        greatest(value, index);
        index = min(index, experts - 1);
        if (lane == k) { mine = scores[index]; ids[k] = index; }
        __syncwarp();
        if (lane == 0) biased[index] = -INF;
        __syncwarp();
    }
    write_weights(mine, topk, scoring, normalize, normalize_eps, scale, weights);
}

// A float's order as unsigned numbers have it; NaN and what is left out come last, as 0.
__device__ __forceinline__ u32 ordered(float v, bool there) {
    const u32 bits = __float_as_uint(v);
    return !there || v != v ? 0u : (bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

// How many of `n` keys precede that of `mine`: equal keys go by the lower place. `n` is a multiple of four, and so is where the keys lie.
__device__ __forceinline__ int precede(const u32* keys, int n, u32 key, int mine) {
    int rank = 0;
    const uint4* four = reinterpret_cast<const uint4*>(keys);
    for (int i = 0; i < n / 4; ++i) {
        const uint4 k = four[i];
        const int before = mine - 4 * i;
        rank += (before > 0 ? k.x >= key : k.x > key) + (before > 1 ? k.y >= key : k.y > key) + (before > 2 ? k.z >= key : k.z > key) + (before > 3 ? k.w >= key : k.w > key);
    }
    return rank;
}

// What a choice is made by, beside logits.
struct Rule {
    int experts, topk, scoring, normalize;
    float normalize_eps, scale;
};

// Without groups: a thread an expert, a block a token. A thread's rank among the keys of its warp says whether it can be among the chosen; those that
// can are ranked among each other. So nothing is chosen in turn and the code is short: one warp that holds 12 experts a lane spends ten times as
// long on fetching its unrolled instructions as on the choice. Equal keys go by the lower expert. `keys` in shared memory: a key a thread of the
// warps that have experts, then the candidates' keys and experts, topk of each of these warps, then topk scores.
__device__ __forceinline__ void choose_ranked(float logit, float raised, const Rule& r, u32* keys, int* ids, float* weights) {
    const int e = threadIdx.x, lane = e % WARP, warp = e / WARP, warps = (r.experts + WARP - 1) / WARP, topk = r.topk;
    const int candidates = warps * topk, padded = (candidates + 3) / 4 * 4;
    u32* best = keys + warps * WARP;
    int* named = reinterpret_cast<int*>(best + padded);
    float* chosen = reinterpret_cast<float*>(named + padded);
    __shared__ float tops[WARP];
    const bool there = e < r.experts;
    float score = there ? logit : -INF;
    if (r.scoring == SOFTMAX) {
        const float top = warp_max(score);
        if (lane == 0) tops[warp] = top;
        __syncthreads();
        const float most = warp_max(lane < warps ? tops[lane] : -INF);
        score = there ? __expf(score - most) : 0.f;
        score /= block_sum(score);
    } else if (r.scoring == SIGMOID) {
        score = 1.f / (1.f + expf(-score));
    }
    if (warp < warps) {
        // What is no number has the key 1, and every other key is greater; 0 is nobody. A warp that has fewer experts than are chosen leaves places
        // empty.
        const u32 key = there ? ordered(score + raised, there) + 1 : 0u;
        keys[e] = key;
        if (lane < topk) best[warp * topk + lane] = 0u;
        if (e < padded - candidates) best[candidates + e] = 0u;
        __syncwarp();
        const int place = precede(keys + warp * WARP, WARP, key, lane);
        __syncwarp();
        // A warp's candidates lie in the order of their ranks, and warps in that of their experts: equal keys keep the order of experts.
        if (there && place < topk) {
            best[warp * topk + place] = key;
            named[warp * topk + place] = e;
            keys[warp * WARP + place] = __float_as_uint(score);
        }
    }
    __syncthreads();
    for (int i = e; i < candidates; i += blockDim.x) {
        const int rank = best[i] ? precede(best, padded, best[i], i) : topk;
        if (rank >= topk) continue;
        ids[rank] = named[i];
        chosen[rank] = __uint_as_float(keys[i / topk * WARP + i % topk]);
    }
    __syncthreads();
    if (warp == 0) write_weights(lane < topk ? chosen[lane] : 0.f, topk, r.scoring, r.normalize, r.normalize_eps, r.scale, weights);
}

// Grid: T, blocks of whole warps, one thread at least an expert. Shared: as `choose_ranked` says.
extern "C" __global__ void __launch_bounds__(512) route_ranked(const float* logits, const float* bias, int* ids, float* weights, int experts, int topk, int scoring,
                                                               int normalize, float normalize_eps, float scale) {
    admit_next();
    extern __shared__ __align__(16) u32 keys[];
    const int e = threadIdx.x;
    const float raised = bias && e < experts ? bias[e] : 0.f;
    await_previous();
    const float logit = e < experts ? logits[(size_t)blockIdx.x * experts + e] : 0.f;
    choose_ranked(logit, raised, Rule{experts, topk, scoring, normalize, normalize_eps, scale}, keys, ids + blockIdx.x * topk, weights + blockIdx.x * topk);
}

// The whole router in one kernel: logits of up to eight tokens by the blocks of one cluster, each of which takes tiles of 16 experts and then chooses
// for a token. The weights, which must fit what the cluster holds, are asked for ahead of the kernel's turn. Sums are taken in the order that the
// projection by itself takes (linear.cu), so the choice is the same. Grid: ROUTER_CLUSTER; 256 threads an expert at least. Shared: the pool; over it,
// once sums are taken, what `choose_ranked` says.
constexpr int ROUTER_CLUSTER = 8, ROUTER_EXPERTS = MMA_WARPS * WARP, ROUTER_STAGES = 5;
extern "C" __global__ void __cluster_dims__(ROUTER_CLUSTER, 1, 1) __launch_bounds__(MMA_WARPS * WARP)
    router(const bf16* x, const bf16* w, const bf16* logit_bias, const float* bias, int* ids, float* weights, int rows, int experts, int hidden, int parts, int topk,
           int scoring, int normalize, float normalize_eps, float scale) {
    using W = Bf16Rows<ROUTER_STAGES>;
    admit_next();
    cluster_arrive();
    Pool<W>& pool = pool_of<W>();
    // Of this block's token.
    __shared__ float logits[ROUTER_EXPERTS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, q = lane % 4, rank = cluster_rank();
    // The tiles of a block are MMA_WARPS / parts neighbours.
    const int tile = rank * (MMA_WARPS / parts) + warp / parts, part = warp % parts;
    const float raised = bias && (int)threadIdx.x < experts ? bias[threadIdx.x] : 0.f;
    float acc[1][4] = {};
    if (tile * 16 < experts) {
        Tokens<1> tokens;
        tokens.row[0] = x + (size_t)min(g, rows - 1) * hidden;
        const W of{w + (size_t)min(tile * 16 + g, experts - 1) * hidden, w + (size_t)min(tile * 16 + g + 8, experts - 1) * hidden, hidden};
        accumulate<W, 1, true>(pool, of, tokens, part, parts, acc);
    } else {
        await_previous();
    }
    reduce_warps<1>(pool, acc, part, parts);
    // Nobody may write to a block that has not begun.
    cluster_wait();
    if (part == 0)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int expert = tile * 16 + g + c / 2 * 8, token = 2 * q + c % 2;
            if (expert < experts && token < rows) cluster_store(&logits[expert], token, acc[0][c] + (logit_bias ? f32(logit_bias[expert]) : 0.f));
        }
    cluster_barrier();
    if (rank >= rows) return;
    const float logit = (int)threadIdx.x < experts ? logits[threadIdx.x] : 0.f;
    choose_ranked(logit, raised, Rule{experts, topk, scoring, normalize, normalize_eps, scale}, reinterpret_cast<u32*>(&pool), ids + rank * topk, weights + rank * topk);
}

// One block a token; shared memory: 2 * experts floats + groups floats. Highest biased score first, ties to the lowest id.
extern "C" __global__ void route(const float* logits, const float* bias, int* ids, float* weights, int experts, int topk, int scoring, int groups,
                                 int topk_groups, int group_two, int normalize, float normalize_eps, float scale) {
    take_turn();
    extern __shared__ float shared[];
    float *scores = shared, *biased = shared + experts, *group_scores = shared + 2 * experts;
    const float* row = logits + (size_t)blockIdx.x * experts;
    if (scoring == SOFTMAX) {
        __shared__ float top;
        if (threadIdx.x < WARP) {
            float m = -INF;
            for (int e = threadIdx.x; e < experts; e += WARP) m = fmaxf(m, row[e]);
            m = warp_max(m);
            if (threadIdx.x == 0) top = m;
        }
        __syncthreads();
        float sum = 0.f;
        for (int e = threadIdx.x; e < experts; e += blockDim.x) { scores[e] = __expf(row[e] - top); sum += scores[e]; }
        const float total = block_sum(sum);
        for (int e = threadIdx.x; e < experts; e += blockDim.x) scores[e] /= total;
    } else {
        for (int e = threadIdx.x; e < experts; e += blockDim.x) scores[e] = scoring == SIGMOID ? 1.f / (1.f + expf(-row[e])) : row[e];
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x) biased[e] = scores[e] + (bias ? bias[e] : 0.f);
    __syncthreads();
    const int width = experts / groups;
    if (topk_groups < groups) {
        for (int g = threadIdx.x; g < groups; g += blockDim.x) {
            float first = -INF, second = -INF;
            for (int e = g * width; e < (g + 1) * width; ++e) {
                if (biased[e] > first) { second = first; first = biased[e]; }
                else if (biased[e] > second) second = biased[e];
            }
            group_scores[g] = group_two ? first + second : first;
        }
        __syncthreads();
        for (int g = threadIdx.x; g < groups; g += blockDim.x) {
            int better = 0;
            for (int h = 0; h < groups; ++h) better += group_scores[h] > group_scores[g] || (group_scores[h] == group_scores[g] && h < g);
            if (better >= topk_groups)
                for (int e = g * width; e < (g + 1) * width; ++e) biased[e] = -INF;
        }
        __syncthreads();
    }
    // Choices one after the other, by the first warp.
    if (threadIdx.x >= WARP) return;
    if (experts <= WARP * HELD) choose_held(scores, biased, experts, topk, scoring, normalize, normalize_eps, scale, ids + blockIdx.x * topk, weights + blockIdx.x * topk);
    else choose(scores, biased, experts, topk, scoring, normalize, normalize_eps, scale, ids + blockIdx.x * topk, weights + blockIdx.x * topk);
}

// slots[t, k] = a slot of expert ids[t, k]; `starts[e]..starts[e + 1]` index `slots_of`.
extern "C" __global__ void place_experts(const int* ids, const int* starts, const int* slots_of, int* slots, int n, int topk, int first_token) {
    take_turn();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int e = ids[i], count = starts[e + 1] - starts[e];
        slots[i] = slots_of[starts[e] + (first_token + i / topk) % count];
    }
}

// Lists of token-expert pairs by local expert, in token order: offsets[local + 1], pairs[n], active[count, units of work]. One block. A unit is up
// to `unit` pairs of one expert: the expert in the low half of a word, which unit of it in the high half. Units of an expert that many tokens
// chose run side by side and find its weights in the L2 cache; one block a tile would run them one after the other, while the rest is done.
// For up to ROUNDS * BLOCK pairs and BLOCK experts. A warp takes a run of the list, 32 pairs a round: how many pairs of an expert come before one
// is what earlier warps and rounds counted and who stands before it in its own. Shared: experts * warps 16-bit counts.
constexpr int BLOCK = 1024, ROUNDS = 4;
extern "C" __global__ void __launch_bounds__(BLOCK) expert_lists(const int* ids, int* offsets, int* pairs, int* active, int n, int expert_start, int local_experts, int unit) {
    take_turn();
    extern __shared__ unsigned short counts[];
    __shared__ int starts[BLOCK], warp_totals[WARP];
    const int tid = threadIdx.x, lane = tid % WARP, warp = tid / WARP, rounds = (n + BLOCK - 1) / BLOCK;
    const u32 before_me = (1u << lane) - 1;
    int experts[ROUNDS], ranks[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        const int i = (warp * rounds + r) * WARP + lane, e = r < rounds && i < n ? ids[i] - expert_start : -1;
        experts[r] = e >= 0 && e < local_experts ? e : -1;
    }
    for (int i = tid; i < local_experts * (BLOCK / WARP); i += BLOCK) counts[i] = 0;
    __syncthreads();
    unsigned short* mine = counts + warp * local_experts;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
        if (r >= rounds) break;
        const int e = experts[r], counted = e >= 0 ? mine[e] : 0;
        const u32 same = __match_any_sync(FULL, e);
        ranks[r] = counted + __popc(same & before_me);
        __syncwarp();
        // The last of them says how many there are now.
        if (e >= 0 && same >> lane == 1) mine[e] = counted + __popc(same);
        __syncwarp();
    }
    __syncthreads();
    int count = 0;
    if (tid < local_experts)
#pragma unroll 8
        for (int w = 0; w < BLOCK / WARP; ++w) {
            const int more = counts[w * local_experts + tid];
            counts[w * local_experts + tid] = count;
            count += more;
        }
    // One scan for both: pairs in the low half, units in the high half.
    const int units = (count + unit - 1) / unit;
    int scanned = count + (units << 16);
#pragma unroll
    for (int offset = 1; offset < WARP; offset *= 2) {
        const int below = __shfl_up_sync(FULL, scanned, offset);
        if (lane >= offset) scanned += below;
    }
    if (lane == WARP - 1) warp_totals[warp] = scanned;
    __syncthreads();
    for (int w = 0; w < warp; ++w) scanned += warp_totals[w];
    const int before = (scanned & 0xffff) - count;
    starts[tid] = before;
    if (tid < local_experts) {
        offsets[tid] = before;
        for (int u = 0; u < units; ++u) active[(scanned >> 16) - units + 1 + u] = tid | u << 16;
        if (tid == local_experts - 1) { offsets[local_experts] = before + count; active[0] = scanned >> 16; }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
        if (r < rounds && experts[r] >= 0) pairs[starts[experts[r]] + mine[experts[r]] + ranks[r]] = (warp * rounds + r) * WARP + lane;
}

// The same for any size: a thread an expert (looping), which walks all ids twice.
extern "C" __global__ void __launch_bounds__(BLOCK) expert_lists_large(const int* ids, int* offsets, int* pairs, int* active, int n, int expert_start, int local_experts, int unit) {
    take_turn();
    for (int e = threadIdx.x; e < local_experts; e += blockDim.x) {
        int count = 0;
        for (int i = 0; i < n; ++i) count += ids[i] == expert_start + e;
        offsets[e + 1] = count;
    }
    if (threadIdx.x == 0) offsets[0] = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        int found = 0;
        for (int e = 0; e < local_experts; ++e) {
            for (int u = 0; u * unit < offsets[e + 1]; ++u) active[++found] = e | u << 16;
            offsets[e + 1] += offsets[e];
        }
        active[0] = found;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < local_experts; e += blockDim.x) {
        int at = offsets[e];
        for (int i = 0; i < n; ++i)
            if (ids[i] == expert_start + e) pairs[at++] = i;
    }
}
