// Router choice and the lists of rows of each expert.
#include "common.cuh"

enum Scoring { SIGMOID = 0, SOFTMAX = 1, SOFTMAX_TOPK = 2 };

// One block a token; shared memory: 2 * experts floats + groups floats. Highest biased score first, ties to the lowest id.
extern "C" __global__ void route(const float* logits, const float* bias, int* ids, float* weights, int experts, int topk, int scoring, int groups,
                                 int topk_groups, int group_two, int normalize, float normalize_eps, float scale) {
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
    float sum = 0.f, top = 0.f;
    for (int k = 0; k < topk; ++k) {
        float value = -INF;
        int index = 0x7fffffff;
        for (int e = threadIdx.x; e < experts; e += WARP)
            if (biased[e] > value || (biased[e] == value && e < index)) { value = biased[e]; index = e; }
        for (int offset = WARP / 2; offset > 0; offset /= 2) {
            const float v = __shfl_xor_sync(FULL, value, offset);
            const int i = __shfl_xor_sync(FULL, index, offset);
            if (v > value || (v == value && i < index)) { value = v; index = i; }
        }
        index = min(index, experts - 1);
        float w = scores[index];
        if (scoring == SOFTMAX_TOPK) {
            if (k == 0) top = w;
            w = __expf(w - top);
        }
        sum += w;
        if (threadIdx.x == 0) { ids[blockIdx.x * topk + k] = index; weights[blockIdx.x * topk + k] = w; }
        __syncwarp();
        if (threadIdx.x == 0) biased[index] = -INF, scores[index] = scoring == SOFTMAX_TOPK ? -INF : scores[index];
        __syncwarp();
    }
    const float divisor = (normalize || scoring == SOFTMAX_TOPK) ? sum + normalize_eps : 1.f;
    for (int k = threadIdx.x; k < topk; k += WARP) weights[blockIdx.x * topk + k] = weights[blockIdx.x * topk + k] / divisor * scale;
}

// slots[t, k] = a slot of expert ids[t, k]; `starts[e]..starts[e + 1]` index `slots_of`.
extern "C" __global__ void place_experts(const int* ids, const int* starts, const int* slots_of, int* slots, int n, int topk, int first_token) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int e = ids[i], count = starts[e + 1] - starts[e];
        slots[i] = slots_of[starts[e] + (first_token + i / topk) % count];
    }
}

// Lists of token-expert pairs by local expert, in token order: offsets[local + 1], pairs[n]. One block, a thread an expert (looping).
extern "C" __global__ void expert_lists(const int* ids, int* offsets, int* pairs, int n, int expert_start, int local_experts) {
    for (int e = threadIdx.x; e < local_experts; e += blockDim.x) {
        int count = 0;
        for (int i = 0; i < n; ++i) count += ids[i] == expert_start + e;
        offsets[e + 1] = count;
    }
    if (threadIdx.x == 0) offsets[0] = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int e = 0; e < local_experts; ++e) offsets[e + 1] += offsets[e];
    __syncthreads();
    for (int e = threadIdx.x; e < local_experts; e += blockDim.x) {
        int at = offsets[e];
        for (int i = 0; i < n; ++i)
            if (ids[i] == expert_start + e) pairs[at++] = i;
    }
}
