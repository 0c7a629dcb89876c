// Bags of lookups pooled from distinct rows, and the gradients of rows: sums in the order of the CPU's, so bit for bit
// the same. A product is added in one rounding, as there.
#include "common.cuh"

// A feature: the shard of its rows, which begin at `base`, and its first column in what is pooled.
struct Feature {
    i64 base, dim, column, mean;
};

__device__ inline float share_of(const Feature &feature, i64 size) {
    return feature.mean ? __fdiv_rn(1.0f, (float)(size > 1 ? size : 1)) : 1.0f;
}

// out[bag, columns of the feature]. `weights` may be 0. A warp a bag of a feature.
extern "C" __global__ void __launch_bounds__(256) pool_bags(
    const float *rows, const Feature *features, i64 count, i64 batch, const i64 *offsets, const int *inverse,
    const float *weights, float *out, i64 width) {
    i64 bag = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (bag >= count * batch) return;
    const Feature &feature = features[bag / batch];
    i64 first = offsets[bag], last = offsets[bag + 1];
    float share = share_of(feature, last - first), *to = out + bag % batch * width + feature.column;
    for (i64 j = lane_id(); j < feature.dim; j += 32) {
        float sum = 0.0f;
        for (i64 p = first; p < last; p++)
            sum = __fmaf_rn(weights ? weights[p] : 1.0f, rows[feature.base + inverse[p] * feature.dim + j], sum);
        to[j] = feature.mean ? __fmul_rn(sum, share) : sum;
    }
}

// The bag of each lookup. A warp a bag.
extern "C" __global__ void __launch_bounds__(256) spread_bags(const i64 *offsets, i64 bags, u32 *bag_of) {
    i64 bag = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (bag >= bags) return;
    for (i64 p = offsets[bag] + lane_id(); p < offsets[bag + 1]; p += 32) bag_of[p] = (u32)bag;
}

// The gradient of each distinct row: the terms of its lookups, in their order. A warp a row; `keys` and `positions` are
// lookups in the order of rows, `starts` the first one of each row.
extern "C" __global__ void __launch_bounds__(256) sum_gradients(
    const float *gradients, i64 width, const Feature *features, i64 batch, const i64 *offsets, const int *inverse,
    const float *weights, const u32 *keys, const u32 *positions, i64 n, const u32 *starts, i64 row_count,
    const u32 *bag_of, float *rows) {
    i64 row = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= row_count || !starts[row]) return;
    i64 start = starts[row] - 1, dim = features[bag_of[positions[start]] / batch].dim;
    for (i64 j = lane_id(); j < dim; j += 32) {
        float sum = 0.0f;
        i64 to = 0;
        for (i64 i = start; i < n && keys[i] == row; i++) {
            u32 p = positions[i], bag = bag_of[p];
            const Feature &feature = features[bag / batch];
            float share = share_of(feature, offsets[bag + 1] - offsets[bag]);
            float weight = weights ? __fmul_rn(weights[p], share) : share;
            sum = __fmaf_rn(weight, gradients[bag % batch * width + feature.column + j], sum);
            to = feature.base + inverse[p] * dim;
        }
        rows[to + j] = sum;
    }
}
