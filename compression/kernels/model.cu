// The model of a section: pivots, weights, biases and tables, fitted to a sample of its rows. In float64 and in the
// order of the document, so that every encoder has the same. A CUDA block a `Coded`.
#include "coded.cuh"

const double FLOOR = 0.08, BITS_PER_GAIN = 0.72;

struct Fit {
    const Rows &rows;
    Model model;
    short *sample;  // [columns * n], column by column
    double *covariance, *factor;
    u32 n, columns, distinct, width;
    __device__ double &cov(u32 a, u32 b) const { return covariance[a * columns + b]; }
};

__device__ inline void take_sample(const Fit &fit) {
    const u32 *firsts = (const u32 *)fit.rows.firsts;
    for (u32 k = threadIdx.x; k < fit.n * fit.columns; k += THREADS) {
        u32 column = k / fit.n, i = k - column * fit.n;
        u32 row = (u32)((i * 0x9E3779B97F4A7C15ull >> 32) * fit.distinct >> 32);
        fit.sample[k] = (short)code_at(fit.rows, fit.width, fit.columns == 1 ? row : firsts[row], column);
    }
}

__device__ inline i64 sum_of(const short *values, u32 n) {
    i64 sum = 0;
    for (u32 i = 0; i < n; i++) sum += values[i];
    return sum;
}
__device__ inline double spread(i64 products, i64 one, i64 two, u32 n) {
    double mean = __ddiv_rn(__dmul_rn((double)one, (double)two), (double)n);
    return __ddiv_rn(__dsub_rn((double)products, mean), (double)n);
}

__device__ inline void find_covariances(const Fit &fit, i64 *sums) {
    for (u32 c = threadIdx.x; c < fit.columns; c += THREADS) sums[c] = sum_of(fit.sample + c * fit.n, fit.n);
    __syncthreads();
    for (u32 k = threadIdx.x; k < fit.columns * fit.columns; k += THREADS) {
        u32 a = k / fit.columns, b = k - a * fit.columns;
        if (b > a) continue;
        const short *one = fit.sample + a * fit.n, *two = fit.sample + b * fit.n;
        i64 products = 0;
        for (u32 i = 0; i < fit.n; i++) products += (int)one[i] * (int)two[i];
        fit.cov(a, b) = fit.cov(b, a) = spread(products, sums[a], sums[b], fit.n);
    }
    __syncthreads();
}

// Choose pivots and take out what they explain; returns the largest variance that is left, or that a pivot had.
__device__ inline double choose_pivots(const Fit &fit, double *inverse, double *gains) {
    u32 columns = fit.columns, count = 0;
    double widest = 0.0;
    while (count < min(MOST_PIVOTS, columns - 1)) {
        for (u32 c = threadIdx.x; c < columns; c += THREADS) inverse[c] = __ddiv_rn(1.0, __dadd_rn(fit.cov(c, c), FLOOR));
        __syncthreads();
        for (u32 p = threadIdx.x; p < columns; p += THREADS) {
            double own = fit.cov(p, p), gain = 0.0;
            for (u32 c = 0; c < columns; c++)
                gain = __dadd_rn(gain, __dmul_rn(__dmul_rn(fit.cov(p, c), fit.cov(p, c)), inverse[c]));
            gains[p] = own < FLOOR ? 0.0 : __dsub_rn(__ddiv_rn(gain, own), __dmul_rn(own, inverse[p]));
        }
        __syncthreads();
        u32 best = 0;
        double most = 0.0;
        for (u32 p = 0; p < columns; p++)
            if (gains[p] > most) best = p, most = gains[p];
        double chance = __ddiv_rn((double)(columns - 1), (double)fit.n);
        double saved = __dmul_rn(__dmul_rn(__dsub_rn(most, chance), BITS_PER_GAIN), (double)fit.distinct);
        if (saved < __dmul_rn(10.0, (double)(columns + 2))) break;
        widest = max(widest, fit.cov(best, best));
        double root = __dsqrt_rn(fit.cov(best, best));
        for (u32 c = threadIdx.x; c < columns; c += THREADS)
            fit.factor[c * MOST_PIVOTS + count] = __ddiv_rn(fit.cov(best, c), root);
        if (threadIdx.x == 0) fit.model.pivot(count) = (short)best;
        __syncthreads();
        for (u32 k = threadIdx.x; k < columns * columns; k += THREADS) {
            u32 a = k / columns, b = k - a * columns;
            double both = __dmul_rn(fit.factor[a * MOST_PIVOTS + count], fit.factor[b * MOST_PIVOTS + count]);
            fit.covariance[k] = __dsub_rn(fit.covariance[k], both);
        }
        __syncthreads();
        count++;
    }
    if (threadIdx.x == 0) fit.model.head[0] = (short)count;
    for (u32 c = 0; c < columns; c++) widest = max(widest, fit.cov(c, c));
    return widest;
}

// Of rows too wide to predict: no pivots, and the largest variance. `each`: double [THREADS].
__device__ inline double choose_none(const Fit &fit, double *each) {
    double widest = 0.0;
    for (u32 c = threadIdx.x; c < fit.columns; c += THREADS) {
        const short *values = fit.sample + c * fit.n;
        i64 sum = sum_of(values, fit.n), squares = 0;
        for (u32 i = 0; i < fit.n; i++) squares += (int)values[i] * (int)values[i];
        widest = max(widest, spread(squares, sum, sum, fit.n));
    }
    each[threadIdx.x] = widest;
    __syncthreads();
    for (u32 i = 0; i < THREADS; i++) widest = max(widest, each[i]);
    if (threadIdx.x == 0) fit.model.head[0] = 0;
    return widest;
}

__device__ inline short clipped(double value) { return (short)min(max(rint(value), -127.0), 127.0); }

// Weights by back substitution in the Cholesky factor; then biases.
__device__ inline void weigh(const Fit &fit, u32 column) {
    const Model &model = fit.model;
    u32 used = model.used(column);
    double solved[MOST_PIVOTS] = {};
    for (int t = (int)used - 1; t >= 0; t--) {
        double value = fit.factor[column * MOST_PIVOTS + t];
        for (u32 later = t + 1; later < used; later++)
            value = __dsub_rn(value, __dmul_rn(solved[later], fit.factor[model.pivot(later) * MOST_PIVOTS + t]));
        solved[t] = __ddiv_rn(value, fit.factor[model.pivot(t) * MOST_PIVOTS + t]);
    }
    i64 total = 32 * sum_of(fit.sample + column * fit.n, fit.n);
    for (u32 t = 0; t < MOST_PIVOTS; t++) {
        short weight = t < used ? clipped(__dmul_rn(32.0, solved[t])) : (short)0;
        model.weight(t, column) = weight;
        if (t < used) total -= sum_of(fit.sample + model.pivot(t) * fit.n, fit.n) * weight;
    }
    double size = __dmul_rn((double)fit.n, (double)(8 << model.shift()));
    model.bias(column) = clipped(__ddiv_rn((double)total, size));
}

// The table that codes a column of the sample in the fewest bits. A warp; `histogram`: u32 [MAGNITUDES].
__device__ inline u32 choose_table(const Fit &fit, u32 column, const Family &family, u32 *histogram) {
    for (u32 k = lane_id(); k < MAGNITUDES; k += 32) histogram[k] = 0;
    __syncwarp();
    u32 total = 0;
    for (u32 i = lane_id(); i < fit.n; i += 32) {
        int pivots[MOST_PIVOTS];
        for (u32 t = 0; t < fit.model.pivots(); t++) pivots[t] = fit.sample[fit.model.pivot(t) * fit.n + i];
        int code = fit.sample[column * fit.n + i];
        u32 left = zigzag(cut(code - predicted(fit.model, column, pivots), fit.width));
        u32 high = min(left >> fit.model.shift(), MAGNITUDES - 1);
        atomicAdd(&histogram[high], 1u);
        total += high;
    }
    i64 mean = 256 * (i64)warp_sum(total) / fit.n;
    __syncwarp();
    const int *costs = (const int *)family.costs, *means = (const int *)family.means;
    u32 best = ALL;
    for (u32 t = lane_id(); t < TABLES; t += 32) {
        if ((8 * (i64)means[t] < 5 * mean - 128 || 5 * (i64)means[t] > 8 * mean + 128) && t != TABLES - 1) continue;
        u32 cost = 0;
        for (u32 k = 0; k < MAGNITUDES; k++) cost += histogram[k] * (u32)costs[k * TABLES + t];
        best = min(best, cost << 6 | t);
    }
    return ~warp_max(~best) & 63;
}

extern "C" __global__ void __launch_bounds__(256) fit_models(
    const Coded *all_coded, const Rows *all_rows, const State *states, const Family *family) {
    __shared__ i64 sums[WIDEST];
    __shared__ double inverse[THREADS], gains[WIDEST];
    __shared__ u32 histograms[THREADS / 32][MAGNITUDES];
    const Coded &coded = all_coded[blockIdx.x];
    const Rows &rows = all_rows[coded.rows];
    const State &state = states[rows.section];
    if (!state.width) return;
    u32 columns = (u32)rows.columns, n = min(state.distinct, columns <= 32 ? 256u : columns <= 64 ? 128u : 64u);
    Fit fit = {rows, {(short *)coded.model, columns}, (short *)coded.sample, (double *)coded.covariance,
               (double *)coded.factor, n, columns, state.distinct, state.width};
    take_sample(fit);
    __syncthreads();
    double widest;
    if (columns <= WIDEST) {
        find_covariances(fit, sums);
        widest = choose_pivots(fit, inverse, gains);
    } else {
        widest = choose_none(fit, inverse);
    }
    short shift = 0;
    for (; widest > 144.0 && shift < 12; shift++) widest = __dmul_rn(widest, 0.25);
    if (threadIdx.x == 0) fit.model.head[1] = shift;
    __syncthreads();
    for (u32 c = threadIdx.x; c < columns; c += THREADS) weigh(fit, c);
    __syncthreads();
    for (u32 c = threadIdx.x / 32; c < columns; c += THREADS / 32) {
        u32 table = choose_table(fit, c, *family, histograms[threadIdx.x / 32]);
        if (lane_id() == 0) ((u8 *)coded.choice)[c] = (u8)table;
        __syncwarp();
    }
}
