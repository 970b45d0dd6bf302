// Router choice and the lists of rows of each expert.
#include "common.cuh"

enum Scoring { SIGMOID = 0, SOFTMAX = 1, SOFTMAX_TOPK = 2 };

// The greatest value of a warp and its index, the lowest among equals; every lane gets it.
__device__ __forceinline__ void warp_best(float& value, int& index) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const float v = __shfl_xor_sync(FULL, value, offset);
        const int i = __shfl_xor_sync(FULL, index, offset);
        if (v > value || (v == value && i < index)) { value = v; index = i; }
    }
}

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
        warp_best(value, index);
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
        warp_best(value, index);
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

// Without groups: a thread an expert, a block a token. A thread's rank among all keys is its place, so nothing is chosen in turn and the code is
// short: one warp that holds 12 experts a lane spends ten times as long on fetching its unrolled instructions as on the choice. Equal keys
// go by the lower expert. Grid: T, blocks of whole warps, one thread at least an expert. Shared: keys, padded to whole uint4; topk scores.
extern "C" __global__ void __launch_bounds__(512) route_ranked(const float* logits, const float* bias, int* ids, float* weights, int experts, int topk, int scoring,
                                                               int normalize, float normalize_eps, float scale) {
    admit_next();
    extern __shared__ __align__(16) u32 keys[];
    const int e = threadIdx.x, padded = (experts + 3) / 4 * 4, lane = e % WARP, warp = e / WARP;
    float* chosen = reinterpret_cast<float*>(keys + padded);
    __shared__ float tops[WARP];
    const bool there = e < experts;
    const float raised = bias && there ? bias[e] : 0.f;
    await_previous();
    float score = there ? logits[(size_t)blockIdx.x * experts + e] : -INF;
    if (scoring == SOFTMAX) {
        const float top = warp_max(score);
        if (lane == 0) tops[warp] = top;
        __syncthreads();
        const float most = warp_max(lane < (int)blockDim.x / WARP ? tops[lane] : -INF);
        score = there ? __expf(score - most) : 0.f;
        score /= block_sum(score);
    } else if (scoring == SIGMOID) {
        score = 1.f / (1.f + expf(-score));
    }
    // What is no number has the key 1, and every other key is greater.
    const u32 key = ordered(score + raised, there) + 1;
    if (e < padded) keys[e] = there ? key : 0u;
    __syncthreads();
    // Experts before this one precede it if their key is as great, those behind it if theirs is greater.
    int rank = 0;
    const uint4* four = reinterpret_cast<const uint4*>(keys);
    const int first = warp * WARP / 4, last = min(first + WARP / 4, padded / 4);
    for (int i = 0; i < first; ++i) {
        const uint4 k = four[i];
        rank += (k.x >= key) + (k.y >= key) + (k.z >= key) + (k.w >= key);
    }
    for (int i = 4 * first; i < 4 * last; ++i) rank += i < e ? keys[i] >= key : keys[i] > key;
    for (int i = last; i < padded / 4; ++i) {
        const uint4 k = four[i];
        rank += (k.x > key) + (k.y > key) + (k.z > key) + (k.w > key);
    }
    if (there && rank < topk) {
        ids[blockIdx.x * topk + rank] = e;
        chosen[rank] = score;
    }
    __syncthreads();
    if (warp == 0) write_weights(lane < topk ? chosen[lane] : 0.f, topk, scoring, normalize, normalize_eps, scale, weights + blockIdx.x * topk);
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
